"""Products with directions and the mean directions of subtasks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grace_store.base.states import Flag
from grace_store.values.directions import (
    ROWS_AT_ONCE,
    SubtaskMeans,
    products,
)


@pytest.mark.parametrize("num", [0, 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 3])
def test_products_do_not_depend_on_how_many_rows_are_held_at_once(num):
    rng = np.random.default_rng(num)
    vectors, directions = rng.normal(size=(num, 9)).astype(np.float32), rng.normal(size=(4, 9))
    found, flags = products(vectors, directions)
    wide = vectors.astype(np.float64)
    expected = wide @ directions.T / np.linalg.norm(wide, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert not flags.any()


def test_what_has_no_direction_counts_as_zero_and_what_is_not_finite_as_nothing():
    vectors = np.array([[3, 4], [0, 0], [np.nan, 1], [np.inf, 0], [1e-30, 0], [3e38, 3e38]], dtype=np.float32)
    found, flags = products(vectors, np.array([[1.0, 0.0]]))
    np.testing.assert_allclose(found[:, 0], [0.6, 0, np.nan, np.nan, 1, math.sqrt(0.5)], rtol=1e-7)
    assert flags.tolist() == [0, Flag.ZERO_VECTOR, Flag.NOT_FINITE, Flag.NOT_FINITE, 0, 0]


def test_a_length_that_is_not_finite_makes_its_sample_nothing():
    found, flags = products(np.eye(3), np.ones((1, 3)), np.array([2.0, np.inf, np.nan]))
    np.testing.assert_array_equal(found[:, 0], [2, np.nan, np.nan])
    assert flags.tolist() == [0, Flag.NOT_FINITE, Flag.NOT_FINITE]


def test_a_subtask_without_vectors_has_no_mean():
    means = SubtaskMeans(2, 3)
    means.add(np.ones((2, 3)), np.array([1, 1]))
    assert means.counts.tolist() == [0, 2]
    with pytest.raises(ValueError, match="subtask 0 has no vector"):
        means.means()
