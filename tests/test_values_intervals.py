"""Intervals hold what they say: 95 % of what is drawn, and the textbook's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.values.length_bias import difference_interval, explained_interval, share_interval


def test_shares_and_their_differences_are_the_textbooks():
    # Newcombe (1998): 56 of 70 against 48 of 80, and 9 of 10 against 3 of 10.
    assert difference_interval((56, 70), (48, 80)) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert difference_interval((9, 10), (3, 10)) == pytest.approx((0.1705, 0.8090), abs=1e-4)
    assert share_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert share_interval(0, 0) == (0.0, 1.0)
    assert difference_interval((1, 2), (0, 0)) == (-1.0, 1.0)


@pytest.mark.parametrize("num", [24, 200])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.4, 0.8])
def test_what_columns_explain_lies_within_its_interval(num, share):
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(300, num, 3))
    value = np.sqrt(share) * columns[..., 0] + np.sqrt(1 - share) * rng.normal(size=(300, num))
    columns, value = columns - columns.mean(axis=1, keepdims=True), value - value.mean(axis=1, keepdims=True)
    against = np.einsum("dnc,dn->dc", columns, value)
    weights = np.linalg.solve(np.einsum("dnc,dne->dce", columns, columns), against[..., None])[..., 0]
    found = (weights * against).sum(axis=1) / (value**2).sum(axis=1)
    between = [explained_interval(float(each), num, 3) for each in found]
    assert np.mean([low <= share <= high for low, high in between]) >= 0.92


def test_nothing_known_is_everything_possible():
    assert explained_interval(0.5, 4, 3) == (0.0, 1.0)
    assert explained_interval(float("nan"), 100, 3) == (0.0, 1.0)
    assert explained_interval(1.0, 100, 3) == (1.0, 1.0)
    assert explained_interval(0.0, 100, 3)[0] == 0.0
