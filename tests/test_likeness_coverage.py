"""Coverage and evenness against exact chances."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from grace_store.likeness.coverage import (
    MAX_QUERIES,
    drawn,
    expected_share_touched,
    nearest_distance,
    occupancy_entropy,
    random_counts,
    random_interval,
    share_touched,
    vendi_score,
)
from tests.random_directions import directions


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


# ---------------------------------------------------------------- Vendi scores and nearest distances


@pytest.mark.parametrize("num", [1, 2, 7, 40])
def test_copies_are_one_and_orthogonal_samples_are_all_different(num):
    copies = np.repeat(directions(0, 1, 16), num, axis=0)
    assert vendi_score(copies) == pytest.approx(1)
    assert vendi_score(np.eye(40, dtype=np.float32)[:num]) == pytest.approx(num)
    twice = np.repeat(np.eye(40, dtype=np.float32)[:num], 3, axis=0)
    assert vendi_score(twice) == pytest.approx(num)


@pytest.mark.parametrize("num", [5, 8, 30])
def test_a_vendi_score_is_its_definition_whichever_matrix_is_smaller(num):
    vectors = directions(1, num, 8).astype(np.float64)
    eigenvalues = np.linalg.eigvals(vectors @ vectors.T / num).real
    entropy = -sum(x * math.log(x) for x in eigenvalues if x > 1e-12)
    assert vendi_score(vectors.astype(np.float32)) == pytest.approx(math.exp(entropy), rel=1e-5)


def test_two_samples_by_hand():
    # Eigenvalues of [[1, c], [c, 1]] / 2 are (1 + c) / 2 and (1 - c) / 2.
    c = 0.6
    vectors = np.array([[1, 0], [c, math.sqrt(1 - c**2)]], dtype=np.float32)
    entropy = -sum(x * math.log(x) for x in ((1 + c) / 2, (1 - c) / 2))
    assert vendi_score(vectors) == pytest.approx(math.exp(entropy), rel=1e-6)
    assert nearest_distance(vectors, np.random.default_rng(0)) == pytest.approx(1 - c, rel=1e-6)
    assert math.isnan(vendi_score(vectors[:0]))
    assert math.isnan(nearest_distance(vectors[:1], np.random.default_rng(0)))


def test_the_nearest_other_is_never_the_sample_itself():
    vectors = directions(2, 50)
    cosine = vectors.astype(np.float64) @ vectors.T
    np.fill_diagonal(cosine, -2)
    found = nearest_distance(vectors, np.random.default_rng(0))
    assert found == pytest.approx((1 - cosine.max(axis=1)).mean(), abs=1e-6)
    assert nearest_distance(np.repeat(vectors, 3, axis=0), np.random.default_rng(0)) == pytest.approx(0, abs=1e-6)


def test_of_many_samples_some_are_asked_for_and_all_are_looked_at():
    vectors = directions(3, 3000, 16, num_centres=50)
    cosine = vectors @ vectors.T
    np.fill_diagonal(cosine, -2)
    truth = 1 - cosine.max(axis=1)
    found = nearest_distance(vectors, np.random.default_rng(0))
    assert found == pytest.approx(truth.mean(), abs=4 * float(truth.std()) / math.sqrt(MAX_QUERIES))
    some = drawn(3000, 1024, np.random.default_rng(0))
    assert len(set(some.tolist())) == 1024
    assert drawn(5, 9, np.random.default_rng(0)).tolist() == list(range(5))
