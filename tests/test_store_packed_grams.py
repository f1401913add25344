"""Packed Grams: those of a loop, over vectors as they are."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.store.packed_grams import packed_grams


@given(st.lists(st.integers(1, 6), max_size=6), st.integers(1, 9))
@settings(deadline=None, max_examples=50)
def test_packed_grams_are_those_of_a_loop(num_segments: list[int], size: int) -> None:
    vectors = np.random.default_rng(size).standard_normal((sum(num_segments), size)).astype(np.float32)
    expected, start = [], 0
    for m in num_segments:
        for i in range(m):
            for j in range(i + 1):
                pair = zip(vectors[start + i].tolist(), vectors[start + j].tolist(), strict=True)
                expected.append(math.fsum(a * b for a, b in pair))
        start += m
    packed = packed_grams(vectors, np.array(num_segments, dtype=np.int64))
    assert packed.dtype == np.float32
    np.testing.assert_allclose(packed, np.array(expected), rtol=2**-23, atol=1e-14)


def test_grams_of_vectors_too_long_for_float32_are_infinite_not_wrong() -> None:
    assert packed_grams(np.full((1, 4), 1e30, dtype=np.float32), np.array([1])).tolist() == [np.inf]
    assert packed_grams(np.full((1, 4), 1e-30, dtype=np.float32), np.array([1])).tolist() == [0.0]
