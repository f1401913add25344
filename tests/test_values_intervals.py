"""Intervals hold what they say: 95 % of what is drawn, and the textbook's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.values.intervals import difference_interval, explained_interval, share_interval
from grace_store.values.length_bias import audit_lengths, lengths_of


def test_shares_and_their_differences_are_the_textbooks():
    # Newcombe (1998): 56 of 70 against 48 of 80, and 9 of 10 against 3 of 10.
    assert difference_interval((56, 70), (48, 80)) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert difference_interval((9, 10), (3, 10)) == pytest.approx((0.1705, 0.8090), abs=1e-4)
    assert share_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert share_interval(0, 0) == (0.0, 1.0)
    assert difference_interval((1, 2), (0, 0)) == (-1.0, 1.0)


@pytest.mark.parametrize("num", [24, 200])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.4, 0.8])
def test_what_lengths_explain_lies_within_its_interval(num, share):
    rng, inside = np.random.default_rng(0), 0
    for _ in range(300):
        steps, per_step = rng.integers(2, 15, num), rng.lognormal(3, 0.5, num)
        lengths = lengths_of(steps, steps * per_step + rng.integers(1, 30, num), steps * per_step)
        value = np.sqrt(share) * (np.log(per_step) - 3) / 0.5 + np.sqrt(1 - share) * rng.normal(size=num)
        low, high = audit_lengths(value, lengths).explained_between
        inside += low <= share <= high
    assert inside >= 0.92 * 300


def test_nothing_known_is_everything_possible():
    assert explained_interval(0.5, 4, 3) == (0.0, 1.0)
    assert explained_interval(float("nan"), 100, 3) == (0.0, 1.0)
    assert explained_interval(1.0, 100, 3) == (1.0, 1.0)
    assert explained_interval(0.0, 100, 3)[0] == 0.0
