"""Measures of coverage of a pool, and of distances between samples. Knows vectors and clusters, no samples."""

import math
from collections.abc import Sequence

import faiss
import numpy as np

from grace_store.base.arrays import Float32Array, FloatArray, IntArray
from grace_store.base.finding import Estimate


def random_interval(found: Sequence[float] | FloatArray) -> Estimate:
    """Return the mean, p5 and p95 of a measure over random subsets."""
    values = np.asarray(found, dtype=np.float64)
    low, high = np.quantile(values, [0.05, 0.95]).tolist()
    return Estimate(value=float(values.mean()), low=low, high=high, num=len(values))


def share_touched(counts: IntArray) -> float:
    """Return the share of clusters that have at least one sample.

    >>> share_touched(np.array([3, 0, 1, 0]))
    0.5
    """
    return float(np.count_nonzero(counts) / len(counts)) if len(counts) else math.nan


def occupancy_entropy(counts: IntArray) -> float:
    """Return the entropy of the distribution over clusters divided by log K: 1 if even, 0 for one cluster.

    >>> occupancy_entropy(np.array([2, 2, 0, 0]))
    0.5
    """
    if len(counts) < 2 or not (total := counts.sum()):
        return math.nan
    share = counts[counts > 0] / total
    return float(-(share * np.log(share)).sum() / math.log(len(counts))) + 0.0


def expected_share_touched(sizes: IntArray, count: int) -> float:
    """Return the mean share of clusters that a random subset of count samples touches, exactly.

    A cluster of n of the N samples is missed with probability C(N - n, count) / C(N, count).

    >>> expected_share_touched(np.array([1, 1]), 1)
    0.5
    """
    if not len(sizes):
        return math.nan
    total, before = int(sizes.sum()), np.arange(int(sizes.max()))
    # The probability to miss n samples of a cluster, as a product over the samples.
    missed = np.cumprod([1.0, *((total - count - before) / (total - before)).clip(min=0.0)])
    return float(1.0 - missed[sizes].mean())


def random_counts(sizes: IntArray, count: int, num_subsets: int, rng: np.random.Generator) -> IntArray:
    """Return the counts of clusters in random subsets of count samples without replacement, (num_subsets, K)."""
    return rng.multivariate_hypergeometric(sizes, count, size=num_subsets, method="marginals")


MAX_VENDI = 4096
"""Most samples in a Vendi score; of more samples, this many are drawn."""
MAX_QUERIES = 1024
"""Most samples with a search for the nearest other sample; of more samples, this many are drawn."""
NUM_DIGITS = 6
"""Digits of results: further digits depend on the order in which threads sum."""


def vendi_score(vectors: Float32Array) -> float:
    """Return the Vendi score of vectors (n, m) of length 1: the effective number of different ones, from 1 to n.

    It is exp(-sum of l log l) over the eigenvalues l of the Gram matrix divided by n. For n above m, these are the
    eigenvalues of the smaller matrix X'X / n.

    >>> vendi_score(np.eye(3, dtype=np.float32)), vendi_score(np.ones((5, 1), dtype=np.float32))
    (3.0, 1.0)
    """
    num, size = vectors.shape
    if not num:
        return math.nan
    wide = vectors.astype(np.float64)
    eigenvalues = np.linalg.eigvalsh((wide @ wide.T if num <= size else wide.T @ wide) / num)
    some = eigenvalues[eigenvalues > 0]
    some /= some.sum()  # the length of float32 vectors is 1 to seven digits only
    return round(math.exp(-(some * np.log(some)).sum()), NUM_DIGITS)


def nearest_cosines(vectors: Float32Array, rng: np.random.Generator) -> Float32Array:
    """Return cosines with the nearest other vector, for at most MAX_QUERIES vectors; empty below two vectors."""
    if len(vectors) < 2:
        return np.zeros(0, np.float32)
    asked = drawn(len(vectors), MAX_QUERIES, rng)
    cosine, found = faiss.knn(vectors[asked], vectors, 2, metric=faiss.METRIC_INNER_PRODUCT)
    # Among equal vectors, a sample may come second, or not at all; then the first is another sample at distance 0.
    return np.asarray(np.where(found[:, 0] == asked, cosine[:, 1], cosine[:, 0]).clip(-1.0, 1.0))


def mean_distance(cosines: Float32Array) -> float:
    """Return the mean of 1 - cos; NaN without cosines.

    >>> mean_distance(np.array([1.0, 0.5], dtype=np.float32))
    0.25
    """
    return round(float(np.mean(1.0 - cosines, dtype=np.float64)), NUM_DIGITS) if len(cosines) else math.nan


def nearest_distance(vectors: Float32Array, rng: np.random.Generator) -> float:
    """Return the mean of 1 - cos to the nearest other, for at most MAX_QUERIES vectors; NaN below two vectors."""
    return mean_distance(nearest_cosines(vectors, rng))


def drawn(num: int, most: int, rng: np.random.Generator) -> IntArray:
    """Return indices below num, ascending: all, or `most` random ones if there are more."""
    return np.arange(num) if num <= most else np.sort(rng.choice(num, most, replace=False))
