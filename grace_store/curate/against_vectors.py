"""Samples of a store whose vectors point the same way as those of a benchmark's traces, by one model for both."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.base.errors import TargetMismatch, UnknownName
from grace_store.curate.signal_pairs import differences
from grace_store.read.descriptors import DescriptionReader, Descriptions
from grace_store.store.opened import SignalView, Store

ITEMS_AT_ONCE = 2048
_ROUNDING = 1e-6
"""By which the cosine of equal vectors may be below 1."""


class Nearby(NamedTuple):
    """Samples of a block that have an item near, each with the nearest."""

    sample: IntArray
    """Positions in the pool's plan."""
    item: IntArray
    """Positions in the benchmark's plan."""
    cosine: Float32Array


def comparable_signal(ours: SignalView, benchmark: Store) -> SignalView:
    """Return the benchmark's signal that belongs to one of the pool: by its name, or the only one that fits."""
    others = [benchmark.signal(name) for name in benchmark.signal_names]
    obstacles = {each.name: differences(ours.signal.spec, each.signal.spec, "benchmark") for each in others}
    fitting = [each for each in others if not obstacles[each.name]]
    if same := [each for each in fitting if each.name == ours.name]:
        return same[0]
    if len(fitting) > 1:
        names = ", ".join(each.name for each in fitting)
        raise UnknownName(f"Several signals of {benchmark.location} fit {ours.name} ({names}): leave all but one out.")
    if not fitting:
        nearest = min(obstacles, key=lambda name: len(obstacles[name]))
        raise TargetMismatch(
            f"The vectors of {ours.store.location} ({ours.name}) cannot be compared with those of {benchmark.location} "
            f"({nearest}), which another model or other settings made:\n  " + "\n  ".join(obstacles[nearest]) + "\n"
            "Extract the benchmark with the pool's model, or give its file in place of the store to compare texts only."
        )
    return fitting[0]


def nearest_items(pool: DescriptionReader, items: Descriptions, threshold: float) -> Iterator[Nearby]:
    """Yield block by block the samples whose nearest item has at least that cosine."""
    for block in pool.blocks():
        cosine = np.full(len(block), -1.0, dtype=np.float32)
        nearest = np.zeros(len(block), dtype=np.int64)
        for start in range(0, len(items), ITEMS_AT_ONCE):
            found = block.vector @ items.vector[start : start + ITEMS_AT_ONCE].T
            best = found.argmax(axis=1)
            larger = found[np.arange(len(block)), best]
            nearest = np.where(larger > cosine, start + best, nearest)
            cosine = np.maximum(cosine, larger)
        near = np.flatnonzero(cosine >= threshold - _ROUNDING)
        yield Nearby(block.sample[near], items.sample[nearest[near]], cosine[near].clip(-1, 1))
