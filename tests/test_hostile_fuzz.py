"""A short, seeded fuzz of all that reads what strangers wrote; ``python -m tests.torture.fuzz`` is the long one."""

from __future__ import annotations

import random

from tests.torture.fuzz import fuzz
from tests.torture.fuzz_inputs import mutate

INPUTS_PER_TARGET = 40
NUM_TARGETS = 20


def test_no_input_hangs_crashes_or_ends_in_a_traceback(tmp_path):
    tally = fuzz(0, INPUTS_PER_TARGET * NUM_TARGETS, tmp_path, together=True)
    assert tally.failures == []
    assert tally.tried == INPUTS_PER_TARGET * NUM_TARGETS
    # Not all in the same way: good inputs are understood, bad ones set aside or refused.
    assert {"samples", "set aside", "refused", "pictures", "done", "grids", "compiled", "found broken"} <= set(
        tally.became
    )


def test_inputs_are_the_same_every_time():
    seeds = [b'{"a": [1, 2, 3]}', b"plain text\nof two lines"]
    first, second = ([mutate(rng, seeds) for _ in range(200)] for rng in (random.Random(3), random.Random(3)))
    assert first == second
    assert len(set(first)) > 150
