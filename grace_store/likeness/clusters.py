"""K-means over descriptors: clusters that measure coverage, and cells for greedy orders. Knows vectors, no samples.

Directions are clustered (spherical k-means) from a seed. The results do not depend on the number of threads: one thread
learns the centroids, and labels are found in blocks of a fixed size, each by one thread.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import faiss
import numpy as np

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.base.errors import SettingError
from grace_store.base.settings import default_threads

MAX_CLUSTERS = 4096
SAMPLES_PER_CLUSTER = 8
"""Smallest mean size of clusters by default."""
TRAINING_SAMPLES = 64
"""Most samples per cluster that centroids are learnt from, drawn by the seed."""
NUM_ITERATIONS = 15
SAMPLES_PER_BLOCK = 4096
MAX_CELL = 4096
"""Most samples with all their similarities in memory."""
_NEW_SEED = 0x9E3779B1


@dataclass(frozen=True, slots=True)
class Clusters:
    """The cluster of every sample. No cluster is empty."""

    label: IntArray
    """Numbers of clusters from 0; -1 for a vector of zeros."""
    similarity: Float32Array
    """Cosine of every sample with the centre of its cluster; 0 for a vector of zeros."""
    size: IntArray

    @property
    def num_clusters(self) -> int:
        return len(self.size)


def default_num_clusters(num_samples: int) -> int:
    """Return 2 sqrt(N), or a smaller number if clusters would be very small.

    >>> [default_num_clusters(n) for n in (5, 200, 7500, 100_000, 10_000_000)]
    [1, 25, 173, 632, 4096]
    """
    return max(1, min(round(2 * math.sqrt(num_samples)), num_samples // SAMPLES_PER_CLUSTER, MAX_CLUSTERS))


def cluster_vectors(
    vectors: Float32Array, num_clusters: int | None = None, *, seed: int = 0, threads: int | None = None
) -> Clusters:
    """Cluster vectors (n, m) of length 1, or zeros, by direction; the result has fewer clusters if some are empty."""
    alive = np.flatnonzero(vectors.any(axis=1))
    if num_clusters is None:
        num_clusters = default_num_clusters(len(alive))
    if num_clusters < 1:
        raise SettingError(f"{num_clusters} clusters are too few: at least 1 is needed")
    label, similarity = np.full(len(vectors), -1, dtype=np.int64), np.zeros(len(vectors), dtype=np.float32)
    if len(alive):
        points = vectors if len(alive) == len(vectors) else vectors[alive]
        centres = learn_centres(points, min(num_clusters, len(alive)), seed)
        nearest, similarity[alive] = _assign(points, centres, threads)
        label[alive] = np.unique(nearest, return_inverse=True)[1]
    return Clusters(label, similarity, np.bincount(label[alive]))


def learn_centres(
    points: Float32Array, num_clusters: int, seed: int, num_iterations: int = NUM_ITERATIONS
) -> Float32Array:
    """Return the centres of clusters of points, of length 1; the same for every number of threads."""
    if num_clusters == 1:
        mean = points.mean(axis=0, dtype=np.float64)
        return np.asarray(mean / (np.linalg.norm(mean) or 1.0), dtype=np.float32)[None]
    limits = {"min_points_per_centroid": 1, "max_points_per_centroid": TRAINING_SAMPLES, "seed": seed % 2**31}
    kmeans = faiss.Kmeans(points.shape[1], num_clusters, niter=num_iterations, spherical=True, **limits)
    with faiss_threads(1):  # several threads may sum in another order
        kmeans.train(np.ascontiguousarray(points, dtype=np.float32))
    return np.asarray(kmeans.centroids, dtype=np.float32)


def _assign(points: Float32Array, centroids: Float32Array, threads: int | None) -> tuple[IntArray, Float32Array]:
    index = faiss.IndexFlatIP(points.shape[1])
    index.add(centroids)

    def search(start: int) -> tuple[Float32Array, IntArray]:
        faiss.omp_set_num_threads(1)  # for calls of this thread
        found: tuple[Float32Array, IntArray] = index.search(points[start : start + SAMPLES_PER_BLOCK], 1)
        return found

    with ThreadPoolExecutor(threads or default_threads()) as pool:
        found = list(pool.map(search, range(0, len(points), SAMPLES_PER_BLOCK)))
    label = np.concatenate([labels[:, 0] for _, labels in found])
    return label, np.concatenate([cosines[:, 0] for cosines, _ in found])


def cells_in_order(centre: Float32Array, seed: int) -> IntArray:
    """Return the place of every cell in an order in which near cells mostly stay together."""
    if len(centre) < SAMPLES_PER_CLUSTER:
        return np.arange(len(centre))
    found = cluster_vectors(centre / np.linalg.norm(centre, axis=1, keepdims=True), seed=seed, threads=1)
    place = np.empty(len(centre), dtype=np.int64)
    place[np.argsort(found.label, kind="stable")] = np.arange(len(centre))
    return place


def make_cells(
    vectors: Float32Array, *, seed: int = 0, threads: int | None = None, max_size: int = MAX_CELL
) -> IntArray:
    """Return the cell of every sample, (n,): clusters of at most max_size samples; one cell if all samples fit.

    A cluster that is too large is clustered again; samples with the same direction are split in the given order.
    Vectors of zeros, which are similar to none, go to the first cluster.
    """
    cell = np.zeros(len(vectors), dtype=np.int64)
    waiting, num_cells = [np.arange(len(vectors))], 0
    while waiting:
        if len(members := waiting.pop()) <= max_size:
            cell[members] = num_cells
            num_cells += 1
            continue
        seed += _NEW_SEED
        found = cluster_vectors(vectors[members], -(-2 * len(members) // max_size), seed=seed, threads=threads)
        label = found.label.clip(0)
        if found.num_clusters <= 1:
            label = np.arange(len(members)) // max_size
        waiting += [members[label == each] for each in range(int(label.max()) + 1)]
    return cell


@contextmanager
def faiss_threads(count: int) -> Iterator[None]:
    """Set the number of threads that faiss uses for calls of this thread, and restore it afterwards."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
