"""Stores whose answers lie in planted clusters, the samples of a few clusters having the largest values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace_store.base.states import UnitSignals
from grace_store.store.opened import Store
from grace_store.store.unit_writer import UnitWriter, complete_signal
from tests.stores import add_signal, spans_for, write_plan

VECTOR_SIZE = 24
SAMPLES_PER_UNIT = 64


@dataclass(frozen=True)
class PlantedStore:
    """A finished store; value is what GRACE gives each sample, to float32's digits."""

    store: Store
    cluster: np.ndarray
    value: np.ndarray


def planted_store(
    folder: Path, *, num_clusters: int = 12, per_cluster: int = 20, noise: float = 0.05, zero: tuple[int, ...] = ()
) -> PlantedStore:
    """Write samples of one step each, so that a value is the cosine of step and answer, which is chosen.

    Samples of cluster c have values around 0.9 - 0.05 c. Those of zero have an answer of zeros, and so the value 0.
    """
    rng = np.random.default_rng(0)
    num = num_clusters * per_cluster
    cluster = rng.permutation(np.repeat(np.arange(num_clusters), per_cluster))
    centres = np.linalg.qr(rng.normal(size=(VECTOR_SIZE, num_clusters)))[0].T
    answer = centres[cluster] + noise * rng.normal(size=(num, VECTOR_SIZE))
    answer /= np.linalg.norm(answer, axis=1, keepdims=True)
    value = 0.9 - 0.05 * cluster + 0.02 * rng.random(num)
    aside = rng.normal(size=(num, VECTOR_SIZE))
    aside -= (aside * answer).sum(axis=1, keepdims=True) * answer
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    step = value[:, None] * answer + np.sqrt(1 - value**2)[:, None] * aside
    answer[list(zero)], value[list(zero)] = 0.0, 0.0
    write_plan(folder / "planted.zarr", [1] * num, SAMPLES_PER_UNIT)
    store = Store.open(folder / "planted.zarr")
    write_vectors(store, np.stack([step, answer], axis=1).astype(np.float32))
    return PlantedStore(store, cluster, value)


def write_vectors(store: Store, vectors: np.ndarray) -> None:
    """Write the vectors (N, 2, size) of samples with one step each."""
    view = add_signal(store, "float32", vectors.shape[2])
    writer = UnitWriter(view)
    for unit in range(store.plan.num_units):
        start, stop = store.plan.unit_range(unit)
        num_segments = 2 * (stop - start)
        signals = UnitSignals.of_vectors(
            vectors[start:stop].reshape(num_segments, -1),
            np.full(num_segments, 5, np.int32),
            stop - start,
            segment_loss=np.ones(num_segments, np.float32),
            segment_entropy=np.ones(num_segments, np.float32),
        )
        writer.write(unit, signals, spans_for(view, unit))
    complete_signal(view)
