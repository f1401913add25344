"""Grams to step scores to values, values to rankings. numpy only: no store, no model, no files."""
