"""What the demo says of flags follows from the counts; the rest of its finding is tested with the demo."""

from __future__ import annotations

from collections import Counter

import pytest

from grace_store.study.planted import of_flags

KINDS = Counter(clean=4, looping=3, filler=2, cut_off=2)


@pytest.mark.parametrize(
    ("flagged", "told"),
    [
        (
            Counter(looping=3, cut_off=1),
            "4 of 7 flawed traces, and 0 of 4 clean ones. All of looping. Some of cut_off (1 of 2). None of filler.",
        ),
        (Counter(clean=1), "0 of 7 flawed traces, and 1 of 4 clean ones. None of cut_off, filler, looping."),
    ],
)
def test_flags_are_counted_by_kind(flagged: Counter[str], told: str) -> None:
    assert of_flags(KINDS, flagged) == f"Flags found {told}"
