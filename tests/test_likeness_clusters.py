"""Clusters and cells: planted ones are found, in any number of threads, and nothing is lost."""

from __future__ import annotations

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
from tests.random_directions import directions

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
from grace_store.likeness.greedy import greedy_orders
rng = np.random.default_rng(5)
vectors = rng.normal(size=(9000, 48)).astype(np.float32)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
threads = int(sys.argv[1])
faiss.omp_set_num_threads(threads)
found = cluster_vectors(vectors, 60, seed=3, threads=threads)
cell = make_cells(vectors, seed=1, threads=threads, max_size=800)
orders = greedy_orders(vectors, np.arange(9000), cell, [("facility", 0.5), ("mmr", 0.5)])
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
