"""How far apart a subset's samples lie: Vendi score and distance to the nearest other. Knows vectors, no samples."""

import math

import faiss
import numpy as np

from grace_store.base.arrays import Float32Array, IntArray

MAX_VENDI = 4096
"""Samples that a Vendi score is taken over; of more, this many are drawn."""
MAX_QUERIES = 1024
"""Samples whose nearest other is looked for, among all; of more, this many are drawn."""
NUM_DIGITS = 6
"""Further ones depend on the order in which threads add numbers up."""


def vendi_score(vectors: Float32Array) -> float:
    """Return the Vendi score of vectors (n, m) of length 1: the effective number of different ones, from 1 to n.

    It is exp(-sum of l log l) over the eigenvalues l of the Gram matrix over n, which for n above m are found as
    those of the smaller X'X / n.

    >>> vendi_score(np.eye(3, dtype=np.float32)), vendi_score(np.ones((5, 1), dtype=np.float32))
    (3.0, 1.0)
    """
    num, size = vectors.shape
    if not num:
        return math.nan
    wide = vectors.astype(np.float64)
    eigenvalues = np.linalg.eigvalsh((wide @ wide.T if num <= size else wide.T @ wide) / num)
    some = eigenvalues[eigenvalues > 0]
    some /= some.sum()  # float32 vectors are of length 1 to seven digits only
    return round(math.exp(-(some * np.log(some)).sum()), NUM_DIGITS)


def nearest_cosines(vectors: Float32Array, rng: np.random.Generator) -> Float32Array:
    """Return the cosine to the nearest other, for at most MAX_QUERIES drawn ones; none below two vectors."""
    if len(vectors) < 2:
        return np.zeros(0, np.float32)
    asked = drawn(len(vectors), MAX_QUERIES, rng)
    cosine, found = faiss.knn(vectors[asked], vectors, 2, metric=faiss.METRIC_INNER_PRODUCT)
    # Among equals a sample itself may come second, or not at all; then the first is another one, just as near.
    nearest: Float32Array = np.where(found[:, 0] == asked, cosine[:, 1], cosine[:, 0]).clip(-1.0, 1.0)
    return nearest


def mean_distance(cosines: Float32Array) -> float:
    """Return the mean of 1 - cos; NaN without any.

    >>> mean_distance(np.array([1.0, 0.5], dtype=np.float32))
    0.25
    """
    return round(float(np.mean(1.0 - cosines, dtype=np.float64)), NUM_DIGITS) if len(cosines) else math.nan


def nearest_distance(vectors: Float32Array, rng: np.random.Generator) -> float:
    """Return the mean of 1 - cos to the nearest other, for at most MAX_QUERIES drawn ones; NaN below two vectors."""
    return mean_distance(nearest_cosines(vectors, rng))


def drawn(num: int, most: int, rng: np.random.Generator) -> IntArray:
    """Return which of num things are looked at, ascending: all, or most of them at random."""
    return np.arange(num) if num <= most else np.sort(rng.choice(num, most, replace=False))
