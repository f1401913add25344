"""Scores that depend on the other traces of a question: values compared within questions, and the columns for groups.

Samples are scored twice: once for their values, then for the rows. Memory holds a few numbers for each sample.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from grace_store.base.arrays import Array, BoolArray, FlagArray, Float32Array, FloatArray, IntArray, aranges, offsets_of
from grace_store.base.errors import SettingError
from grace_store.base.states import Flag
from grace_store.base.text import counted
from grace_store.pool.arrow_arrays import arrow_floats, arrow_numbers, flag_lists, numpy_numbers
from grace_store.pool.pool import Pool
from grace_store.pool.walk import Mapper, SignalReader, Threads, UnitVectors
from grace_store.scoring.notes import GroupsNote, ScoresNote
from grace_store.scoring.provenance import Source
from grace_store.scoring.score_table import GROUP_COLUMNS
from grace_store.store.opened import Store
from grace_store.values.alignment import ROUGH
from grace_store.values.directions import unit_vectors
from grace_store.values.gram import RESOLUTION
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.within_groups import Within, compare_within


@dataclass(frozen=True, slots=True)
class Scoring:
    """A prepared scoring: the note of the table, and the function that makes its rows."""

    note: ScoresNote
    sources: list[Source]
    """Files and folders that the table must not replace."""
    tables: Callable[[Threads], Iterator[tuple[pa.Table, Array]]]
    """A function that yields the rows of the table in order, with the bits of Flag of their samples."""
    values: Callable[[Threads], Iterator[tuple[IntArray, FloatArray, Array]]] | None = None
    """A function that yields dataset rows, values and flags alone, which is faster; None if the method has none."""

    def each_value(self, threads: Threads) -> Iterator[tuple[IntArray, FloatArray, Array]]:
        """Yield dataset rows, values and the flags that scoring found."""
        if self.values is not None:
            return self.values(threads)
        return ((numpy_numbers(t["row"]), numpy_numbers(t["value"]), bits) for t, bits in self.tables(threads))


def score_in_groups(
    scoring: Scoring, store: Store, group: IntArray, by: str | None, within: Within | None, threads: Threads
) -> Scoring:
    """Return a scoring whose table names the question of each sample, and may compare values within questions.

    group has the question of every sample of the plan, -1 for samples that are not scored. Samples are scored once
    for the values alone. Raise SettingError if no question has two traces.
    """
    empty = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.uint8)
    row, value, flags = map(np.concatenate, zip(empty, *scoring.each_value(threads), strict=True))
    group = group[store.positions_of(row)]
    # With the target group, a sample without another trace has this flag, and no value.
    is_alone = np.asarray((flags & Flag.ONLY_TRACE) > 0)
    if within is not None:
        value, also_alone = compare_within(value, group, within)
        is_alone |= also_alone
    note = GroupsNote(
        by=by,
        within=within,
        num_groups=len(np.unique(group)),
        num_compared=len(np.unique(group[np.isfinite(value) & ~is_alone])),
        num_alone=int(np.count_nonzero(is_alone)),
    )
    if len(row) and not note.num_compared:
        same = f"with the same {by!r}"
        remedy = "Give another --group-by, or leave --group-by out to compare traces with the same prompt and images"
        if by is None:
            same = "with the same prompt and images"
            remedy = "Name the field of the records that identifies the question, with --group-by"
        raise SettingError(f"no question of {store.location} has two traces {same} that both have a value. {remedy}")
    scored = scoring.note.model_copy(update={"groups": note})
    told = (*(scored.notes or ()), groups_in_words(scored))

    def tables(threads: Threads) -> Iterator[tuple[pa.Table, Array]]:
        start = 0
        for table, flags in scoring.tables(threads):
            rows = slice(start, start := start + table.num_rows)
            flags = flags | is_alone[rows] * np.uint32(Flag.ONLY_TRACE)
            yield _compared(table, value[rows], flags, group[rows]), flags

    return replace(scoring, note=scored.model_copy(update={"notes": told}), tables=tables)


def name_questions(scoring: Scoring, pool: Pool) -> Scoring:
    """Return a scoring whose table has the number of each sample's question."""
    question = pool.questions_by_row()

    def tables(threads: Threads) -> Iterator[tuple[pa.Table, Array]]:
        for table, flags in scoring.tables(threads):
            mine = arrow_numbers(question[numpy_numbers(table["row"])], pa.int64())
            yield table.set_column(table.column_names.index("question"), "question", mine), flags

    return replace(scoring, tables=tables)


def _compared(table: pa.Table, value: FloatArray, flags: Array, group: IntArray) -> pa.Table:
    """Return rows of a table with the compared values, and with columns for the question and the plain value."""
    plain = table["value"]
    question = arrow_numbers(group, pa.int64())
    changed = {"value": arrow_floats(value, pa.float64()), "flags": flag_lists(flags), "question": question}
    for name, column in changed.items():
        table = table.set_column(table.column_names.index(name), name, column)
    for name, column in zip(GROUP_COLUMNS, (question, plain), strict=True):
        table = table.append_column(name, column)
    return table


def groups_in_words(note: ScoresNote) -> str:
    """Return in words how a table with groups compared traces, and how many samples had no other trace."""
    groups = note.groups
    assert groups is not None
    by_answers = isinstance(note.spec, ScoreSpec) and note.spec.target == "group"
    what = "Steps are held against the answers of the other traces of their question" if by_answers else ""
    if groups.within is not None:
        what += f"{' and values' if by_answers else 'Values'} are {groups.within} within their question"
    same = "same prompt and images" if groups.by is None else f"same {groups.by!r}"
    said = f"{what} ({same}): {counted(groups.num_compared, 'question')} with at least two traces."
    if not groups.num_alone:
        return said
    verb, own, value = ("is", "its", "has") if groups.num_alone == 1 else ("are", "their", "have")
    or_none = "" if groups.by is None else f" or {value} no {groups.by!r}"
    only = f"{counted(groups.num_alone, 'sample')} {verb} the only trace of {own} question{or_none}"
    return f"{said} {only}, flagged only_trace, and {value} {'no value' if by_answers else 'the value 0'}."


# ---------------------------------------------------------------- the answers of a question's other traces as target
# The target of a trace is the sum of the directions of all answers of its question, minus the direction of its own
# answer. The first reading of the vectors makes the sums, the second one the cosines. Where the sums of all questions
# take too much memory, ranges of questions are done one after the other, in the order of their first traces. If the
# traces of a question lie together, or in the same order again and again, each unit is still read only twice.

SUM_BYTES = 1 << 29
"""Size of the sums that are in memory at a time."""
ROWS_DECODED = 4096
"""Steps that are decoded together; a sample with more steps is decoded alone."""


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
    reader: SignalReader, signal: int, group: IntArray, threads: Threads = None, sum_bytes: int = SUM_BYTES
) -> GroupAlignment:
    """Return the cosines in the signal with this number; group is (N,), -1 for samples without a question."""
    store = reader.store
    offsets = offsets_of(store.column("sample_num_steps"))
    cosine = np.full(int(offsets[-1]), np.nan, dtype=np.float32)
    flags = np.zeros(store.plan.num_samples, dtype=np.uint8)
    done = np.concatenate([reader.done(signal, unit) for unit in range(store.plan.num_units)]) & (group >= 0)
    size = np.bincount(group[done], minlength=int(group.max(initial=0)) + 1)
    flags[done & (size[group] == 1)] = Flag.ONLY_TRACE
    # Questions with at least two traces are numbered again, so that the sums have no gaps.
    number = np.where(done & (size[group] > 1), (np.cumsum(size > 1) - 1)[group], -1)
    # This process reads the vectors, even if a cluster scores: the sums are too large to send.
    here = reader.threads(None if isinstance(threads, Mapper) else threads)
    at_once = max(1, sum_bytes // (4 * reader.views[signal].vector_size))
    for first in range(0, int(number.max(initial=-1)) + 1, at_once):
        part = _Range(reader, signal, offsets, np.where(number < first + at_once, number - first, -1))
        for samples, found, flagged in part.cosines(part.sums(here), here):
            cosine[_steps(offsets, samples)], flags[samples] = found, flagged
    return GroupAlignment(cosine, flags, offsets)


_Sums = tuple[Float32Array, IntArray]
"""For each question of a range: the sum of its answers' directions, (questions, d), and the number of directions."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Some questions of a store. Threads may share it."""

    reader: SignalReader
    signal: int
    offsets: IntArray
    number: IntArray
    """(N,) number of each sample's question in the range, from 0; negative for samples outside the range."""

    @property
    def positions(self) -> IntArray:
        """Positions of the samples of these questions in the plan."""
        return np.flatnonzero(self.number >= 0)

    def sums(self, threads: Threads) -> _Sums:
        """Return the sums of the answers' directions, added in the order of the plan."""
        shape = (int(self.number.max()) + 1, self.reader.views[self.signal].vector_size)
        total, num = np.zeros(shape, dtype=np.float32), np.zeros(shape[0], dtype=np.int64)
        for numbers, direction, count in self.reader.walk_units(self._unit_sums, self.positions, threads, self.signal):
            total[numbers] += direction
            num[numbers] += count
        return total, num

    def cosines(self, sums: _Sums, threads: Threads) -> Iterator[tuple[IntArray, Float32Array, FlagArray]]:
        """Yield samples of the range, the cosines of their steps, and their flags."""

        def work(unit: int) -> list[tuple[IntArray, Float32Array, FlagArray]]:
            return list(self._unit_cosines(unit, sums))

        yield from chain.from_iterable(self.reader.walk_units(work, self.positions, threads, self.signal))

    def _read(self, unit: int) -> tuple[UnitVectors, IntArray, IntArray]:
        """Return the vectors of a unit, the positions of its samples in the range, and the rows of their answers."""
        found = self.reader.vectors(self.signal, unit)
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
        total, num = sums
        start, _ = self.reader.store.plan.unit_range(unit)
        num_steps = np.diff(self.offsets)
        at_once = max(1, ROWS_DECODED // int(num_steps[samples].max()))
        for block in (slice(first, first + at_once) for first in range(0, len(samples), at_once)):
            some = samples[block]
            mine, has_direction = _directions(found, answers[block])
            numbers = self.number[some]
            others = total[numbers] - mine, num[numbers] - has_direction
            owner = np.repeat(np.arange(len(some)), num_steps[some])
            # The rows before a sample hold the steps and the answers of earlier samples.
            rows = aranges(num_steps[some], self.offsets[some] - self.offsets[start] + some - start)
            yield some, *_cosines(found.decoded(rows), owner, others)


def _steps(offsets: IntArray, samples: IntArray) -> IntArray:
    """Return where the steps of some samples are among all steps."""
    return aranges(np.diff(offsets)[samples], offsets[samples])


def _directions(found: UnitVectors, rows: IntArray) -> tuple[Float32Array, BoolArray]:
    direction, flags = unit_vectors(found.decoded(rows))
    return direction.astype(np.float32), flags == 0


def _cosines(vectors: Float32Array, owner: IntArray, others: _Sums) -> tuple[Float32Array, FlagArray]:
    """Return the cosines of steps with the sums of their samples, and the samples' flags; owner is a step's sample."""
    direction, count = others
    square = np.einsum("nd,nd->n", direction, direction)
    # As with targets from Grams: where vectors cancel, a smaller square is rounding.
    is_zero = square <= RESOLUTION * count**2
    is_rough = ~is_zero & (square <= ROUGH * count**2)
    length = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    product = np.einsum("nd,nd->n", vectors, direction[owner])
    has_none = is_zero[owner] | (length == 0)
    cosine = np.where(has_none, 0.0, product / np.where(has_none, 1.0, length * np.sqrt(square[owner])))
    flags = is_rough * np.uint8(Flag.CANCELLING)
    flags[np.unique(owner[has_none])] |= np.uint8(Flag.ZERO_VECTOR)
    return np.clip(cosine, -1.0, 1.0).astype(np.float32), flags
