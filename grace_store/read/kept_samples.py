"""Which samples --where keeps, and which groups --by makes of them: from fields of their records and what is known."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from grace_store.base.arrays import BoolArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.base.text import one_line
from grace_store.data.fields import value_of
from grace_store.read.filter_expression import FilterExpression
from grace_store.read.records import SampleRecords
from grace_store.store.opened import Store

ROWS_AT_ONCE = 512
"""Samples that are filtered together: few, because a field may hold a whole trace."""
EXAMPLES_SHOWN = 3
RECORDS_SEEN = 1000
"""Records among which examples are looked for."""
_MISSING = object()

KnownColumns = Mapping[str, Callable[[int, int], Sequence[object]]]
"""What is known of samples without their records, by name: the values of samples start..stop."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Which of some samples a filter keeps."""

    where: str
    """The filter, in SQL."""
    is_kept: BoolArray
    num_samples: int
    """Samples that it was asked of, which may be fewer than all."""

    @property
    def num_kept(self) -> int:
        return int(np.count_nonzero(self.is_kept))

    @property
    def places(self) -> IntArray:
        """Where those that are kept stand among the samples."""
        return np.flatnonzero(self.is_kept)


def keep_planned(store: Store, where: str, data: Sequence[str | Path] | None = None) -> Kept:
    """Return which samples of a plan a filter keeps, by position."""
    return keep(where, planned_columns(store), store.plan.num_samples, lambda: SampleRecords(store, data))


def planned_columns(store: Store) -> KnownColumns:
    """Return what a plan knows of its samples."""
    names = {"id": "sample_id", "row": "sample_row", "num_steps": "sample_num_steps"}

    def column(name: str) -> Callable[[int, int], Sequence[object]]:
        return lambda start, stop: store.column(name, start, stop).tolist()

    return {name: column(array) for name, array in names.items()}


def keep(where: str, known: KnownColumns, num_samples: int, records: Callable[[], SampleRecords]) -> Kept:
    """Return which samples a filter keeps, in blocks; records are opened if the filter reads a field of theirs."""
    expression = FilterExpression(where, list(known))
    is_kept = np.zeros(num_samples, dtype=np.bool_)
    seen = _Seen({name: [] for name in expression.names})
    found = records() if expression.names else None
    rows = iter(found) if found is not None else iter(lambda: None, 0)
    for start in range(0, num_samples, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, num_samples)
        columns = [known[name](start, stop) for name in expression.known]
        fields = [seen.values(record) for record in islice(rows, stop - start)]
        block = [(*each, *more) for *each, more in zip(*columns, fields, strict=True)]
        is_kept[[start + place for place in expression.keeps(block)]] = True
    if found is not None:
        seen.check(expression, found, list(known))
    if num_samples and not is_kept.any():
        raise SettingError(f"--where {one_line(where)!r} keeps none of the {num_samples} samples{seen.in_words()}")
    return Kept(where, is_kept, num_samples)


@dataclass(slots=True)
class _Seen:
    """The first values that were found in each field that a filter reads."""

    examples: dict[str, list[object]]
    is_there: set[str] = field(default_factory=set)
    num_seen: int = 0

    def values(self, record: object) -> list[object]:
        """Return the fields of a record, None for what it lacks."""
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
        """Raise for a field that no record has."""
        for name in self.examples.keys() - self.is_there:
            error = records.unknown(name, known)
            if expression.is_quoted(name):
                error.add_note("Double quotes are for names of fields; a text stands in single quotes.")
            raise error

    def in_words(self) -> str:
        """Return what the fields hold, for one who expected something else of them."""
        shown = (f"{n} is {', '.join(one_line(repr(each)) for each in some)}" for n, some in self.examples.items())
        return f": {'; '.join(shown)}, for example" if self.examples else ""


# ---------------------------------------------------------------- groups


def parse_names(text: str) -> list[str]:
    """Return the names of a list; one that has a comma itself stands in double quotes.

    >>> parse_names('source,"a, b"')
    ['source', 'a, b']
    """
    try:
        names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True, strict=True), [])]
    except csv.Error as error:
        raise SettingError(f"{text!r} is no list of fields ({error})") from None
    if not names or not all(names) or len(set(names)) < len(names):
        raise SettingError(f"{text!r} is no list of different fields, such as source,level")
    return names


def read_groups(by: str, known: KnownColumns, num_samples: int, records: Callable[[], SampleRecords]) -> list[object]:
    """Return the group of each sample: its value of a field, or the values of several, as a tuple."""
    names = parse_names(by)
    columns: dict[str, Sequence[object]] = {
        name: known[name](0, num_samples) if name in known else [] for name in names
    }
    if fields := [name for name in names if name not in known]:
        columns |= _read_columns(records(), fields, list(known))
    return list(columns[names[0]]) if len(names) == 1 else list(zip(*columns.values(), strict=True))


def _read_columns(records: SampleRecords, fields: Sequence[str], known: Sequence[str]) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {name: [] for name in fields}
    for record in records:
        for name, values in columns.items():
            values.append(value_of(record, name))
    for name, values in columns.items():
        if all(value is None for value in values):
            raise records.unknown(name, known)
    return columns


def group_name(group: object) -> str:
    """Return a group in words.

    >>> group_name(("math", None)), group_name(True)
    ('math, (none)', 'True')
    """
    parts = group if isinstance(group, tuple) else (group,)
    return ", ".join(NO_VALUE if part is None else one_line(part) for part in parts)


NO_VALUE = "(none)"
"""What stands for a field that a record lacks."""
