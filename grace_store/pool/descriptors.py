"""Descriptors of samples, read unit by unit on a few threads: in one array, or block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import Array, BoolArray, FloatArray, IntArray, Positions, Rows, aranges, offsets_of
from grace_store.base.errors import DataError, ResumeMismatch, SettingError, Unfinished
from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.text import counted
from grace_store.likeness import points
from grace_store.likeness.points import Described, Descriptor
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.walk import SignalReader, Threads, UnitVectors, map_ordered
from grace_store.store.opened import SignalView, Store

VectorType = Literal["float32", "float16"]

DECODED_ROWS = 4096
"""Segment vectors that are decoded together; a unit may hold ten times as many."""


class StepScored(Protocol):
    @property
    def row(self) -> IntArray: ...

    @property
    def num_steps(self) -> IntArray: ...

    @property
    def has_step_scores(self) -> bool: ...

    @property
    def plan_sha256(self) -> str:
        """Digest of the plan of its samples."""

    @property
    def what(self) -> str:
        """Kind and path of the table, for a sentence."""

    def flat(self, name: str) -> Array:
        """Return a column with one entry for each step as one array."""


@dataclass(frozen=True, slots=True)
class Descriptions:
    """Descriptors of some done samples, in the order of the plan."""

    sample: Positions
    row: Rows
    """(n,) rows of their records in the dataset."""
    vector: Array
    """(n, m) float32 or float16, C-contiguous; every row has length 1, or is zero."""
    is_zero: BoolArray
    """(n,) samples with a zero descriptor; cosines with these are 0."""
    is_unweighted: BoolArray
    """(n,) samples without a step score above 0, if scores are the weights; all their steps weigh the same."""
    made_by: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sample)

    def __repr__(self) -> str:
        numbers = f"{self.vector.shape[1]} {self.vector.dtype} numbers each"
        return f"<Descriptions of {counted(len(self), 'sample')}, {numbers}>"


def describe_samples(
    pool: PoolLike,
    descriptor: Descriptor | None = None,
    *,
    dtype: VectorType = "float32",
    listener: Listener = ignore,
    **settings: Any,
) -> Descriptions:
    """Return a vector of length 1 for each done sample of a pool; DescriptionReader.of explains the settings."""
    return DescriptionReader.of(pool, descriptor, **settings).read_all(dtype, listener)


@dataclass(slots=True)
class DescriptionReader:
    """Reads the descriptors of one signal, any number of times. Threads may share it."""

    vectors: SignalReader
    """Reader of the one signal."""
    descriptor: Descriptor | None
    """None for a signal with one vector per sample."""
    units: list[int]
    """Committed units with wanted samples, in order."""
    wanted: BoolArray | None
    """(N,) whether a sample of the plan is wanted; None for all samples."""
    made_by: dict[str, Any]
    threads: Threads
    projection: FloatArray | None
    row: Rows
    """(N,) rows of the records of all planned samples in the dataset."""
    _num_steps: npt.NDArray[np.integer[Any]]
    _scores: tuple[FloatArray, IntArray] | None
    """All step scores, and the index of each planned sample's first score; -1 for a sample without scores."""

    @classmethod
    def of(
        cls,
        pool: PoolLike,
        descriptor: Descriptor | None = None,
        *,
        dimension: int | None = None,
        seed: int = 0,
        scores: StepScored | None = None,
        samples: Positions | None = None,
    ) -> DescriptionReader:
        """Return a reader of the pool's samples, or of those at some positions in the plan, in its one signal.

        The descriptor is answer, steps (the default), weighted by scores of steps, or projected: to dimension numbers
        (512) by a random projection with a seed. A signal with one vector per sample has no other descriptor.
        """
        pool = Pool.of(pool)
        view = pool.signal
        chosen = _resolved(view, descriptor, dimension, scores)
        wanted = _wanted(pool, samples)
        vectors = SignalReader(pool.store, (view.name,), reads=("vectors",))
        units, num_units = _units(vectors, wanted, partial=pool.partial), len(vectors.committed[0])
        signal = {"name": view.name, "sha256": view.signal.identity(), "num_units": num_units}
        made_by = vectors.origin | {"signal": signal, "descriptor": chosen or "sample"}  # fields of a PointsNote
        projection = None
        if chosen == "projected":
            projection = points.projection_for(view.vector_size, dimension, seed)
            reduced = {"dimension": dimension or points.PROJECTED_SIZE, "seed": seed}
            made_by |= {"dimension": 2 * view.vector_size} if projection is None else reduced
        step_scores = None if chosen != "weighted" else _step_scores(scores, pool.store)
        columns = Rows(pool.store.column("sample_row").astype(np.int64)), pool.store.column("sample_num_steps")
        return cls(vectors, chosen, units, wanted, made_by, pool.threads, projection, *columns, step_scores)

    @property
    def store(self) -> Store:
        return self.vectors.store

    @property
    def view(self) -> SignalView:
        return self.vectors.views[0]

    @property
    def size(self) -> int:
        """Number of entries of a descriptor."""
        if self.descriptor != "projected":
            return self.view.vector_size
        return 2 * self.view.vector_size if self.projection is None else self.projection.shape[1]

    @property
    def max_samples(self) -> int:
        """Largest possible number of samples: wanted samples in committed units, done or set aside."""
        return sum(len(self._asked(unit)) for unit in self.units)

    def blocks(self, units: list[int] | None = None) -> Iterator[Descriptions]:
        """Yield the descriptors of units, or of all units, one by one; a few are read ahead."""
        # Without threads, because the reader may be sent to a task.
        yield from map_ordered(replace(self, threads=None).read, self.units if units is None else units, self.threads)

    def read_all(self, dtype: VectorType = "float32", listener: Listener = ignore) -> Descriptions:
        """Return all descriptors in one array; memory holds only a few units besides."""
        out = np.empty((self.max_samples, self.size), dtype=dtype)
        found: list[tuple[IntArray, BoolArray, BoolArray]] = []
        stop = 0
        for block in self.blocks():
            start, stop = stop, stop + len(block)
            out[start:stop] = block.vector
            # Not the block itself: its vectors would keep the unit in memory.
            found.append((block.sample, block.is_zero, block.is_unweighted))
        sample, is_zero, is_unweighted = _joined(found, np.zeros(0, np.int64))
        tell_oddities(int(is_zero.sum()), int(is_unweighted.sum()), listener)
        return Descriptions(Positions(sample), Rows(self.row[sample]), out[:stop], is_zero, is_unweighted, self.made_by)

    def read(self, unit: int) -> Descriptions:
        """Return the descriptors of the wanted samples of one unit that are done."""
        start, _ = self.store.plan.unit_range(unit)
        found = self.vectors.vectors(0, unit)
        assert found is not None  # only committed units are asked for
        asked = self._asked(unit)
        sample = asked[found.done[asked - start]]
        described = _joined(list(self._described(unit, sample - start, found)), np.zeros((0, self.size), np.float32))
        return Descriptions(Positions(sample), Rows(self.row[sample]), *described, self.made_by)

    def describe_trace(self, vectors: Array) -> Described:
        """Return the descriptor of a trace outside the store; its steps have no scores, and weigh the same."""
        num_steps = np.array([len(vectors) - 1])
        descriptor = "steps" if self.descriptor == "weighted" else self.descriptor
        return points.describe(vectors, num_steps, descriptor or "answer", projection=self.projection)

    def _asked(self, unit: int) -> IntArray:
        each = np.arange(*self.store.plan.unit_range(unit))
        return each if self.wanted is None else each[self.wanted[each]]

    def _described(self, unit: int, chosen: IntArray, found: UnitVectors) -> Iterator[Described]:
        """Yield the descriptors of some samples of a unit, by their index in it, about DECODED_ROWS rows at a time."""
        if not len(chosen):
            return
        start, stop = self.store.plan.unit_range(unit)
        num_segments = self._num_steps[start:stop].astype(np.int64) + 1
        ends = np.cumsum(num_segments)
        takes_all = self.descriptor not in (None, "answer")
        piece = np.cumsum(num_segments[chosen] if takes_all else np.ones_like(chosen)) // DECODED_ROWS
        for some in np.split(chosen, np.flatnonzero(np.diff(piece)) + 1):
            if not takes_all:
                rows, num_steps = some if self.descriptor is None else ends[some] - 1, np.zeros(len(some), np.int64)
            else:
                num_steps = num_segments[some] - 1
                rows = aranges(num_segments[some], ends[some] - num_segments[some])
            score = None
            if self._scores is not None:  # a sample without scores has scores of 0
                every, first = self._scores[0], self._scores[1][start + some]
                found_scores = every[aranges(num_steps, np.where(first < 0, 0, first)).clip(max=len(every) - 1)]
                score = np.where(np.repeat(first < 0, num_steps), 0.0, found_scores)
            how, given = self.descriptor or "answer", found.decoded(rows)
            yield points.describe(given, num_steps, how, step_score=score, projection=self.projection)


def _joined(parts: Sequence[tuple[Array, BoolArray, BoolArray]], none: Array) -> tuple[Array, BoolArray, BoolArray]:
    """Return the joined array and the two joined flags of several parts; none is the array of no part."""
    flag = np.zeros(0, np.bool_)
    first, second, third = zip((none, flag, flag), *parts, strict=True)
    return np.concatenate(first), np.concatenate(second), np.concatenate(third)


def tell_oddities(num_zero: int, num_unweighted: int, listener: Listener) -> None:
    """Warn of samples with a zero descriptor, and of samples without weights."""
    zero = "a descriptor of zeros: its cosine with every other sample is 0."
    unweighted = "no step with a score above 0: all steps have the same weight."
    for number, what in ((num_zero, zero), (num_unweighted, unweighted)):
        if number:
            listener(Warned(f"{counted(number, 'sample')} {'has' if number == 1 else 'have'} {what}"))


def _step_scores(scores: StepScored | None, store: Store) -> tuple[FloatArray, IntArray]:
    """Return a table's step scores, and the index of each planned sample's first score; -1 without scores."""
    assert scores is not None
    if scores.plan_sha256 != store.plan.digest():
        raise ResumeMismatch(
            f"The {scores.what} was made from another plan than the present plan of {store.location}. Give a "
            "table of this store."
        )
    first = np.full(store.plan.num_samples, -1, dtype=np.int64)
    first[store.positions_of(scores.row)] = offsets_of(scores.num_steps)[:-1]
    return np.asarray(scores.flat("step_score"), dtype=np.float64), first


def _resolved(
    view: SignalView, descriptor: Descriptor | None, dimension: int | None, scores: StepScored | None
) -> Descriptor | None:
    """Return the descriptor that is used; raise SettingError or DataError for an impossible one."""
    named = None if descriptor is None else points.descriptor_named(descriptor)
    if view.per_sample:
        if named is not None or dimension is not None:
            raise SettingError(
                f"signal {view.name!r} has one vector per sample, so there is no choice of descriptor: leave "
                "--descriptor out"
            )
        return None
    chosen = named or points.DEFAULT_DESCRIPTOR
    if dimension is not None and chosen != "projected":
        raise SettingError(
            f"only descriptor projected takes a dimension: leave the dimension out for descriptor {chosen}"
        )
    if chosen != "weighted":
        return chosen
    if scores is None:
        raise SettingError("descriptor weighted needs the scores of the steps: give a scores table")
    if not scores.has_step_scores:
        raise DataError(f"The {scores.what} has no step scores to weigh steps by. Score with --measure grace.")
    return chosen


def _wanted(pool: Pool, samples: Positions | None) -> BoolArray | None:
    if samples is None:
        return pool.wanted
    samples = Positions(np.asarray(samples, dtype=np.int64))
    num = pool.store.plan.num_samples
    if len(samples) and not 0 <= samples.min() <= samples.max() < num:
        raise SettingError(f"samples are positions in the plan, from 0 to {num - 1}")
    wanted = np.zeros(num, dtype=np.bool_)
    wanted[samples] = True
    return wanted if pool.wanted is None else wanted & pool.wanted


def _units(vectors: SignalReader, wanted: BoolArray | None, *, partial: bool) -> list[int]:
    plan, view = vectors.store.plan, vectors.views[0]
    asked = plan.units if wanted is None else np.unique(np.flatnonzero(wanted) // plan.samples_per_unit).tolist()
    units = [unit for unit in asked if unit in vectors.committed[0]]
    if len(units) < len(asked) and not partial:
        raise Unfinished(
            f"Signal {view.name!r} of {view.store.location} has {len(units)} of the {len(asked)} units that are "
            "needed. Run the same `grace-store extract` to finish it, or give --partial to use what is there."
        )
    return units
