"""Grams as a store keeps them: the lower triangle, row by row, of one sample after the other."""

from __future__ import annotations

import numpy as np

from grace_store.base.arrays import Float32Array, FloatArray, IntArray


def num_packed(num_segments: IntArray) -> IntArray:
    """Return how many entries the packed Gram of each sample has, from its number of segments."""
    return num_segments * (num_segments + 1) // 2


def packed_grams(vectors: Float32Array, num_segments: IntArray) -> Float32Array:
    """Return the concatenated packed Grams of samples whose rows follow each other.

    Products are summed in float64 and only then rounded, so a Gram does not depend on how sums are split.
    """
    out: list[FloatArray] = []
    start = 0
    for m in num_segments.tolist():
        rows = vectors[start : start + m].astype(np.float64)
        out.append((rows @ rows.T)[np.tril_indices(m)])
        start += m
    with np.errstate(over="ignore"):  # vectors longer than 1e19 have an infinite Gram, which scoring reports
        return np.concatenate(out).astype(np.float32) if out else np.zeros(0, np.float32)
