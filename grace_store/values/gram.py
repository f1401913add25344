"""Packed Grams and how to read them. Knows the layout, nothing of scores.

A sample with K steps has m = K + 1 segments, the answer last. Its Gram is kept as the lower triangle row by row,
the diagonal included: m (m + 1) / 2 values, of which row k holds the products of segment k with segments 0..k.
"""

import math

import numpy as np

from grace_store.base.arrays import Array, FloatArray, IntArray, Numbers


def num_entries(num_segments: int) -> int:
    """Return how many values a packed Gram of that many segments has.

    >>> num_entries(10)
    55
    """
    return num_segments * (num_segments + 1) // 2


def num_segments(entries: int) -> int:
    """Return how many segments a packed Gram of that many values has.

    >>> num_segments(55)
    10
    """
    found = (math.isqrt(8 * entries + 1) - 1) // 2
    if num_entries(found) != entries:
        raise ValueError(f"{entries} values are no packed Gram: 3, 6, 10, 15... would be")
    return found


def pack(gram: Numbers) -> Array:
    """Return the lower triangles of (n, m, m) Grams as (n, m(m+1)/2), in the same dtype.

    >>> pack(np.array([[[4.0, 2.0], [2.0, 9.0]]]))
    array([[4., 2., 9.]])
    """
    row, column = np.tril_indices(gram.shape[-1])
    return gram[:, row, column]


def unpack(packed: Numbers) -> FloatArray:
    """Return packed Grams (n, m(m+1)/2) as symmetric matrices (n, m, m).

    >>> unpack(np.array([[4, 2, 9]], dtype=np.float32))
    array([[[4., 2.],
            [2., 9.]]])
    """
    size = num_segments(packed.shape[1])
    row, column = np.tril_indices(size)
    gram = np.empty((len(packed), size, size), dtype=np.float64)
    gram[:, row, column] = packed
    gram[:, column, row] = packed
    return gram


def offsets_of(counts: Numbers) -> IntArray:
    """Return where each of consecutive runs starts, and where the last one ends.

    >>> offsets_of(np.array([3, 1, 2]))
    array([0, 3, 4, 6])
    """
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def sum_by_sample(num_parts: Numbers, part: Numbers) -> FloatArray:
    """Return the sum of each sample's parts, which lie flat.

    >>> sum_by_sample(np.array([2, 1]), np.array([3, 4, 5]))
    array([7., 5.])
    """
    offsets = offsets_of(num_parts)
    if part.shape != (offsets[-1],):
        raise ValueError(f"{len(num_parts)} samples have {offsets[-1]} parts, not {part.shape}")
    if not len(num_parts):
        return np.zeros(0)
    sums: FloatArray = np.add.reduceat(part.astype(np.float64), offsets[:-1])
    return sums
