"""Influence of pool samples on target subtasks: LESS, ICONS and a reconstruction of CADC. numpy only."""
