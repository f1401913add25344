"""Walk the samples of a store, block by block or unit by unit, on threads or on the tasks of a cluster.

A block is one chunk of the plan's arrays, so every chunk of the store is read once; memory does not grow with the
number of samples. Blocks hold Grams, token counts and losses, of one signal or of several side by side; units hold
vectors.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self, TypeVar, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import Array, BoolArray, Float32Array, Int32Array, IntArray, Places, Positions, Rows
from grace_store.base.errors import SettingError, Unfinished
from grace_store.base.events import Listener, Progressed, ignore
from grace_store.base.settings import default_threads
from grace_store.base.states import STATE_DONE
from grace_store.base.text import counted
from grace_store.store.array_group import Digests
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import SignalView, Store
from grace_store.store.storages import num_packed

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_LARGEST_KEPT = 31 << 20
"""In bytes. glibc adapts to blocks of at most 32 MiB (mallopt(3), M_MMAP_THRESHOLD)."""
MAX_BYTES_AT_ONCE = 1 << 30
"""Bytes of decoded vectors that all threads together may hold."""

Statistic = Literal["loss", "entropy", "hit_rate"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
Reads = Literal["gram", "loss", "entropy", "hit_rate", "responses", "vectors"]
"""What is read of a signal beside token counts. Signals with one vector per sample, which have no steps, are refused
unless responses or vectors are read."""


@runtime_checkable
class Mapper(Protocol):
    """What does the work in place of threads: the tasks of a cluster."""

    def map(self, work: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        """Yield work(item) in the order of the items; work and items are sent to the tasks."""

    def share(self, value: ItemT) -> Callable[[], ItemT]:
        """Return a function that gives the value to a task; the value itself is sent to each machine once."""


Threads = int | Mapper | None
"""What does the work: a number of threads, one thread per core (None), or the tasks of a cluster."""


def map_ordered(work: Callable[[ItemT], ResultT], items: Sequence[ItemT], threads: Threads) -> Iterator[ResultT]:
    """Yield work(item) in the order of the items. Only a few results are computed ahead, so memory stays flat."""
    if isinstance(threads, Mapper):
        yield from threads.map(work, items)
        return
    _keep_freed_memory()
    num_threads = min(threads or default_threads(), max(1, len(items)))
    if num_threads == 1:
        yield from map(work, items)
        return
    pending: deque[Future[ResultT]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > num_threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next item, up to twice this size; other C libraries are not affected.

    Until a block of this size is freed, glibc returns arrays of some hundred kB to the system, which then clears every
    page of the next arrays: a fifth of the time of scoring. The pages are never touched, so this takes no memory.
    """
    np.empty(_LARGEST_KEPT, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class SignalSamples:
    """What one signal has of some done samples, in order. Parts lie flat: K + 1 segments per sample, the answer last.

    A signal with one vector per sample has one part per sample, the whole response.
    """

    sample: Positions
    num_steps: IntArray
    num_tokens: Int32Array
    """Tokens of each part."""
    gram: Float32Array
    """Packed as in the store; empty unless it was asked for."""
    statistic: dict[Statistic, Float32Array]
    """Mean loss, entropy or hit rate of each part, as far as they were asked for."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the samples of several parts one after the other."""
        flat = zip(*((each.sample, each.num_steps, each.num_tokens, each.gram) for each in parts), strict=True)
        sample, num_steps, num_tokens, gram = map(np.concatenate, flat)
        statistic = {name: np.concatenate([each.statistic[name] for each in parts]) for name in parts[0].statistic}
        return cls(Positions(sample), num_steps, num_tokens, gram, statistic)


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Samples of one block that are done in at least one of the signals, in the order of the plan."""

    sample: Positions
    row: Rows
    num_steps: IntArray
    num_tokens: IntArray
    """Tokens in the response, (n,)."""
    segment_tokens: Int32Array
    """Tokens in each part, flat; where signals tokenise differently, those of the first signal that has the sample."""
    signals: tuple[SignalSamples, ...]
    places: tuple[Places | None, ...]
    """For each signal, where its samples stand among those of the block; None if it has all of them."""

    def __len__(self) -> int:
        return len(self.sample)

    def without_signals(self) -> Self:
        """Return the block without what its signals have, which takes most of its memory."""
        return replace(self, segment_tokens=self.segment_tokens[:0], signals=(), places=())


@dataclass(frozen=True, slots=True)
class UnitVectors:
    """One unit of one signal as stored: all its samples, done or not, with one vector per segment or per sample."""

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
        """(n,) norm of each vector before it was normalised; only in signals with one vector per sample."""
        return self.arrays["sample_norm"]

    def decoded(self, rows: IntArray | BoolArray | slice = slice(None)) -> Float32Array:
        """Return all vectors of the unit, or some, as float32; zero where a sample is not done."""
        return self.view.decode(self.arrays, rows)


@dataclass(slots=True)
class SignalReader:
    """Reads some signals of a store, as far as their units were done when it was opened. Threads may share it."""

    store: Store
    names: tuple[str, ...]
    wanted: BoolArray | None = None
    """(N,) which samples of the plan are asked for; None for all."""
    reads: tuple[Reads, ...] = ("gram",)
    views: list[SignalView] = field(init=False)
    committed: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.views = [self.store.signal(name) for name in self.names]
        self.committed = [set(view.committed_units()) for view in self.views]
        # Arrays are opened here, not by several threads at once.
        for name in ("row", "num_steps", "id", "flags"):
            self.store.column(f"sample_{name}", 0, 0)
        for view in self.views:
            if view.per_sample and not {"responses", "vectors"} & set(self.reads):
                raise SettingError(
                    f"Signal {view.name!r} of {view.store.location} has one vector a sample, so there are no steps to "
                    "compare. It is for --method less, icons or cadc; `extract --kind gradient --per segment` makes "
                    "one with steps."
                )
            for name in [each.name for each in view.arrays] if "vectors" in self.reads else self._array_names(view):
                view.array(name)

    def _array_names(self, view: SignalView) -> list[str]:
        """Return the arrays of a signal that blocks are made from: states, token counts, and those asked for."""
        gram = ["sample_gram"] if "gram" in self.reads else []
        statistics = [f"{view.vectors_of}_{name}" for name in STATISTICS if name in self.reads]
        return ["sample_state", f"{view.vectors_of}_num_tokens", *gram, *statistics]

    @property
    def is_partial(self) -> bool:
        return any(len(units) < self.store.plan.num_units for units in self.committed)

    def check_complete(self, *, partial: bool = False, may_be_partial: bool = True) -> None:
        """Raise Unfinished if units are missing, unless partial; may_be_partial says whether --partial is offered."""
        num_units = self.store.plan.num_units
        for view, units in zip(self.views, self.committed, strict=True):
            if len(units) < num_units and not partial:
                end = ", or give --partial to score what is there." if may_be_partial else " first."
                found = f"{view.store.location} has {len(units)} of {counted(num_units, 'unit')}"
                remedy = f"Run the same `grace-store extract` to finish it{end}"
                raise Unfinished(f"Signal {view.name!r} of {found}. {remedy}")

    # ------------------------------------------------------------ walking

    def walk(
        self, work: Callable[[int], ResultT], threads: Threads = None, listener: Listener = ignore
    ) -> Iterator[ResultT]:
        """Yield work(start) for every block, start being its first sample, in order; a few are computed ahead.

        After each block the listener is told how far the walk has come.
        """
        num_samples = self.store.plan.num_samples
        starts = range(0, num_samples, SAMPLES_PER_CHUNK)
        for start, found in zip(starts, map_ordered(work, starts, threads), strict=True):
            done = self._stop(start)
            listener(Progressed(f"Scoring: {done} of {num_samples} samples.", done, num_samples))
            yield found

    def map(
        self, work: Callable[[SampleBlock], ResultT], threads: Threads = None, listener: Listener = ignore
    ) -> Iterator[ResultT]:
        """Yield work(block) for every block, as walk does."""
        return self.walk(lambda start: work(self.read(start)), threads, listener)

    def walk_units(
        self, work: Callable[[int], ResultT], positions: IntArray, threads: Threads = None, signal: int = 0
    ) -> Iterator[ResultT]:
        """Yield work(unit), in order, for the committed units of a signal that hold samples at some positions."""
        units = np.unique(positions // self.store.plan.samples_per_unit).tolist()
        yield from map_ordered(work, [unit for unit in units if unit in self.committed[signal]], threads)

    def _stop(self, start: int) -> int:
        return min(start + SAMPLES_PER_CHUNK, self.store.plan.num_samples)

    def units(self, start: int) -> range:
        """Return the units of the block that begins at a sample."""
        plan = self.store.plan
        return range(plan.unit_of(start), -(-self._stop(start) // plan.samples_per_unit))

    def threads(self, wanted: Threads) -> Threads:
        """Return how many threads may each hold a unit of vectors, as stored and decoded."""
        if isinstance(wanted, Mapper):
            return wanted
        plan = self.store.plan
        rows = plan.samples_per_unit if self.views[0].per_sample else plan.rows_per_unit
        return max(1, min(wanted or default_threads(), MAX_BYTES_AT_ONCE // (rows * self.dimension * 8)))

    # ------------------------------------------------------------ blocks

    def read(self, start: int) -> SampleBlock:
        """Return the block that begins at a sample."""
        stop, units = self._stop(start), self.units(start)
        num_steps = self.store.column("sample_num_steps", start, stop)
        row = self.store.column("sample_row", start, stop)
        unit_of = np.arange(start, stop) // self.store.plan.samples_per_unit
        asked = None if self.wanted is None else set(unit_of[self.wanted[start:stop]].tolist())
        found = []
        for view, committed in zip(self.views, self.committed, strict=True):
            mine = [unit for unit in units if unit in committed and (asked is None or unit in asked)]
            found.append(self._samples(view, mine, num_steps[np.isin(unit_of, mine)]))
        return _merged(found, start, row, num_steps, is_whole=self.views[0].per_sample)

    def ids(self, block: SampleBlock) -> Array:
        """Return the ids of a block's samples."""
        start = self._start_of(block)
        ids = self.store.column("sample_id", start, self._stop(start))
        return ids if len(block) == len(ids) else ids[block.sample - start]

    def text_flags(self, block: SampleBlock) -> Array:
        """Return the flags of the texts of a block's samples, as bits of Flag."""
        start = self._start_of(block)
        return self.store.text_flags(start, self._stop(start))[block.sample - start]

    def _start_of(self, block: SampleBlock) -> int:
        return int(block.sample[0]) // SAMPLES_PER_CHUNK * SAMPLES_PER_CHUNK if len(block) else 0

    def _samples(
        self, view: SignalView, units: Sequence[int], num_steps: npt.NDArray[np.integer[Any]]
    ) -> SignalSamples:
        """Return the done samples of committed units; num_steps is K of all samples of these units, done or not."""
        digests = view.chunks.digests(units)
        steps = num_steps.astype(np.int64)
        num_parts = np.ones_like(steps) if view.per_sample else steps + 1
        packed = num_packed(num_parts)
        ranges = [self.store.plan.unit_range(unit) for unit in units]
        sample = np.concatenate([np.zeros(0, np.int64), *(np.arange(*each) for each in ranges)])
        counts = [stop - start for start, stop in ranges]
        rows, entries = _sums(num_parts, counts), _sums(packed, counts)
        lengths = {"sample_state": counts, "sample_gram": entries}
        state, num_tokens, *more = (
            _joined(view, name, digests, lengths.get(name, rows)) for name in self._array_names(view)
        )
        done = state == STATE_DONE
        if self.wanted is not None:
            done &= self.wanted[sample]
        gram = more.pop(0) if "gram" in self.reads else np.zeros(0, np.float32)
        if not done.all():
            gram = gram[np.repeat(done, packed)] if len(gram) else gram
            part_done = np.repeat(done, num_parts)
            num_tokens, *more = (each[part_done] for each in (num_tokens, *more))
        statistic = dict(zip((name for name in STATISTICS if name in self.reads), more, strict=True))
        return SignalSamples(Positions(sample[done]), steps[done], num_tokens, gram, statistic)

    # ------------------------------------------------------------ vectors

    @property
    def dimension(self) -> int:
        return self.views[0].vector_size

    def done(self, signal: int, unit: int) -> BoolArray:
        """Return which samples of a unit a signal, given by its number, has."""
        if unit not in self.committed[signal]:
            start, stop = self.store.plan.unit_range(unit)
            return np.zeros(stop - start, dtype=np.bool_)
        return np.asarray(self.views[signal].unit_array("sample_state", unit) == STATE_DONE)

    def vectors(self, signal: int, unit: int, more: Sequence[str] = ()) -> UnitVectors | None:
        """Return a unit of a signal, given by its number, with more of its arrays; None if it is not committed."""
        if unit not in self.committed[signal]:
            return None
        view = self.views[signal]
        names = ["sample_state", f"{view.vectors_of}_num_tokens", *view.vector_arrays, *more]
        names += ["sample_loss", "sample_norm"] if view.per_sample else []
        return UnitVectors(view, view.unit_arrays(unit, list(dict.fromkeys(names))))


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


def _merged(found: Sequence[SignalSamples], start: int, row: Array, num_steps: Array, *, is_whole: bool) -> SampleBlock:
    """Put the samples of several signals side by side."""
    first = found[0]
    places: tuple[Places | None, ...]
    found_at: tuple[Places, ...] = ()
    if all(np.array_equal(first.sample, other.sample) for other in found[1:]):
        sample, places = first.sample, (None,) * len(found)
    else:
        sample = Positions(np.unique(np.concatenate([each.sample for each in found])))
        found_at = tuple(Places(np.searchsorted(sample, each.sample)) for each in found)
        places = found_at
    steps = num_steps[sample - start].astype(np.int64)
    num_parts = np.ones_like(steps) if is_whole else steps + 1
    tokens = first.num_tokens if places[0] is None else _first_tokens(found, found_at, num_parts)
    firsts = np.cumsum(num_parts) - num_parts
    totals = np.add.reduceat(tokens, firsts, dtype=np.int64) if len(sample) else np.zeros(0, np.int64)
    return SampleBlock(sample, Rows(row[sample - start].astype(np.int64)), steps, totals, tokens, tuple(found), places)


def _first_tokens(found: Sequence[SignalSamples], places: Sequence[Places], num_parts: IntArray) -> Int32Array:
    tokens = np.zeros(num_parts.sum(), dtype=np.int32)
    for each, place in reversed(list(zip(found, places, strict=True))):
        mine = np.zeros(len(num_parts), dtype=np.bool_)
        mine[place] = True
        tokens[np.repeat(mine, num_parts)] = each.num_tokens
    return tokens
