"""Go through the samples of a store block by block, for one signal or several side by side, on a few threads or nodes.

A block is one chunk of the plan's arrays, so every chunk of the store is read once; memory does not grow with the
number of samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from grace_store.base.arrays import Array, Int32Array, IntArray
from grace_store.base.errors import SettingError, Unfinished, UnknownName
from grace_store.base.settings import default_threads
from grace_store.store.gram_reader import GramReader, SampleGrams
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import SignalView, Store

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@runtime_checkable
class Mapper(Protocol):
    """Something else than threads to do the work on: the tasks of a cluster."""

    def map(self, work: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        """Yield work(item) in the order of the items; work and items are sent there."""
        ...


Threads = int | Mapper | None
"""What blocks are worked on by: so many threads, as many as there are cores (None), or something else."""


@dataclass(frozen=True, slots=True)
class SignalWeights:
    """Signals that are scored together, each with its weight; names in the order given."""

    weights: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.weights)

    def __str__(self) -> str:
        equal = len(set(self.weights.values())) == 1
        return ",".join(name if equal else f"{name}={weight:g}" for name, weight in self.weights.items())


Signals = str | Sequence[str] | Mapping[str, float] | SignalWeights | None
"""Signals as a user names them: one, several (each "name" or "name=weight"), with weights, or the only one (None)."""


def resolve_signals(store: Store, signals: Signals = None) -> SignalWeights:
    """Return the signals meant, all of them in the store. Weights are finite and above 0, 1 if not given."""
    if isinstance(signals, SignalWeights):
        signals = signals.weights
    if signals is None or not signals:
        return SignalWeights({store.signal(None).name: 1.0})
    if isinstance(signals, Mapping):
        pairs = [(name, float(weight)) for name, weight in signals.items()]
    else:
        given = [name_and_weight(store, text) for text in ([signals] if isinstance(signals, str) else signals)]
        pairs = [(name, 1.0 if weight is None else weight) for name, weight in given]
    names = [name for name, _ in pairs]
    if unknown := [name for name in names if name not in store.signal_names]:
        known = ", ".join(store.signal_names) or "none yet: run `grace-store extract`"
        raise UnknownName(f"{store.location} has no signal {', '.join(map(repr, unknown))} (there are: {known}).")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"signal {', '.join(map(repr, repeated))} is given twice: give each once, with its weight")
    for name, weight in pairs:
        if not (np.isfinite(weight) and weight > 0):
            raise SettingError(f"signal {name!r} has weight {weight:g}: a weight is a number above 0")
    return SignalWeights(dict(pairs))


def name_and_weight(store: Store, text: str) -> tuple[str, float | None]:
    """Return the signal that "name" or "name=weight" means, and the weight if one is given."""
    # A signal's name may itself hold "=", so a name that is there counts as one.
    name, equals, weight = text.rpartition("=")
    if not equals or text in store.signal_names:
        return text, None
    try:
        return name, float(weight)
    except ValueError:
        return text, None


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Samples of one block that are done in at least one of the signals, in the order of their records."""

    sample: IntArray
    """Positions in the plan."""
    row: IntArray
    num_steps: IntArray
    num_tokens: IntArray
    """Tokens in the response, (n,)."""
    segment_tokens: Int32Array
    """Tokens in each segment, flat; where signals tokenise differently, of the first one that has the sample."""
    signals: tuple[SampleGrams, ...]
    places: tuple[IntArray | None, ...]
    """For each signal, where its samples stand among those of the block; None if it has all of them."""

    def __len__(self) -> int:
        return len(self.sample)


class HasSamples(Protocol):
    """Anything that holds some samples of one block."""

    @property
    def sample(self) -> IntArray:
        """Positions in the plan."""


@dataclass(slots=True)
class CommittedSignals:
    """Some signals of a store, and which of their units were done when it was opened. Threads may share it."""

    store: Store
    names: tuple[str, ...]
    views: list[SignalView] = field(init=False)
    committed: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.views = [self.store.signal(name) for name in self.names]
        self.committed = [set(view.committed_units()) for view in self.views]
        self.store.column("sample_row", 0, 0)  # arrays are opened here, not by several threads at once
        self.store.column("sample_num_steps", 0, 0)
        self.store.column("sample_id", 0, 0)

    @property
    def is_partial(self) -> bool:
        return any(len(units) < self.store.plan.num_units for units in self.committed)

    def check_complete(self, *, partial: bool = False, may_be_partial: bool = True) -> None:
        """Raise Unfinished if units are missing, unless that is wanted; say how to want it where one may."""
        num_units = self.store.plan.num_units
        for view, units in zip(self.views, self.committed, strict=True):
            if len(units) < num_units and not partial:
                raise Unfinished(
                    f"Signal {view.name!r} of {view.store.location} has {len(units)} of {num_units} units. Run the "
                    "same `grace-store extract` to finish it"
                    + (", or give --partial to score what is there." if may_be_partial else " first.")
                )

    def starts(self) -> range:
        """Return where the blocks begin."""
        return range(0, self.store.plan.num_samples, SAMPLES_PER_CHUNK)

    def ids(self, block: HasSamples) -> Array:
        """Return the ids of a block's samples."""
        start = int(block.sample[0]) // SAMPLES_PER_CHUNK * SAMPLES_PER_CHUNK if len(block.sample) else 0
        stop = min(start + SAMPLES_PER_CHUNK, self.store.plan.num_samples)
        return self.store.column("sample_id", start, stop)[block.sample - start]


@dataclass(slots=True)
class BlockReader(CommittedSignals):
    """Reads the blocks of a store for some signals."""

    gram: bool = True
    loss: bool = False
    _readers: list[GramReader] = field(init=False)

    def __post_init__(self) -> None:
        CommittedSignals.__post_init__(self)
        self._readers = [GramReader(view, gram=self.gram, loss=self.loss) for view in self.views]

    def read(self, start: int) -> SampleBlock:
        """Return the block that begins at a sample."""
        plan = self.store.plan
        stop = min(start + SAMPLES_PER_CHUNK, plan.num_samples)
        units = range(start // plan.samples_per_unit, -(-stop // plan.samples_per_unit))
        num_steps = self.store.column("sample_num_steps", start, stop)
        row = self.store.column("sample_row", start, stop)
        found = []
        for reader, committed in zip(self._readers, self.committed, strict=True):
            mine = [unit for unit in units if unit in committed]
            if len(mine) == len(units):
                steps = num_steps
            else:
                steps = num_steps[np.isin(np.arange(start, stop) // plan.samples_per_unit, mine)]
            found.append(reader.read(mine, steps))
        return _merged(found, start, row, num_steps)

    def map(self, work: Callable[[SampleBlock], ResultT], threads: Threads = None) -> Iterator[ResultT]:
        """Yield what work makes of every block, in order; a few blocks are under way at a time."""
        yield from map_ordered(lambda start: work(self.read(start)), self.starts(), threads)


def _merged(found: Sequence[SampleGrams], start: int, row: Array, num_steps: Array) -> SampleBlock:
    """Put the samples of several signals side by side."""
    first = found[0]
    places: tuple[IntArray | None, ...]
    if all(np.array_equal(first.sample, other.sample) for other in found[1:]):
        sample, places, tokens = first.sample, (None,) * len(found), first.num_tokens
    else:
        sample = np.unique(np.concatenate([each.sample for each in found]))
        found_at = tuple(np.searchsorted(sample, each.sample) for each in found)
        places, tokens = found_at, _first_tokens(found, found_at, num_steps[sample - start].astype(np.int64))
    steps = num_steps[sample - start].astype(np.int64)
    firsts = np.cumsum(steps + 1) - (steps + 1)
    totals = np.add.reduceat(tokens, firsts, dtype=np.int64) if len(sample) else np.zeros(0, np.int64)
    rows = row[sample - start].astype(np.int64)
    return SampleBlock(sample, rows, steps, totals, tokens, tuple(found), places)


def _first_tokens(found: Sequence[SampleGrams], places: Sequence[IntArray], steps: IntArray) -> Int32Array:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(steps + 1)])
    tokens = np.zeros(offsets[-1], dtype=np.int32)
    for each, place in reversed(list(zip(found, places, strict=True))):
        mine = np.zeros(len(steps), dtype=np.bool_)
        mine[place] = True
        tokens[np.repeat(mine, steps + 1)] = each.num_tokens
    return tokens


def map_ordered(work: Callable[[ItemT], ResultT], items: Sequence[ItemT], threads: Threads) -> Iterator[ResultT]:
    """Yield work(item) in the order of the items, computed ahead, not far; flat in memory."""
    if isinstance(threads, Mapper):
        yield from threads.map(work, items)
        return
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
