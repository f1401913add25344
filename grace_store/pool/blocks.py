"""Go through the samples of a store block by block: Grams and token counts, for one signal or several side by side.

A block is one chunk of the plan's arrays, so every chunk of the store is read once; memory does not grow with the
number of samples. Never reads a vector.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import Array, BoolArray, Float32Array, Int32Array, IntArray, Places, Positions, Rows
from grace_store.base.errors import SettingError, Unfinished
from grace_store.base.events import Listener, Progressed, ignore
from grace_store.base.states import STATE_DONE
from grace_store.base.text import counted
from grace_store.pool.parallel import Threads, map_ordered
from grace_store.store.array_group import Digests
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import SignalView, Store
from grace_store.store.storages import num_packed

FoundT = TypeVar("FoundT")


@dataclass(frozen=True, slots=True)
class SampleGrams:
    """What scoring needs of some done samples, in order; Grams and segments lie flat, K + 1 segments to a sample."""

    sample: Positions
    num_steps: IntArray
    gram: Float32Array
    """Packed as in the store; empty unless asked for."""
    num_tokens: Int32Array
    loss: Float32Array
    """Mean loss of each segment; empty unless asked for."""


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Samples of one block that are done in at least one of the signals, in the order of the plan."""

    sample: Positions
    row: Rows
    num_steps: IntArray
    num_tokens: IntArray
    """Tokens in the response, (n,)."""
    segment_tokens: Int32Array
    """Tokens in each segment, flat; where signals tokenise differently, of the first one that has the sample."""
    signals: tuple[SampleGrams, ...]
    places: tuple[Places | None, ...]
    """For each signal, where its samples stand among those of the block; None if it has all of them."""

    def __len__(self) -> int:
        return len(self.sample)


class HasSamples(Protocol):
    """Anything that holds some samples of one block."""

    @property
    def sample(self) -> Positions: ...


@dataclass(slots=True)
class CommittedSignals:
    """Some signals of a store, and which of their units were done when it was opened. Threads may share it."""

    store: Store
    names: tuple[str, ...]
    wanted: BoolArray | None = None
    """(N,) which samples of the plan are asked for; None for all."""
    views: list[SignalView] = field(init=False)
    committed: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.views = [self.store.signal(name) for name in self.names]
        self.committed = [set(view.committed_units()) for view in self.views]
        for name in ("row", "num_steps", "id", "flags"):
            self.store.column(f"sample_{name}", 0, 0)  # opened here, not by several threads at once

    @property
    def is_partial(self) -> bool:
        return any(len(units) < self.store.plan.num_units for units in self.committed)

    def check_complete(self, *, partial: bool = False, may_be_partial: bool = True) -> None:
        """Raise Unfinished if units are missing, unless that is wanted; say how to want it where one may."""
        num_units = self.store.plan.num_units
        for view, units in zip(self.views, self.committed, strict=True):
            if len(units) < num_units and not partial:
                end = ", or give --partial to score what is there." if may_be_partial else " first."
                found = f"{view.store.location} has {len(units)} of {counted(num_units, 'unit')}"
                remedy = f"Run the same `grace-store extract` to finish it{end}"
                raise Unfinished(f"Signal {view.name!r} of {found}. {remedy}")

    def walk(
        self, work: Callable[[int], FoundT], threads: Threads = None, listener: Listener = ignore
    ) -> Iterator[FoundT]:
        """Yield what work makes of every block, given where it begins, in order; a few are under way at a time.

        The listener is told after each block how far the walk has come.
        """
        num_samples = self.store.plan.num_samples
        starts = range(0, num_samples, SAMPLES_PER_CHUNK)
        for start, found in zip(starts, map_ordered(work, starts, threads), strict=True):
            done = self.stop(start)
            listener(Progressed(f"Scoring: {done} of {num_samples} samples.", done, num_samples))
            yield found

    def stop(self, start: int) -> int:
        """Return where the block that begins at a sample ends."""
        return min(start + SAMPLES_PER_CHUNK, self.store.plan.num_samples)

    def units(self, start: int) -> range:
        """Return the units of the block that begins at a sample."""
        plan = self.store.plan
        return range(plan.unit_of(start), -(-self.stop(start) // plan.samples_per_unit))

    def ids(self, block: HasSamples) -> Array:
        """Return the ids of a block's samples."""
        start = self._start_of(block)
        ids = self.store.column("sample_id", start, self.stop(start))
        return ids if len(block.sample) == len(ids) else ids[block.sample - start]

    def text_flags(self, block: HasSamples) -> Array:
        """Return the flags of the texts of a block's samples, as bits of Flag."""
        start = self._start_of(block)
        return self.store.text_flags(start, self.stop(start))[block.sample - start]

    def _start_of(self, block: HasSamples) -> int:
        return int(block.sample[0]) // SAMPLES_PER_CHUNK * SAMPLES_PER_CHUNK if len(block.sample) else 0


@dataclass(slots=True)
class BlockReader(CommittedSignals):
    """Reads the blocks of a store for some signals, all of which have a vector a segment."""

    gram: bool = True
    loss: bool = False

    def __post_init__(self) -> None:
        CommittedSignals.__post_init__(self)
        for view in self.views:
            if view.per_sample:
                raise SettingError(
                    f"Signal {view.name!r} of {view.store.location} has one vector a sample, so there are no steps to "
                    "compare. It is for --method less, icons or cadc; `extract --kind gradient --per segment` makes "
                    "one with steps."
                )
            for name in ("sample_state", "segment_num_tokens", "sample_gram", "segment_loss"):
                view.array(name)  # opened here, not by several threads at once

    def read(self, start: int) -> SampleBlock:
        """Return the block that begins at a sample."""
        plan, stop, units = self.store.plan, self.stop(start), self.units(start)
        num_steps = self.store.column("sample_num_steps", start, stop)
        row = self.store.column("sample_row", start, stop)
        found = []
        for view, committed in zip(self.views, self.committed, strict=True):
            mine = [unit for unit in units if unit in committed]
            here = np.isin(np.arange(start, stop) // plan.samples_per_unit, mine)
            found.append(self._grams(view, mine, num_steps[here]))
        return _merged(found, start, row, num_steps)

    def map(
        self, work: Callable[[SampleBlock], FoundT], threads: Threads = None, listener: Listener = ignore
    ) -> Iterator[FoundT]:
        """Yield what work makes of every block, as walk does."""
        return self.walk(lambda start: work(self.read(start)), threads, listener)

    def _grams(self, view: SignalView, units: Sequence[int], num_steps: npt.NDArray[np.integer[Any]]) -> SampleGrams:
        """Return the done samples of committed units; num_steps is K of all samples of these units, done or not."""
        digests = view.chunks.digests(units)
        num_segments = num_steps.astype(np.int64) + 1
        packed = num_packed(num_segments)
        ranges = [self.store.plan.unit_range(unit) for unit in units]
        sample = np.concatenate([np.zeros(0, np.int64), *(np.arange(*each) for each in ranges)])
        counts = [stop - start for start, stop in ranges]
        rows, entries = _sums(num_segments, counts), _sums(packed, counts)
        done = _joined(view, "sample_state", digests, counts) == STATE_DONE
        if self.wanted is not None:
            done &= self.wanted[sample]
        num_tokens = _joined(view, "segment_num_tokens", digests, rows)
        none = np.zeros(0, np.float32)
        gram = _joined(view, "sample_gram", digests, entries) if self.gram else none
        loss = _joined(view, "segment_loss", digests, rows) if self.loss else none
        if done.all():
            return SampleGrams(Positions(sample), num_segments - 1, gram, num_tokens, loss)
        segment_done = np.repeat(done, num_segments)
        gram = gram[np.repeat(done, packed)] if self.gram else gram
        loss = loss[segment_done] if self.loss else loss
        return SampleGrams(Positions(sample[done]), num_segments[done] - 1, gram, num_tokens[segment_done], loss)


def _joined(view: SignalView, name: str, digests: dict[int, Digests], lengths: Sequence[int]) -> Array:
    """Return the beginnings of units' chunks, one after the other."""
    chunks = view.chunks.read([(name, unit) for unit in digests], digests)
    out = np.empty(sum(lengths), dtype=view.array(name).dtype)
    start = 0
    for chunk, length in zip(chunks, lengths, strict=True):
        out[start : start + length] = chunk[:length]
        start += length
    return out


def _sums(values: IntArray, counts: Sequence[int]) -> list[int]:
    """Return the sums of consecutive runs of values, counts saying how long each run is."""
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    sums: list[int] = np.diff(total[np.cumsum([0, *counts])]).tolist()
    return sums


def _merged(found: Sequence[SampleGrams], start: int, row: Array, num_steps: Array) -> SampleBlock:
    """Put the samples of several signals side by side."""
    first = found[0]
    places: tuple[Places | None, ...]
    if all(np.array_equal(first.sample, other.sample) for other in found[1:]):
        sample, places, tokens = first.sample, (None,) * len(found), first.num_tokens
    else:
        sample = Positions(np.unique(np.concatenate([each.sample for each in found])))
        found_at = tuple(Places(np.searchsorted(sample, each.sample)) for each in found)
        places, tokens = found_at, _first_tokens(found, found_at, num_steps[sample - start].astype(np.int64))
    steps = num_steps[sample - start].astype(np.int64)
    firsts = np.cumsum(steps + 1) - (steps + 1)
    totals = np.add.reduceat(tokens, firsts, dtype=np.int64) if len(sample) else np.zeros(0, np.int64)
    return SampleBlock(sample, Rows(row[sample - start].astype(np.int64)), steps, totals, tokens, tuple(found), places)


def _first_tokens(found: Sequence[SampleGrams], places: Sequence[Places], steps: IntArray) -> Int32Array:
    tokens = np.zeros((steps + 1).sum(), dtype=np.int32)
    for each, place in reversed(list(zip(found, places, strict=True))):
        mine = np.zeros(len(steps), dtype=np.bool_)
        mine[place] = True
        tokens[np.repeat(mine, steps + 1)] = each.num_tokens
    return tokens
