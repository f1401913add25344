"""History weights against the design's formulas, worked out by hand, and weights given from Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.base.errors import SettingError
from grace_store.values.alignment import history_weights


@pytest.mark.parametrize(
    ("history", "last_row"),
    [
        ("uniform", [1 / 3, 1 / 3, 1 / 3, 0]),
        ("window:1", [0, 0, 1, 0]),
        ("window:2", [0, 1 / 2, 1 / 2, 0]),
        ("window:9", [1 / 3, 1 / 3, 1 / 3, 0]),
        ("ema:0", [0, 0, 1, 0]),
        ("ema:0.5", [1 / 7, 2 / 7, 4 / 7, 0]),
    ],
)
def test_the_weights_of_the_fourth_step(history, last_row):
    np.testing.assert_allclose(history_weights(history, 4)[3], last_row)


@given(
    history=st.one_of(
        st.just("uniform"),
        st.integers(1, 70).map("window:{}".format),
        st.floats(0, 1, exclude_max=True).map("ema:{}".format),
    ),
    num_steps=st.integers(1, 64),
)
def test_rows_look_back_only_and_add_up_to_one(history, num_steps):
    weights = history_weights(history, num_steps)
    assert weights.shape == (num_steps, num_steps)
    assert not np.triu(weights).any()
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights[1:].sum(axis=1), 1.0)


def test_weights_from_python_are_cut_to_size_and_made_to_add_up():
    given = np.tril(np.full((9, 9), 3.0), -1)
    np.testing.assert_allclose(history_weights(given, 4), history_weights("uniform", 4))
    np.testing.assert_allclose(history_weights(lambda k: given[:k, :k], 4), history_weights("uniform", 4))
    assert given[1, 0] == 3.0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros((2, 2)), r"shape \(2, 2\) are too small for 3 steps"),
        (np.zeros(9), r"shape \(9,\) are too small for 3 steps"),
        (np.ones((3, 3)), "must be 0 for the step itself and for later steps"),
        (np.tril(np.full((3, 3), -1.0), -1), "finite and at least 0"),
        (np.tril(np.full((3, 3), np.inf), -1), "finite and at least 0"),
        (np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0]]), "leave step 3 without a history"),
    ],
)
def test_weights_without_meaning_are_refused(weights, message):
    with pytest.raises(SettingError, match=message):
        history_weights(weights, 3)
