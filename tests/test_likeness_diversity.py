"""Clusters, coverage, Vendi scores and greedy orders on arrays, against definitions, exact chances and slow loops."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.base.errors import SettingError
from grace_store.likeness.clusters import cluster_vectors, default_num_clusters, make_cells
from grace_store.likeness.coverage import (
    RandomInterval,
    expected_share_touched,
    occupancy_entropy,
    random_counts,
    share_touched,
)
from grace_store.likeness.greedy import Trade, cell_similarity, greedy_orders
from grace_store.likeness.spread import MAX_QUERIES, drawn, nearest_distance, vendi_score
from tests.test_select_diversity import NAIVE


def directions(seed: int, num: int, size: int = 8, num_centres: int = 6, noise: float = 0.15) -> np.ndarray:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(num_centres, size))[rng.integers(0, num_centres, num)]
    vectors = vectors + noise * rng.normal(size=(num, size))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


# ---------------------------------------------------------------- Vendi score, nearest distance


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


# ---------------------------------------------------------------- coverage


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
    interval = RandomInterval.of(shares)
    assert interval.low <= interval.mean <= interval.high
    assert np.mean((shares >= interval.low) & (shares <= interval.high)) >= 0.9


def test_evenness_by_hand():
    assert occupancy_entropy(np.array([5, 5, 5, 5])) == pytest.approx(1)
    assert occupancy_entropy(np.array([7, 0, 0])) == 0
    assert occupancy_entropy(np.array([3, 1])) == pytest.approx(-(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)))
    assert math.isnan(occupancy_entropy(np.array([4])))
    assert math.isnan(occupancy_entropy(np.array([0, 0])))
    assert math.isnan(share_touched(np.zeros(0, np.int64)))


# ---------------------------------------------------------------- clusters


def test_planted_clusters_are_found():
    rng = np.random.default_rng(0)
    planted = rng.integers(0, 6, 600)
    vectors = np.eye(6, 20)[planted] + 0.05 * rng.normal(size=(600, 20))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    found = cluster_vectors(vectors, 24)
    # Every cluster lies within a planted one.
    assert len({(a, b) for a, b in zip(found.label.tolist(), planted.tolist(), strict=True)}) == found.num_clusters
    assert found.size.sum() == 600
    centre = np.stack([vectors[found.label == each].mean(axis=0) for each in range(found.num_clusters)])
    centre /= np.linalg.norm(centre, axis=1, keepdims=True)
    np.testing.assert_allclose(found.similarity, (vectors * centre[found.label]).sum(axis=1), atol=0.02)


CLUSTERED = """
import sys, hashlib, faiss, numpy as np
from grace_store.likeness.clusters import cluster_vectors, make_cells
from grace_store.likeness.greedy import Trade, greedy_orders
rng = np.random.default_rng(5)
vectors = rng.normal(size=(9000, 48)).astype(np.float32)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
threads = int(sys.argv[1])
faiss.omp_set_num_threads(threads)
found = cluster_vectors(vectors, 60, seed=3, threads=threads)
cell = make_cells(vectors, seed=1, threads=threads, max_size=800)
orders = greedy_orders(vectors, np.arange(9000), cell, [Trade("facility", 0.5), Trade("mmr", 0.5)])
arrays = [found.label, found.similarity, cell, *orders]
print(hashlib.sha256(b"".join(each.tobytes() for each in arrays)).hexdigest())
"""


def test_clusters_and_orders_do_not_depend_on_the_number_of_threads():
    said = set()
    for threads in ("1", "2", "5"):
        environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        command = [sys.executable, "-c", CLUSTERED, threads]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        said.add(done.stdout)
    assert len(said) == 1


def test_the_seed_matters_and_faiss_keeps_its_threads():
    vectors = directions(0, 500, noise=0.8)
    before = faiss.omp_get_max_threads()
    first, again, other = (cluster_vectors(vectors, 20, seed=seed).label.tolist() for seed in (0, 0, 1))
    assert first == again != other
    assert faiss.omp_get_max_threads() == before


def test_samples_that_point_nowhere_are_in_no_cluster():
    vectors = directions(0, 30)
    vectors[[3, 9]] = 0
    found = cluster_vectors(vectors, 4)
    assert np.flatnonzero(found.label < 0).tolist() == [3, 9]
    assert found.similarity[[3, 9]].tolist() == [0, 0]
    nothing = cluster_vectors(np.zeros((3, 4), np.float32))
    assert (nothing.num_clusters, nothing.label.tolist()) == (0, [-1, -1, -1])
    assert cluster_vectors(np.zeros((0, 4), np.float32)).num_clusters == 0


def test_there_are_no_more_clusters_than_different_directions():
    vectors = np.repeat(np.eye(3, dtype=np.float32), 10, axis=0)
    found = cluster_vectors(vectors, 12)
    assert found.num_clusters == 3
    assert found.size.tolist() == [10, 10, 10]
    assert cluster_vectors(vectors[:1]).num_clusters == 1
    with pytest.raises(SettingError, match="0 clusters are too few"):
        cluster_vectors(vectors, 0)


@given(num=st.integers(1, 10**7))
def test_the_usual_number_of_clusters_goes_with_the_samples(num):
    assert 1 <= default_num_clusters(num) <= max(1, num // 8)
    assert default_num_clusters(num) <= default_num_clusters(num + 1000)


# ---------------------------------------------------------------- cells and greedy orders over them


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), num=st.integers(1, 300), max_size=st.integers(3, 60), copies=st.booleans())
def test_cells_hold_every_sample_once_and_are_never_too_large(seed, num, max_size, copies):
    vectors = directions(seed, num, num_centres=1 if copies else 6, noise=0.0 if copies else 0.3)
    cell = make_cells(vectors, seed=seed, threads=1, max_size=max_size)
    sizes = np.bincount(cell)
    assert sizes.sum() == num
    assert sizes.min() > 0
    assert sizes.max() <= max_size
    if num <= max_size:
        assert sizes.tolist() == [num]


def test_samples_that_point_nowhere_fit_into_cells_too():
    assert np.bincount(make_cells(np.zeros((50, 4), np.float32), max_size=20)).max() <= 20


@pytest.mark.parametrize("method", ["facility", "mmr"])
def test_one_cell_is_the_greedy_order_over_all_pairs(method):
    vectors = directions(7, 60)
    at = np.random.default_rng(0).permutation(60)
    (order,) = greedy_orders(vectors, at, np.zeros(60, np.int64), [Trade(method, 0.4)])
    similarity = cell_similarity(vectors[at])
    assert order.tolist() == NAIVE[method](similarity, 1 - np.arange(60) / 60, 0.4)[0]
    np.testing.assert_allclose(similarity, np.clip(vectors[at] @ vectors[at].T, 0, 1), atol=1e-6)


@pytest.mark.parametrize("method", ["facility", "mmr"])
def test_orders_over_cells_are_nested_and_hold_every_sample_once(method):
    vectors = directions(8, 500)
    cell = make_cells(vectors, max_size=100)
    orders = greedy_orders(vectors, np.arange(500), cell, [Trade(method, weight) for weight in (0.0, 0.5, 1.0)])
    assert all(sorted(order.tolist()) == list(range(500)) for order in orders)
    assert orders[0].tolist() == list(range(500))
    assert orders[1].tolist() != orders[2].tolist()
