"""Cosines of steps with the mean direction of the answers of a question's other traces, from stored vectors.

The sum of the directions of all answers of a question, less the trace's own, points where those of the others do. Sums
are made in a first reading of the vectors, cosines in a second one. Where the sums of all questions would take too much
memory, ranges of questions come one after the other, in the order of their first traces: where the traces of a question
lie together, or in the same order again and again, a unit is still read only twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import BoolArray, FlagArray, Float32Array, FloatArray, IntArray
from grace_store.base.flags import Flag
from grace_store.read.parallel import Mapper, Threads, map_ordered
from grace_store.read.vectors import UnitVectors, VectorReader
from grace_store.values.alignment import RESOLUTION, ROUGH
from grace_store.values.directions import unit_vectors
from grace_store.values.gram import offsets_of

SUM_BYTES = 1 << 29
"""Sums of answers that are held at a time."""
ROWS_DECODED = 4096
"""Steps whose vectors are decoded together, or those of one sample."""


@dataclass(frozen=True, slots=True)
class GroupAlignment:
    """Cosines of all steps of a plan with the answers of the other traces, in one signal."""

    cosine: Float32Array
    """One number a step, flat; NaN where the sample has no vectors or no other trace."""
    flags: FlagArray
    """(N,), bits of Flag."""
    offsets: IntArray
    """(N + 1,), where each sample's steps begin."""

    def of(self, samples: IntArray) -> FloatArray:
        """Return the cosines of the steps of some samples, flat."""
        return self.cosine[_steps(self.offsets, samples)].astype(np.float64)


def align_with_groups(
    reader: VectorReader, signal: int, group: IntArray, threads: Threads = None, sum_bytes: int = SUM_BYTES
) -> GroupAlignment:
    """Return the cosines by a signal, given by its number; group is (N,), -1 for samples that take no part."""
    store = reader.store
    offsets = offsets_of(store.column("sample_num_steps"))
    cosine = np.full(int(offsets[-1]), np.nan, dtype=np.float32)
    flags = np.zeros(store.plan.num_samples, dtype=np.uint8)
    done = np.concatenate([reader.done(signal, unit) for unit in range(store.plan.num_units)]) & (group >= 0)
    size = np.bincount(group[done], minlength=int(group.max(initial=0)) + 1)
    flags[done & (size[group] == 1)] = Flag.ONLY_TRACE
    # Questions with others to compare with are numbered anew, so that the sums have no gaps.
    number = np.where(done & (size[group] > 1), (np.cumsum(size > 1) - 1)[group], -1)
    # Vectors are read here, wherever the scoring is done: sums are too large to be sent around.
    here = reader.threads(None if isinstance(threads, Mapper) else threads)
    at_once = max(1, sum_bytes // (4 * reader.views[signal].vector_size))
    for first in range(0, int(number.max(initial=-1)) + 1, at_once):
        part = _Range(reader, signal, offsets, np.where(number < first + at_once, number - first, -1))
        for samples, found, flagged in part.cosines(part.sums(here), here):
            cosine[_steps(offsets, samples)], flags[samples] = found, flagged
    return GroupAlignment(cosine, flags, offsets)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums over the answers of each question of a range."""

    direction: Float32Array
    """(questions, d)"""
    count: IntArray
    """How many of them have a direction."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Some questions of a store. Threads may share it."""

    reader: VectorReader
    signal: int
    offsets: IntArray
    number: IntArray
    """(N,) that of each sample's question, from 0; below 0 for others."""

    @property
    def units(self) -> list[int]:
        units: list[int] = np.unique(
            np.flatnonzero(self.number >= 0) // self.reader.store.plan.samples_per_unit
        ).tolist()
        return units

    def sums(self, threads: Threads) -> _Sums:
        """Return the sums of the answers' directions, added in the order of the plan."""
        shape = (int(self.number.max()) + 1, self.reader.views[self.signal].vector_size)
        sums = _Sums(np.zeros(shape, dtype=np.float32), np.zeros(shape[0], dtype=np.int64))
        for numbers, direction, count in map_ordered(self._unit_sums, self.units, threads):
            sums.direction[numbers] += direction
            sums.count[numbers] += count
        return sums

    def cosines(self, sums: _Sums, threads: Threads) -> Iterator[tuple[IntArray, Float32Array, FlagArray]]:
        """Yield samples of the range, the cosines of their steps, and their flags."""
        for blocks in map_ordered(lambda unit: list(self._unit_cosines(unit, sums)), self.units, threads):
            yield from blocks

    def _read(self, unit: int) -> tuple[UnitVectors, IntArray, IntArray]:
        """Return a unit, the positions of its samples in the range, and where in the unit their answers are."""
        found = self.reader.read(self.signal, unit)
        assert found is not None  # only done samples have a number
        start, stop = self.reader.store.plan.unit_range(unit)
        samples = start + np.flatnonzero(self.number[start:stop] >= 0)
        before = self.offsets[samples + 1] - self.offsets[start]
        return found, samples, before + samples - start

    def _unit_sums(self, unit: int) -> tuple[IntArray, Float32Array, IntArray]:
        found, samples, answers = self._read(unit)
        order = np.argsort(self.number[samples], kind="stable")
        numbers, first = np.unique(self.number[samples[order]], return_index=True)
        direction, has_direction = _directions(found, answers[order])
        return numbers, np.add.reduceat(direction, first), np.add.reduceat(has_direction.astype(np.int64), first)

    def _unit_cosines(self, unit: int, sums: _Sums) -> Iterator[tuple[IntArray, Float32Array, FlagArray]]:
        found, samples, answers = self._read(unit)
        start, _ = self.reader.store.plan.unit_range(unit)
        num_steps = np.diff(self.offsets)
        at_once = max(1, ROWS_DECODED // int(num_steps[samples].max()))
        for block in (slice(first, first + at_once) for first in range(0, len(samples), at_once)):
            some = samples[block]
            mine, has_direction = _directions(found, answers[block])
            numbers = self.number[some]
            others = _Sums(sums.direction[numbers] - mine, sums.count[numbers] - has_direction)
            owner = np.repeat(np.arange(len(some)), num_steps[some])
            # Before each sample there are, beside steps, the answers of those before it.
            rows = _steps(self.offsets, some) - self.offsets[start] + (some - start)[owner]
            yield some, *_cosines(found.decoded(rows), owner, others)


def _steps(offsets: IntArray, samples: IntArray) -> IntArray:
    """Return where the steps of some samples are among all steps."""
    num_steps = np.diff(offsets)[samples]
    first = np.repeat(offsets[samples] - offsets_of(num_steps)[:-1], num_steps)
    return first + np.arange(len(first))


def _directions(found: UnitVectors, rows: IntArray) -> tuple[Float32Array, BoolArray]:
    direction, flags = unit_vectors(found.decoded(rows))
    return direction.astype(np.float32), flags == 0


def _cosines(vectors: Float32Array, owner: IntArray, others: _Sums) -> tuple[Float32Array, FlagArray]:
    """Return the cosines of steps with the sums of their owners, and the owners' flags."""
    square = np.einsum("nd,nd->n", others.direction, others.direction)
    # As with targets from Grams: below this, what is left of vectors that cancel is rounding.
    is_zero = square <= RESOLUTION * others.count**2
    is_rough = ~is_zero & (square <= ROUGH * others.count**2)
    length = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    product = np.einsum("nd,nd->n", vectors, others.direction[owner])
    has_none = is_zero[owner] | (length == 0)
    cosine = np.where(has_none, 0.0, product / np.where(has_none, 1.0, length * np.sqrt(square[owner])))
    flags = is_rough * np.uint8(Flag.CANCELLING)
    flags[np.unique(owner[has_none])] |= np.uint8(Flag.ZERO_VECTOR)
    return np.clip(cosine, -1.0, 1.0).astype(np.float32), flags
