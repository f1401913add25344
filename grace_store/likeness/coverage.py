"""How much of a pool a subset covers, by its counts in clusters and their sizes, and random ones would. NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.finding import Estimate

LOW, HIGH = 0.05, 0.95
"""An interval holds nine tenths of the random subsets."""


def random_interval(found: Sequence[float] | FloatArray) -> Estimate:
    """Return what random subsets of the same size have: their mean, and what 5 % are below and 5 % above."""
    values = np.asarray(found, dtype=np.float64)
    low, high = np.quantile(values, [LOW, HIGH]).tolist()
    return Estimate(value=float(values.mean()), low=low, high=high, num=len(values))


def share_touched(counts: IntArray) -> float:
    """Return the share of clusters that have at least one sample.

    >>> share_touched(np.array([3, 0, 1, 0]))
    0.5
    """
    return float(np.count_nonzero(counts) / len(counts)) if len(counts) else math.nan


def occupancy_entropy(counts: IntArray) -> float:
    """Return the entropy of how samples fall into clusters, over its largest, log K: 1 is even, 0 one cluster.

    >>> occupancy_entropy(np.array([2, 2, 0, 0]))
    0.5
    """
    total = counts.sum()
    if len(counts) < 2 or not total:
        return math.nan
    share = counts[counts > 0] / total
    return float(-(share * np.log(share)).sum() / math.log(len(counts))) + 0.0


def expected_share_touched(sizes: IntArray, count: int) -> float:
    """Return the mean share of clusters that a random subset of count samples touches, exactly.

    A cluster of n out of N is missed with the chance C(N - n, count) / C(N, count).

    >>> expected_share_touched(np.array([1, 1]), 1)
    0.5
    """
    if not len(sizes):
        return math.nan
    total, before = int(sizes.sum()), np.arange(int(sizes.max()))
    # The chance to miss n samples of a cluster: one after the other, each among those that are left.
    missed = np.cumprod([1.0, *((total - count - before) / (total - before)).clip(min=0.0)])
    return float(1.0 - missed[sizes].mean())


def random_counts(sizes: IntArray, count: int, num_subsets: int, rng: np.random.Generator) -> IntArray:
    """Return how many of count samples drawn without replacement fall into each cluster, (num_subsets, K)."""
    return rng.multivariate_hypergeometric(sizes, count, size=num_subsets, method="marginals")
