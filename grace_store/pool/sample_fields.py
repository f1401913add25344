"""Fields of samples, as filters (--where), labels (--right) and groups (--by) read them.

A field is a field of the records, a column of a file of labels, or a column that a plan or a table has.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from grace_store.base.arrays import BoolArray, IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.finding import WhereNote
from grace_store.base.text import counted, one_line
from grace_store.data.record import value_of

if TYPE_CHECKING:
    from grace_store.pool.filter_expression import FilterExpression
    from grace_store.pool.label_columns import LabelColumns
    from grace_store.pool.records import SampleRecords

ROWS_AT_ONCE = 512
"""Samples that are filtered together; a small number, because a field may hold a whole trace."""
EXAMPLES_SHOWN = 3
RECORDS_SEEN = 1000
"""Records that are searched for examples."""
VALUES_TOLD = 8
"""Most values of a field that are told one by one."""
_MISSING = object()

KnownColumns = Mapping[str, Callable[[int, int], Sequence[object]]]
"""Columns that are known without the records: by name, a function that returns the values of samples start..stop."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The samples that a filter keeps."""

    where: str
    """The filter, in SQL."""
    is_kept: BoolArray
    num_samples: int
    """Number of samples that the filter was applied to, which may be fewer than all."""

    @property
    def num_kept(self) -> int:
        return int(np.count_nonzero(self.is_kept))

    @property
    def note(self) -> WhereNote:
        """The note of the filter for documents."""
        return WhereNote(sql=self.where, num_samples=self.num_samples, num_kept=self.num_kept)

    @property
    def places(self) -> IntArray:
        """Indices of the samples that the filter keeps."""
        return np.flatnonzero(self.is_kept)


@dataclass(frozen=True, slots=True)
class SampleFields:
    """The fields of some samples. Records are opened only if one of their fields is read."""

    known: KnownColumns
    """Columns of a plan or a table."""
    num_samples: int
    records: Callable[[], SampleRecords]
    """Opens the records of the samples."""
    labels: LabelColumns | None = None
    """Columns of a file of labels for these samples."""

    @property
    def columns(self) -> KnownColumns:
        """The columns that are known without the records; labels are joined when they are read."""

        def column(labels: LabelColumns, name: str) -> Callable[[int, int], Sequence[object]]:
            joined = cache(lambda: labels.column(name, lambda: self.records().first_fields()))
            return lambda start, stop: joined().slice(start, stop - start).to_pylist()

        labels = self.labels
        return self.known if labels is None else {**self.known, **{name: column(labels, name) for name in labels.names}}

    def where(self, where: str) -> Kept:
        """Return the samples that a filter keeps; raise SettingError if there are none."""
        is_kept, _, examples = self.truth(where)
        if self.num_samples and not is_kept.any():
            raise SettingError(f"--where {one_line(where)!r} keeps none of the {self.num_samples} samples{examples}")
        return Kept(where, is_kept, self.num_samples)

    def right(self, condition: str, listener: Listener = ignore) -> tuple[BoolArray, BoolArray]:
        """Return right samples and wrong ones, and tell the values of one field; raise DataError unless both exist."""
        is_right, is_wrong, examples = self.truth(condition, "--right", listener)
        if not (is_right.any() and is_wrong.any()):
            counts = f"{is_right.sum()} right and {is_wrong.sum()} wrong among {counted(self.num_samples, 'sample')}"
            told = f"--right {one_line(condition)!r} finds {counts}, but both kinds are needed{examples}"
            raise DataError(f"{told}. Give another condition, such as verdict = 'good' for labels that are words.")
        return is_right, is_wrong

    def truth(
        self, condition: str, option: str = "--where", listener: Listener = ignore
    ) -> tuple[BoolArray, BoolArray, str]:
        """Return the samples for which a condition is true, those for which it is false, and examples of values.

        With a missing value, a condition is neither. Only --right asks which samples are false; for --where, none is.
        """
        from grace_store.pool.filter_expression import FilterExpression

        named, known = condition.replace('""', '"').lower(), self.columns
        expression = FilterExpression(condition, [name for name in known if name.lower() in named], option)
        truth = np.zeros((self.num_samples, 2), dtype=np.bool_)
        seen, tried = _Seen({name: [] for name in expression.names}), _Tried(expression)
        found = self.records() if expression.names else None
        rows = iter(() if found is None else found)
        for start in range(0, self.num_samples, ROWS_AT_ONCE):
            stop = min(start + ROWS_AT_ONCE, self.num_samples)
            columns = [known[name](start, stop) for name in expression.known]
            if found is None and columns:
                block: list[tuple[object, ...]] = list(zip(*columns, strict=True))
            else:
                fields = [seen.values(record) for record in islice(rows, stop - start)] or [[]] * (stop - start)
                block = [(*each, *more) for *each, more in zip(*columns, fields, strict=True)]
            truth[start:stop] = tried.truth(block, with_false=option != "--where")
        if told := tried.in_words():
            listener(Note(told))
        if found is not None:
            seen.check(expression, found, list(known))
        expression.check_texts()
        for name in expression.known:
            some = known[name](0, min(RECORDS_SEEN, self.num_samples))
            seen.examples[name] = list(dict.fromkeys(each for each in some if each is not None))[:EXAMPLES_SHOWN]
        return truth[:, 0], truth[:, 1], seen.in_words()

    def groups(self, by: str) -> list[object]:
        """Return the group of each sample: its value of a field, or a tuple of its values of several fields."""
        names, known = parse_names(by), self.columns
        columns: dict[str, Sequence[object]] = {
            name: known[name](0, self.num_samples) if name in known else [] for name in names
        }
        if fields := [name for name in names if name not in known]:
            opened = self.records()
            columns |= (found := opened.fields(fields))
            for name, values in found.items():
                if all(value is None for value in values):
                    raise opened.unknown(name, list(known))
        return list(columns[names[0]]) if len(names) == 1 else list(zip(*columns.values(), strict=True))


@dataclass(slots=True)
class _Tried:
    """A condition, which tries equal rows once: labels have few different values."""

    expression: FilterExpression
    found: dict[object, tuple[bool, bool]] = field(default_factory=dict)
    counts: Counter[tuple[object, tuple[bool, bool]]] = field(default_factory=Counter)
    """Number of samples by value and truth, if the condition names one field with few different values."""

    def truth(self, rows: Sequence[Sequence[object]], *, with_false: bool) -> Sequence[tuple[bool, bool]]:
        """Return for each row whether the condition is true, and, if asked for, whether it is false."""
        is_by_value = self.expression.is_by_value
        # repr tells 1, 1.0, true and '1' apart.
        keys: Sequence[object] = list(map(repr, rows)) if is_by_value else range(len(rows))
        if len(self.found) > ROWS_AT_ONCE or not is_by_value:
            self.found.clear()
        new = {key: row for key, row in zip(keys, rows, strict=True) if key not in self.found}
        if tried := list(new.values()):
            is_true = set(self.expression.keeps(tried))
            is_false = set(self.expression.keeps(tried, negated=True)) if with_false else set()
            self.found |= {key: (number in is_true, number in is_false) for number, key in enumerate(new)}
        truth = [self.found[key] for key in keys]
        if with_false and len(self.counts) <= VALUES_TOLD and len(rows[0]) == 1:
            self.counts.update(zip(keys if is_by_value else map(repr, rows), truth, strict=True))
        return truth

    def in_words(self) -> str:
        """Return how many samples each value makes right or wrong; empty if there are many values."""
        found = self.counts.most_common() if len(self.counts) <= VALUES_TOLD else []
        right, wrong = (
            ", ".join(f"{one_line(str(row)[1:-2])} ({num})" for (row, truth), num in found if truth == kind)
            for kind in ((True, False), (False, True))
        )
        return f"Right: {right}. Wrong: {wrong}." if right and wrong else ""


@dataclass(slots=True)
class _Seen:
    """The first values of each field that a filter reads, as examples for errors."""

    examples: dict[str, list[object]]
    is_there: set[str] = field(default_factory=set)
    num_seen: int = 0

    def values(self, record: object) -> list[object]:
        """Return the fields of a record, None for a field that the record lacks."""
        if self.num_seen >= RECORDS_SEEN and len(self.is_there) == len(self.examples):
            return [value_of(record, name) for name in self.examples]
        self.num_seen += 1
        found = {name: value_of(record, name, _MISSING) for name in self.examples}
        there = {name: value for name, value in found.items() if value is not _MISSING}
        self.is_there.update(there)
        for name, value in there.items():
            if len(some := self.examples[name]) < EXAMPLES_SHOWN and value not in some:
                some.append(value)
        return [there.get(name) for name in found]

    def check(self, expression: FilterExpression, records: SampleRecords, known: Sequence[str]) -> None:
        """Raise SettingError for a field that no record has."""
        for name in self.examples.keys() - self.is_there:
            error = records.unknown(name, known)
            if name in expression.quoted:
                error.add_note("Double quotes are for names of fields; a text stands in single quotes.")
            raise error

    def in_words(self) -> str:
        """Return examples of values, for the error of a filter that keeps no sample."""
        shown = (f"{n} is {', '.join(one_line(repr(each)) for each in some)}" for n, some in self.examples.items())
        return f": {'; '.join(shown)}, for example" if self.examples else ""


def parse_names(text: str) -> list[str]:
    """Return the names of a list; a name with a comma stands in double quotes.

    >>> parse_names('source,"a, b"')
    ['source', 'a, b']
    """
    try:
        names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True, strict=True), [])]
    except csv.Error as error:
        raise SettingError(f"{text!r} is not a list of fields ({error})") from None
    if not names or not all(names) or len(set(names)) < len(names):
        raise SettingError(f"{text!r} is not a list of different fields: write source,level for example")
    return names
