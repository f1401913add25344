"""Go through signals with one vector a sample: one unit of one signal at a time, so memory is that of a unit.

Blocks are those of ``blocks``: one chunk of the plan's arrays, however many units that is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from grace_store.base.arrays import Array, BoolArray, Float32Array, Int32Array
from grace_store.base.errors import Corrupt
from grace_store.base.settings import default_threads
from grace_store.base.states import STATE_DONE
from grace_store.read.blocks import CommittedSignals, Mapper, Threads
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import SignalView

MAX_BYTES_AT_ONCE = 1 << 30
"""Decoded vectors that all threads together may hold."""


@dataclass(frozen=True, slots=True)
class UnitVectors:
    """One unit of one signal, all its samples, done or not."""

    done: BoolArray
    vectors: Float32Array
    """(n, D); zero where not done."""
    length: Float32Array
    """Of each vector before it was normalised, if it was."""
    num_tokens: Int32Array
    """Tokens in each response."""


class ResponseTotals(NamedTuple):
    """What is known of a unit's responses, all its samples, without their vectors."""

    done: BoolArray
    num_tokens: Int32Array
    loss: Float32Array
    """Mean over the response's tokens."""


@dataclass(slots=True)
class VectorReader(CommittedSignals):
    """Reads units of signals that have one vector a sample."""

    def __post_init__(self) -> None:
        CommittedSignals.__post_init__(self)
        for view in self.views:
            for array in view.arrays:
                view.array(array.name)  # opened here, not by several threads at once

    @property
    def dimension(self) -> int:
        return self.views[0].vector_size

    def units(self, start: int) -> range:
        """Return the units of the block that begins at a sample."""
        plan = self.store.plan
        stop = min(start + SAMPLES_PER_CHUNK, plan.num_samples)
        return range(start // plan.samples_per_unit, -(-stop // plan.samples_per_unit))

    def done(self, signal: int, unit: int) -> BoolArray:
        """Return which samples of a unit a signal, by its number, has."""
        start, stop = self.store.plan.unit_range(unit)
        if unit not in self.committed[signal]:
            return np.zeros(stop - start, dtype=np.bool_)
        state: Array = self.views[signal].unit_array("sample_state", unit)
        return np.asarray(state == STATE_DONE)

    def read(self, signal: int, unit: int) -> UnitVectors | None:
        """Return a unit of a signal, by its number; None if it is not committed."""
        if unit not in self.committed[signal]:
            return None
        view = self.views[signal]
        _check_chunks(view, unit)
        return UnitVectors(
            self.done(signal, unit),
            view.sample_vectors(unit),
            view.unit_array("sample_norm", unit),
            view.unit_array("sample_num_tokens", unit),
        )

    def response(self, signal: int, unit: int) -> ResponseTotals:
        """Return what a signal, by its number, knows of a unit's responses; none is done if it is not committed."""
        done = self.done(signal, unit)
        if unit not in self.committed[signal]:
            return ResponseTotals(done, np.zeros(len(done), np.int32), np.zeros(len(done), np.float32))
        view = self.views[signal]
        _check_chunks(view, unit, ("sample_state", "sample_num_tokens", "sample_loss"))
        return ResponseTotals(done, view.unit_array("sample_num_tokens", unit), view.unit_array("sample_loss", unit))

    def threads(self, wanted: Threads) -> Threads:
        """Return how many blocks may be under way here, each with a unit of vectors in memory as stored and decoded."""
        if isinstance(wanted, Mapper):
            return wanted
        unit_bytes = self.store.plan.samples_per_unit * self.dimension * 8
        return max(1, min(wanted or default_threads(), MAX_BYTES_AT_ONCE // unit_bytes))


def _check_chunks(view: SignalView, unit: int, arrays: Container[str] | None = None) -> None:
    """Raise Corrupt unless a unit's chunks, of some arrays or of all, are those that were committed.

    A chunk that was copied from another unit has a good checksum of its own.
    """
    chunks = view.commit(unit).chunks
    names = [name for name in chunks if arrays is None or name.partition("/")[0] in arrays]
    for name, raw in zip(names, view.store.backend.read_all(f"{view.key}/{name}" for name in names), strict=True):
        if raw is None or hashlib.sha256(raw).hexdigest() != chunks[name].sha256:
            raise Corrupt(
                f"{view.store.location}: {view.key}/{name} is missing or not the chunk that was committed. Run "
                "`grace-store verify --deep`, then `grace-store repair`."
            )
