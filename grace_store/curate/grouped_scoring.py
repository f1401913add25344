"""Scores that depend on a question's other traces: values compared within questions, and the groups in the table.

All values come first, then the rows again: what is held are a few numbers a sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from grace_store.artifacts.arrow_arrays import arrow_floats, arrow_numbers, numpy_numbers
from grace_store.artifacts.notes import GroupsNote, ScoresNote
from grace_store.artifacts.outputs import Source
from grace_store.artifacts.score_table import GROUP_COLUMNS, flag_lists
from grace_store.base.arrays import Array, BoolArray, FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.base.flags import Flag
from grace_store.base.text import counted
from grace_store.read.kept_samples import Kept
from grace_store.read.parallel import Threads
from grace_store.read.question_groups import question_groups
from grace_store.store.opened import Store
from grace_store.values.score_spec import ScoreSpec
from grace_store.values.within_groups import Within, compare_within


class Scoring(Protocol):
    """What yields the rows of a table in their order, knows its note, and what it must not be written over."""

    @property
    def note(self) -> ScoresNote: ...

    @property
    def sources(self) -> list[Source]: ...

    def tables(self, threads: Threads) -> Iterator[tuple[pa.Table, Array]]:
        """Yield rows of the table in order, with the samples' flags as numbers."""


@dataclass(frozen=True, slots=True)
class GroupedBy:
    """The question of every sample of a plan, and how values are compared within it."""

    group: IntArray
    """(N,), -1 for samples that are not scored."""
    by: str | None
    within: Within | None


def planned_groups(store: Store, by: str | None, data: Sequence[str | Path] | None, kept: Kept | None) -> IntArray:
    """Return the question of every sample of a plan, -1 for those that a filter leaves out."""
    if kept is None:
        return question_groups(store, by, data)
    group = np.full(store.plan.num_samples, -1)
    group[kept.places] = question_groups(store, by, data, kept.places)
    return group


@dataclass(frozen=True, slots=True)
class GroupedScoring:
    """A scoring whose table says the question of each sample, and whose values may be compared within it."""

    scoring: Scoring
    note: ScoresNote
    value: FloatArray
    """Of every row of the table, as compared."""
    is_alone: BoolArray
    group: IntArray

    @classmethod
    def of(cls, scoring: Scoring, store: Store, groups: GroupedBy, threads: Threads) -> GroupedScoring:
        """Score once for the values alone; raise if there are no two traces of any question."""
        row, value, flags = _values(scoring, threads)
        group = groups.group[store.positions_of(row)]
        # With the target group, what has no other trace is flagged, and has no value.
        is_alone = np.asarray((flags & Flag.ONLY_TRACE) > 0)
        if groups.within is not None:
            value, also_alone = compare_within(value, group, groups.within)
            is_alone |= also_alone
        note = GroupsNote(
            by=groups.by,
            within=groups.within,
            num_groups=len(np.unique(group)),
            num_compared=len(np.unique(group[np.isfinite(value) & ~is_alone])),
            num_alone=int(np.count_nonzero(is_alone)),
        )
        if len(row) and not note.num_compared:
            raise SettingError(_nothing_to_compare(store, note))
        scored = scoring.note.model_copy(update={"groups": note})
        told = (*(scored.notes or ()), groups_in_words(scored))
        return cls(scoring, scored.model_copy(update={"notes": told}), value, is_alone, group)

    @property
    def sources(self) -> list[Source]:
        return self.scoring.sources

    def tables(self, threads: Threads) -> Iterator[tuple[pa.Table, Array]]:
        """Yield rows of the table in order, with the samples' flags as numbers."""
        start = 0
        for table, flags in self.scoring.tables(threads):
            rows = slice(start, start := start + table.num_rows)
            yield self._compared(table, flags | self.is_alone[rows] * np.uint32(Flag.ONLY_TRACE), rows)

    def _compared(self, table: pa.Table, flags: Array, rows: slice) -> tuple[pa.Table, Array]:
        plain = table["value"]
        changed = {"value": arrow_floats(self.value[rows], pa.float64()), "flags": flag_lists(flags)}
        for name, column in changed.items():
            table = table.set_column(table.column_names.index(name), name, column)
        for name, column in zip(GROUP_COLUMNS, (arrow_numbers(self.group[rows], pa.int64()), plain), strict=True):
            table = table.append_column(name, column)
        return table, flags


def groups_in_words(note: ScoresNote) -> str:
    """Return what was compared with what, and what could not be; of a table that says the questions."""
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
    result = f"{value} no value" if by_answers else f"{value} the value 0"
    flag = "flagged only_trace"
    return (
        f"{said} {counted(groups.num_alone, 'sample')} {verb} the only trace of {own} question, {flag}, and {result}."
    )


def _values(scoring: Scoring, threads: Threads) -> tuple[IntArray, FloatArray, Array]:
    """Return the row, value and flags of every sample."""
    found = [
        (numpy_numbers(table["row"]), numpy_numbers(table["value"]), flags.astype(np.uint32))
        for table, flags in scoring.tables(threads)
    ]
    if not found:
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.uint32)
    row, value, flags = (np.concatenate(each) for each in zip(*found, strict=True))
    return row, value, flags


def _nothing_to_compare(store: Store, note: GroupsNote) -> str:
    if note.by is None:
        same, remedy = "with the same prompt and images", "name the records' field that says the question: --group-by"
    else:
        same, remedy = f"with the same {note.by!r}", "give another --group-by, or none for the same prompt and images"
    return f"no question of {store.location} has two traces ({same}) to compare, among those with a value; {remedy}"
