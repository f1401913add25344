"""A pool of samples as points: their descriptors, and where the samples of a ranking or subset stand among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from grace_store.artifacts.notes import PointsNote
from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import Float32Array, IntArray
from grace_store.base.errors import DataError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.text import counted
from grace_store.likeness.points import descriptor_named
from grace_store.read.descriptors import Descriptions, DescriptorSpec, describe_samples
from grace_store.store.opened import Store


@dataclass(frozen=True, slots=True)
class Pool:
    """Samples of one signal in the order of the plan, each with a vector of length 1 or of zeros."""

    store: Store
    described: Descriptions

    @property
    def vector(self) -> Float32Array:
        return cast(Float32Array, self.described.vector)

    @property
    def note(self) -> PointsNote:
        """Which vectors these are."""
        return PointsNote(**self.described.made_by)

    def __len__(self) -> int:
        return len(self.described)

    def places_of(self, row: IntArray, what: str) -> IntArray:
        """Return where the samples with these dataset rows stand in the pool; all must be there."""
        place = np.searchsorted(self.described.row, row).clip(max=max(len(self) - 1, 0))
        missing = self.described.row[place] != row if len(self) else np.ones(len(row), dtype=np.bool_)
        if missing.any():
            raise DataError(
                f"{int(missing.sum())} of the {len(row)} samples of {what} have no vector in signal "
                f"{self.note.signal.name!r} of {self.store.location}. Name another --signal, or extract them."
            )
        return place


def open_pool(
    store: Store, *, signal: str | None = None, descriptor: str | None = None, scores: ScoreTable | None = None,
    samples: IntArray | None = None, partial: bool = False, threads: int | None = None, listener: Listener = ignore,
) -> Pool:  # fmt: skip
    """Describe all done samples of a signal, or some (positions in the plan). The descriptor weighted needs scores."""
    view = store.signal(signal)
    chosen = None if descriptor is None else descriptor_named(descriptor)
    weights = scores.with_steps() if chosen == "weighted" and scores is not None else None
    num_samples = store.plan.num_samples if samples is None else len(samples)
    listener(Note(f"Reading the vectors of {counted(num_samples, 'sample')}, signal {view.name}."))
    spec = DescriptorSpec(view.name, chosen)
    found = describe_samples(
        store, spec, scores=weights, samples=samples, partial=partial, threads=threads, listener=listener
    )
    return Pool(store, found)
