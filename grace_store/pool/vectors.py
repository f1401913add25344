"""Read the vectors of a unit, of its segments or of its samples, held against the commit; memory is that of a unit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import Array, BoolArray, Float32Array, Int32Array, IntArray
from grace_store.base.settings import default_threads
from grace_store.base.states import STATE_DONE
from grace_store.pool.blocks import CommittedSignals
from grace_store.pool.parallel import Mapper, Threads
from grace_store.store.opened import SignalView

MAX_BYTES_AT_ONCE = 1 << 30
"""Decoded vectors that all threads together may hold."""


@dataclass(frozen=True, slots=True)
class UnitVectors:
    """One unit of one signal as stored: all its samples, done or not, and the vectors of their segments or of them."""

    view: SignalView
    arrays: Mapping[str, Array]
    """The unit's chunks, padding included."""

    @property
    def done(self) -> BoolArray:
        """(n,) whether each sample has its vectors, or its vector."""
        return np.asarray(self.arrays["sample_state"] == STATE_DONE)

    @property
    def num_tokens(self) -> Int32Array:
        """Tokens of each segment, or of each response where a sample has one vector."""
        return self.arrays[f"{self.view.vectors_of}_num_tokens"]

    @property
    def length(self) -> Float32Array:
        """(n,) length of each vector before it was normalised, if it was; where a sample has one vector."""
        return self.arrays["sample_norm"]

    def decoded(self, rows: IntArray | BoolArray | slice = slice(None)) -> Float32Array:
        """Return vectors as float32: all of the unit, or some; zero where not done."""
        return self.view.decode(self.arrays, rows)


RESPONSE_ARRAYS = ("sample_state", "sample_num_tokens", "sample_loss")


@dataclass(slots=True)
class VectorReader(CommittedSignals):
    """Reads units of some signals."""

    def __post_init__(self) -> None:
        CommittedSignals.__post_init__(self)
        for view in self.views:
            for array in view.arrays:
                view.array(array.name)  # opened here, not by several threads at once

    @property
    def dimension(self) -> int:
        return self.views[0].vector_size

    def done(self, signal: int, unit: int) -> BoolArray:
        """Return which samples of a unit a signal, by its number, has."""
        if unit not in self.committed[signal]:
            start, stop = self.store.plan.unit_range(unit)
            return np.zeros(stop - start, dtype=np.bool_)
        return np.asarray(self.views[signal].unit_array("sample_state", unit) == STATE_DONE)

    def read(self, signal: int, unit: int, more: Sequence[str] = ()) -> UnitVectors | None:
        """Return a unit of a signal, by its number, with more of its arrays if wanted; None if it is not committed."""
        if unit not in self.committed[signal]:
            return None
        view = self.views[signal]
        names = ["sample_state", f"{view.vectors_of}_num_tokens", *view.vector_arrays, *more]
        names += ["sample_loss", "sample_norm"] if view.per_sample else []
        return UnitVectors(view, view.unit_arrays(unit, list(dict.fromkeys(names))))

    def response(self, signal: int, unit: int) -> tuple[BoolArray, Int32Array, Float32Array]:
        """Return what a signal, by its number, knows of all responses of a unit: is it done, its tokens, its mean loss.

        None is done if the unit is not committed.
        """
        if unit not in self.committed[signal]:
            done = self.done(signal, unit)
            return done, np.zeros(len(done), np.int32), np.zeros(len(done), np.float32)
        state, num_tokens, loss = self.views[signal].unit_arrays(unit, RESPONSE_ARRAYS).values()
        return np.asarray(state == STATE_DONE), num_tokens, loss

    def threads(self, wanted: Threads) -> Threads:
        """Return how many blocks may be under way here, each with a unit of vectors in memory as stored and decoded."""
        if isinstance(wanted, Mapper):
            return wanted
        plan = self.store.plan
        rows = plan.samples_per_unit if self.views[0].per_sample else plan.rows_per_unit
        return max(1, min(wanted or default_threads(), MAX_BYTES_AT_ONCE // (rows * self.dimension * 8)))
