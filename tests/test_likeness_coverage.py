"""Coverage and evenness against exact chances."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from grace_store.likeness.coverage import (
    expected_share_touched,
    occupancy_entropy,
    random_counts,
    random_interval,
    share_touched,
)


def test_expected_coverage_is_the_mean_over_every_subset():
    cluster = np.array([0, 0, 0, 1, 1, 2, 3])
    for count in range(1, len(cluster) + 1):
        shares = [len(set(some)) / 4 for some in itertools.combinations(cluster.tolist(), count)]
        assert expected_share_touched(np.bincount(cluster), count) == pytest.approx(np.mean(shares), abs=1e-12)


def test_random_subsets_have_the_coverage_that_is_expected():
    sizes = np.array([400, 100, 30, 10, 5, 1, 1])
    counts = random_counts(sizes, 50, 4000, np.random.default_rng(0))
    assert (counts.sum(axis=1) == 50).all()
    assert (counts <= sizes).all()
    shares = np.array([share_touched(each) for each in counts])
    error = shares.std() / math.sqrt(len(shares))
    assert shares.mean() == pytest.approx(expected_share_touched(sizes, 50), abs=4 * error)
    interval = random_interval(shares)
    assert interval.low <= interval.value <= interval.high
    assert np.mean((shares >= interval.low) & (shares <= interval.high)) >= 0.9


def test_evenness_by_hand():
    assert occupancy_entropy(np.array([5, 5, 5, 5])) == pytest.approx(1)
    assert occupancy_entropy(np.array([7, 0, 0])) == 0
    assert occupancy_entropy(np.array([3, 1])) == pytest.approx(-(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)))
    assert math.isnan(occupancy_entropy(np.array([4])))
    assert math.isnan(occupancy_entropy(np.array([0, 0])))
    assert math.isnan(share_touched(np.zeros(0, np.int64)))
