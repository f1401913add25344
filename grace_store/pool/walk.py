"""Walk the samples of a store, block by block or unit by unit, on threads or on the tasks of a cluster.

A block is one chunk of the plan's arrays, so every chunk of the store is read once, and memory does not grow with the
number of samples. Blocks hold Grams, token counts and losses of one or several signals; units hold vectors.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import Array, BoolArray, Float32Array, Int32Array, IntArray, Places, Positions, Rows
from grace_store.base.errors import SettingError, Unfinished
from grace_store.base.events import Listener, Progressed, ignore
from grace_store.base.settings import Mapper as Mapper
from grace_store.base.settings import default_threads
from grace_store.base.states import STATE_DONE
from grace_store.base.states import STATISTICS as STATISTICS
from grace_store.base.states import Statistic as Statistic
from grace_store.base.text import counted
from grace_store.store.array_group import Digests
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import SignalView, Store
from grace_store.store.storages import num_packed
from grace_store.values.measures import MEASURES, Responses
from grace_store.values.methods.method import ScoreSpec

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

MAX_BYTES_AT_ONCE = 1 << 30
"""Largest size of decoded vectors in memory, over all threads."""

Reads = Literal["gram", "top_entropy", "responses", "vectors"] | Statistic
"""Arrays of a signal that are read besides token counts. A signal with one vector per sample has no steps, and is
refused unless responses or vectors are read."""


def arrays_of(*specs: ScoreSpec) -> tuple[Reads, ...]:
    """Return the arrays of a signal that the measures of some scores read."""
    found = dict.fromkeys(each for spec in specs for name in spec.names for each in MEASURES[name].reads)
    return cast(tuple[Reads, ...], tuple(each for each in found if each != "plan"))


EVERYTHING: tuple[Reads, ...] = ("gram", *STATISTICS, "top_entropy")
"""What measures can read of a signal with steps."""

Threads = int | Mapper | None
"""The workers: a number of threads, one thread per core (None), or the tasks of a cluster."""


def map_ordered(work: Callable[[ItemT], ResultT], items: Sequence[ItemT], threads: Threads) -> Iterator[ResultT]:
    """Yield work(item) in the order of the items; only a few results are computed ahead."""
    if isinstance(threads, Mapper):
        yield from threads.map(work, items)
        return
    # Freeing an array of nearly 32 MiB makes glibc keep freed memory for the next item (mallopt(3), M_MMAP_THRESHOLD).
    # Otherwise glibc returns arrays of some hundred kB to the system, which then clears every page of the next arrays:
    # a fifth of the time of scoring. No page of this array is touched, so the array takes no memory.
    np.empty(31 << 20, dtype=np.uint8)
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


@dataclass(frozen=True, slots=True)
class SignalSamples:
    """Some done samples of one signal, in order. Parts are flat: K + 1 segments per sample, the answer last.

    A signal with one vector per sample has one part per sample, the whole response.
    """

    sample: Positions
    num_steps: IntArray
    num_tokens: Int32Array
    """Tokens of each part."""
    gram: Float32Array
    """Packed Grams; empty unless Grams are read."""
    statistic: dict[Statistic, Float32Array]
    """A number of each part, for the statistics that are read."""
    top_entropy: Float32Array
    """Sum of each sample's largest token entropies; empty unless read."""

    @property
    def sizes(self) -> Self:
        """The samples with their numbers of steps and tokens alone."""
        return replace(self, gram=self.gram[:0], statistic={}, top_entropy=self.top_entropy[:0])

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the samples of several parts, concatenated."""
        arrays = ((each.sample, each.num_steps, each.num_tokens, each.gram, each.top_entropy) for each in parts)
        sample, num_steps, num_tokens, gram, top_entropy = map(np.concatenate, zip(*arrays, strict=True))
        statistic = {name: np.concatenate([each.statistic[name] for each in parts]) for name in parts[0].statistic}
        return cls(Positions(sample), num_steps, num_tokens, gram, statistic, top_entropy)


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Samples of one block that are done in at least one of the signals, in the order of the plan."""

    sample: Positions
    row: Rows
    num_steps: IntArray
    num_tokens: IntArray
    """Tokens in the response, (n,)."""
    segment_tokens: Int32Array
    """Tokens in each part, flat, by the first signal that has the sample: signals may tokenise differently."""
    signals: tuple[SignalSamples, ...]
    places: tuple[Places | None, ...]
    """For each signal, the indices of its samples in the block; None if it has all samples."""
    num_characters: IntArray
    """Characters in the response, (n,)."""

    def __len__(self) -> int:
        return len(self.sample)

    def responses(self, signal: int, spec: ScoreSpec, **outside: Any) -> Responses:
        """Return the samples of the signal with this number as measures take them; of all samples without signals."""
        place = self.places[signal] if self.signals else None
        row, characters = (each if place is None else each[place] for each in (self.row, self.num_characters))
        of_plan: dict[str, Any] = {"row": row, "num_characters": characters}
        found: Any = self.signals[signal] if self.signals else self
        names = ("num_steps", "num_tokens", *(("gram", "statistic", "top_entropy") if self.signals else ()))
        return Responses(spec=spec, **of_plan, **{name: getattr(found, name) for name in names}, **outside)

    def without_signals(self) -> Self:
        """Return the block without the arrays of its signals, which take most of its memory."""
        return replace(self, segment_tokens=self.segment_tokens[:0], signals=(), places=())


@dataclass(frozen=True, slots=True)
class UnitVectors:
    """One stored unit of one signal: all its samples, done or not, with one vector per segment or per sample."""

    view: SignalView
    arrays: Mapping[str, Array]
    """The unit's chunks, padding included."""

    @property
    def done(self) -> BoolArray:
        """(n,) whether each sample is done, and so has vectors."""
        return np.asarray(self.arrays["sample_state"] == STATE_DONE)

    @property
    def num_tokens(self) -> Int32Array:
        """Tokens of each segment, or of each response if a sample has one vector."""
        return self.arrays[f"{self.view.vectors_of}_num_tokens"]

    @property
    def length(self) -> Float32Array:
        """(n,) norm of each vector before it was normalised; only in signals with one vector per sample."""
        return self.arrays["sample_norm"]

    def decoded(self, rows: IntArray | BoolArray | slice = slice(None)) -> Float32Array:
        """Return all or some vectors of the unit as float32; vectors of a sample that is not done are zero."""
        return self.view.decode(self.arrays, rows)


@dataclass(slots=True)
class SignalReader:
    """Reads the units of some signals that were committed when the reader was made. Threads may share it."""

    store: Store
    names: tuple[str, ...]
    wanted: BoolArray | None = None
    """(N,) whether a sample of the plan is wanted; None for all samples."""
    reads: tuple[Reads, ...] = ("gram",)
    views: list[SignalView] = field(init=False)
    committed: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.views = [self.store.signal(name) for name in self.names]
        self.committed = [set(view.committed_units()) for view in self.views]
        # Open all arrays here, before several threads use them.
        for name in ("row", "num_steps", "num_characters", "id", "flags"):
            self.store.column(f"sample_{name}", 0, 0)
        for view in self.views:
            if view.per_sample and not {"responses", "vectors"} & set(self.reads):
                raise SettingError(
                    f"Signal {view.name!r} of {view.store.location} has one vector per sample, so there are no steps "
                    "to compare. Use it with --method less, icons or cadc, or make a signal with steps with "
                    "`extract --kind gradient --per segment`."
                )
            for name in [each.name for each in view.arrays] if "vectors" in self.reads else self._array_names(view):
                view.array(name)

    def reading(self, *reads: Reads) -> "SignalReader":
        """Return a reader of other arrays of the same units, even if more units have been committed since."""
        found = replace(self, reads=reads)
        found.committed = self.committed
        return found

    def _array_names(self, view: SignalView) -> list[str]:
        """Return the arrays of a signal that blocks need: states, token counts, and the arrays in reads."""
        of_samples = [f"sample_{name}" for name in ("gram", "top_entropy") if name in self.reads]
        statistics = [f"{view.vectors_of}_{name}" for name in STATISTICS if name in self.reads]
        return ["sample_state", f"{view.vectors_of}_num_tokens", *of_samples, *statistics]

    @property
    def is_partial(self) -> bool:
        return any(len(units) < self.store.plan.num_units for units in self.committed)

    @property
    def origin(self) -> dict[str, Any]:
        """The store, its plan and whether units are missing: fields of the notes of results."""
        plan = self.store.plan
        of_plan = {"plan_sha256": plan.digest(), "num_units": plan.num_units}
        return {"store": self.store.location, "partial": self.is_partial, **of_plan}

    def check_complete(self, *, partial: bool = False, may_be_partial: bool = True) -> None:
        """Raise Unfinished if units are missing, unless partial; with may_be_partial the message offers --partial."""
        num_units = self.store.plan.num_units
        for view, units in zip(self.views, self.committed, strict=True):
            if len(units) < num_units and not partial:
                end = ", or give --partial to score the finished units." if may_be_partial else " first."
                found = f"{view.store.location} has {len(units)} of {counted(num_units, 'unit')}"
                remedy = f"Run the same `grace-store extract` to finish the signal{end}"
                raise Unfinished(f"Signal {view.name!r} of {found}. {remedy}")

    # ------------------------------------------------------------ walking

    def walk(
        self, work: Callable[[int], ResultT], threads: Threads = None, listener: Listener = ignore
    ) -> Iterator[ResultT]:
        """Yield work(start) for every block in order, where start is its first sample; a few are computed ahead.

        The listener gets the progress after each block.
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
        """Return the number of threads for which units of vectors, stored and decoded, fit in memory."""
        if isinstance(wanted, Mapper):
            return wanted
        plan = self.store.plan
        rows = plan.samples_per_unit if self.views[0].per_sample else plan.rows_per_unit
        return max(1, min(wanted or default_threads(), MAX_BYTES_AT_ONCE // (rows * self.views[0].vector_size * 8)))

    # ------------------------------------------------------------ blocks

    def read(self, start: int) -> SampleBlock:
        """Return the block that begins at a sample."""
        stop, units = self._stop(start), self.units(start)
        num_steps = self.store.column("sample_num_steps", start, stop)
        row = self.store.column("sample_row", start, stop)
        characters = self.store.column("sample_num_characters", start, stop)
        if not self.views:
            return self._planned(start, row, num_steps, characters)
        unit_of = np.arange(start, stop) // self.store.plan.samples_per_unit
        asked = None if self.wanted is None else set(unit_of[self.wanted[start:stop]].tolist())
        found = []
        for view, committed in zip(self.views, self.committed, strict=True):
            mine = [unit for unit in units if unit in committed and (asked is None or unit in asked)]
            found.append(self._samples(view, mine, num_steps[np.isin(unit_of, mine)]))
        return _merged(found, start, row, num_steps, characters, is_whole=self.views[0].per_sample)

    def _planned(self, start: int, row: Array, num_steps: Array, characters: Array) -> SampleBlock:
        """Return a block of planned samples, for a reader without signals; their tokens are unknown, and count as 0."""
        kept = np.arange(len(row)) if self.wanted is None else np.flatnonzero(self.wanted[start : start + len(row)])
        steps, none = num_steps[kept].astype(np.int64), np.zeros(0, np.int32)
        sample, rows = Positions(start + kept), Rows(row[kept].astype(np.int64))
        return SampleBlock(sample, rows, steps, np.zeros_like(steps), none, (), (), characters[kept])

    @classmethod
    def blocks_at(
        cls, store: Store, names: tuple[str, ...], positions: IntArray, reads: tuple[Reads, ...]
    ) -> Iterator[SampleBlock]:
        """Yield the blocks with the done samples at some positions in the plan; every chunk is read once."""
        wanted = np.zeros(store.plan.num_samples, dtype=np.bool_)
        wanted[positions] = True
        reader = cls(store, names, wanted, reads)
        for chunk in np.unique(positions // SAMPLES_PER_CHUNK).tolist():
            yield reader.read(chunk * SAMPLES_PER_CHUNK)

    def ids(self, block: SampleBlock) -> Array:
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
        """Return the done samples of committed units; num_steps is K of all samples of these units."""
        digests = view.chunks.digests(units)
        steps = num_steps.astype(np.int64)
        num_parts = np.ones_like(steps) if view.per_sample else steps + 1
        packed = num_packed(num_parts)
        ranges = [self.store.plan.unit_range(unit) for unit in units]
        sample = np.concatenate([np.zeros(0, np.int64), *(np.arange(*each) for each in ranges)])
        counts = [stop - start for start, stop in ranges]
        rows, entries = _sums(num_parts, counts), _sums(packed, counts)
        lengths = {"sample_state": counts, "sample_gram": entries, "sample_top_entropy": counts}
        state, num_tokens, *more = (
            _joined(view, name, digests, lengths.get(name, rows)) for name in self._array_names(view)
        )
        done = state == STATE_DONE
        if self.wanted is not None:
            done &= self.wanted[sample]
        gram = more.pop(0) if "gram" in self.reads else np.zeros(0, np.float32)
        top_entropy = more.pop(0) if "top_entropy" in self.reads else np.zeros(0, np.float32)
        if not done.all():
            gram = gram[np.repeat(done, packed)] if len(gram) else gram
            top_entropy = top_entropy[done] if len(top_entropy) else top_entropy
            part_done = np.repeat(done, num_parts)
            num_tokens, *more = (each[part_done] for each in (num_tokens, *more))
        statistic = dict(zip((name for name in STATISTICS if name in self.reads), more, strict=True))
        return SignalSamples(Positions(sample[done]), steps[done], num_tokens, gram, statistic, top_entropy)

    # ------------------------------------------------------------ vectors

    def done(self, signal: int, unit: int) -> BoolArray:
        """Return whether each sample of a unit is done in the signal with this number."""
        if unit not in self.committed[signal]:
            start, stop = self.store.plan.unit_range(unit)
            return np.zeros(stop - start, dtype=np.bool_)
        return np.asarray(self.views[signal].unit_array("sample_state", unit) == STATE_DONE)

    def vectors(self, signal: int, unit: int, more: Sequence[str] = ()) -> UnitVectors | None:
        """Return a unit of the signal with this number, with more arrays; None if the unit is not committed."""
        if unit not in self.committed[signal]:
            return None
        view = self.views[signal]
        names = ["sample_state", f"{view.vectors_of}_num_tokens", *view.vector_arrays, *more]
        names += ["sample_loss", "sample_norm"] if view.per_sample else []
        return UnitVectors(view, view.unit_arrays(unit, list(dict.fromkeys(names))))


def _joined(view: SignalView, name: str, digests: dict[int, Digests], lengths: Sequence[int]) -> Array:
    """Return the chunks of units, each cut to its length, concatenated."""
    chunks = view.chunks.read([(name, unit) for unit in digests], digests)
    out = np.empty(sum(lengths), dtype=view.array(name).dtype)
    start = 0
    for chunk, length in zip(chunks, lengths, strict=True):
        out[start : start + length] = chunk[:length]
        start += length
    return out


def _sums(values: IntArray, counts: Sequence[int]) -> list[int]:
    """Return the sums of consecutive runs of values; counts are the lengths of the runs."""
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    sums: list[int] = np.diff(total[np.cumsum([0, *counts])]).tolist()
    return sums


def _merged(
    found: Sequence[SignalSamples], start: int, row: Array, num_steps: Array, characters: Array, *, is_whole: bool
) -> SampleBlock:
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
    tokens = first.num_tokens
    if places[0] is not None:
        tokens = np.zeros(num_parts.sum(), dtype=np.int32)
        for each, place in reversed(list(zip(found, found_at, strict=True))):  # the first signal is written last
            mine = np.zeros(len(num_parts), dtype=np.bool_)
            mine[place] = True
            tokens[np.repeat(mine, num_parts)] = each.num_tokens
    firsts = np.cumsum(num_parts) - num_parts
    totals = np.add.reduceat(tokens, firsts, dtype=np.int64) if len(sample) else np.zeros(0, np.int64)
    rows, kept = Rows(row[sample - start].astype(np.int64)), characters[sample - start]
    return SampleBlock(sample, rows, steps, totals, tokens, tuple(found), places, kept)
