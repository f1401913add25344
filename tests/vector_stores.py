"""Known vectors, in memory and in stores: what descriptors, duplicates and neighbours are tested on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace_store.base.settings import Storage
from grace_store.base.states import STATISTICS, Reason, SetAside, UnitSignals
from grace_store.likeness.search_base import Block
from grace_store.store.opened import Store
from grace_store.store.unit_writer import UnitWriter, complete_signal
from tests.stores import add_signal, spans_for, write_plan

BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class ArraySource:
    """Vectors to search that lie in memory."""

    vector: np.ndarray

    @property
    def num_points(self) -> int:
        return len(self.vector)

    @property
    def size(self) -> int:
        return int(self.vector.shape[1])

    def blocks(self) -> Iterator[Block]:
        for start in range(0, len(self.vector), BLOCK_ROWS):
            block = np.ascontiguousarray(self.vector[start : start + BLOCK_ROWS], dtype=np.float32)
            yield np.arange(start, start + len(block)), block

    def sampled(self, num_vectors: int, seed: int) -> Block:
        count = min(num_vectors, len(self.vector))
        chosen = np.sort(np.random.default_rng(seed).choice(len(self.vector), count, replace=False))
        return chosen, np.ascontiguousarray(self.vector[chosen], dtype=np.float32)


def traces(num_steps: Sequence[int], size: int = 8, seed: int = 0) -> list[np.ndarray]:
    """Return random vectors (K+1, size) of samples with so many steps, of all lengths."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(steps + 1, size)) * rng.uniform(0.1, 9, (steps + 1, 1))).astype(np.float32)
        for steps in num_steps
    ]


def vector_store(
    location: Path,
    samples: Sequence[np.ndarray],
    storage: Storage = "float32",
    *,
    samples_per_unit: int = 4,
    set_aside: Sequence[int] = (),
    units: Sequence[int] | None = None,
    num_tokens: Sequence[int] | None = None,
) -> Store:
    """Write samples' vectors, (K+1, d) each; without some units the store is not finished."""
    write_plan(location, [len(sample) - 1 for sample in samples], samples_per_unit)
    store = Store.open(location)
    view = add_signal(store, storage, samples[0].shape[1])
    writer = UnitWriter(view)
    chosen = range(store.plan.num_units) if units is None else units
    for unit in chosen:
        start, stop = store.plan.unit_range(unit)
        num_segments = [len(sample) for sample in samples[start:stop]]
        alive = np.repeat([place not in set_aside for place in range(start, stop)], num_segments)
        tokens = [1] * (stop - start) if num_tokens is None else num_tokens[start:stop]
        ones = np.ones(len(alive), np.float32)
        signals = UnitSignals.of_vectors(
            np.concatenate(samples[start:stop]) * alive[:, None],
            np.repeat(tokens, num_segments).astype(np.int32) * alive,
            stop - start,
            **{f"segment_{name}": ones * alive for name in STATISTICS},
            set_aside={place - start: SetAside(Reason.TOO_LONG) for place in set_aside if start <= place < stop},
        )
        writer.write(unit, signals, spans_for(view, unit))
    if len(chosen) == store.plan.num_units:
        complete_signal(view)
    return store


def at_cosine(vectors: np.ndarray, cosine: float, rng: np.random.Generator) -> np.ndarray:
    """Return a vector of length 1 at that cosine to each of some vectors of length 1."""
    noise = rng.normal(size=vectors.shape)
    noise -= (noise * vectors).sum(axis=1, keepdims=True) * vectors
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    return cosine * vectors + np.sqrt(1 - cosine**2) * noise


def brute_force_groups(num: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return for every point the lowest one that it is connected to, by walking from point to point."""
    around: dict[int, list[int]] = {}
    for one, other in pairs:
        around.setdefault(one, []).append(other)
        around.setdefault(other, []).append(one)
    lowest = list(range(num))
    for point in range(num):
        waiting = [point] if lowest[point] == point else []
        while waiting:
            for other in around.get(waiting.pop(), ()):
                if lowest[other] > point:
                    lowest[other] = point
                    waiting.append(other)
    return lowest
