"""Values as text, beyond what the examples in the docstrings show."""

from __future__ import annotations

from grace_store.base.text import sparkline


def test_a_line_of_bars_is_no_wider_than_asked_and_flat_where_nothing_changes():
    assert sparkline([]) == ""
    assert len(sparkline([float(i) for i in range(500)])) == 60
    assert sparkline([1.0, 1.0]) == "▁▁"
