"""Which planned samples a warm-up trains on, and in which order: functions of the plan and a seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import IntArray
from grace_store.model.lora.recipe import SampleRef, WarmupSubset
from grace_store.store.opened import Store
from grace_store.values.methods.random import random_values
from grace_store.values.ranking import budget, rank

_STREAM = 0x7761726D7570
"""Added to the seed, so that a random selection with the same seed does not take the warm-up's own samples."""


@dataclass(frozen=True, slots=True)
class ChosenSamples:
    """A subset and its samples' positions in the plan, both ascending."""

    document: WarmupSubset
    samples: IntArray
    heldout: IntArray


def choose_samples(store: Store, ratio: str, seed: int, num_heldout: int) -> ChosenSamples:
    """Return a random ceil(ratio N) of the planned samples, and the next few in the same random order to hold out.

    A sample's place in that order depends on the seed and its row only.
    """
    row = store.column("sample_row").astype(np.int64)
    order = rank(random_values(seed + _STREAM, row), row)
    count = budget(ratio, len(row))
    samples, heldout = np.sort(order[:count]), np.sort(order[count : count + num_heldout])
    ids = store.column("sample_id")

    def refs(positions: IntArray) -> tuple[SampleRef, ...]:
        return tuple(SampleRef(sample_id=str(ids[i]), row=int(row[i])) for i in positions.tolist())

    document = WarmupSubset(num_planned=len(row), ratio=ratio, seed=seed, samples=refs(samples), heldout=refs(heldout))
    return ChosenSamples(document, samples, heldout)


def order_steps(rows: Sequence[int], seed: int, batch_size: int, num_epochs: int) -> list[list[int]]:
    """Return the samples of each step, by position in rows: every epoch all of them, in a random order of its own.

    >>> order_steps([3, 4, 9], seed=0, batch_size=2, num_epochs=1)
    [[2, 0], [1]]
    """
    row = np.asarray(rows, dtype=np.int64)
    steps = []
    for epoch in range(1, num_epochs + 1):
        order = rank(random_values(seed + _STREAM + epoch, row), row).tolist()
        steps += [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    return steps
