"""The packed layout of Grams."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.values.gram import num_entries, num_segments, pack, unpack


@pytest.mark.parametrize("size", [2, 3, 10, 61])
def test_unpack_undoes_pack(size):
    vectors = np.random.default_rng(size).normal(size=(4, size, 5))
    gram = vectors @ vectors.transpose(0, 2, 1)
    gram = (gram + gram.transpose(0, 2, 1)) / 2
    packed = pack(gram)
    assert packed.shape == (4, num_entries(size))
    assert num_segments(packed.shape[1]) == size
    np.testing.assert_array_equal(unpack(packed), gram)


def test_the_triangle_lies_row_by_row():
    assert pack(np.array([[[0, 9, 9], [1, 2, 9], [3, 4, 5]]])).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_what_is_no_triangle_is_refused():
    with pytest.raises(ValueError, match="7 values are not a packed Gram"):
        unpack(np.zeros((1, 7)))
