"""Fields of the records beside the traces of a page: which ones, their values, and how they are filtered by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grace_store.base.text import one_line
from grace_store.data.record import fields_in, value_of
from grace_store.pool.records import SampleRecords

MAX_CHOICES = 24
"""Different values from which on a field is filtered by a range or by a text, not by a choice."""
MAX_DEFAULT_FIELDS = 4
MAX_DEFAULT_CHOICES = 12
MAX_DEFAULT_CHARS = 32
MAX_NAMES_LOOKED_AT = 500
SHOWN_ANYWAY = ("id", "row", "num_steps", "num_tokens", "value", "flags")
"""What the list says of every trace: these names do not stand for fields of records."""
LARGEST_WHOLE = 2**53
"""Beyond this a browser rounds whole numbers: they are shown as text."""

FieldKind = Literal["choice", "number", "text"]
Shown = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class ShownField:
    """One column of the list of traces."""

    name: str
    values: list[Shown]
    """Of each trace; None where its record has none."""

    @property
    def kind(self) -> FieldKind:
        """How it is filtered by."""
        found = {type(value) for value in self.values if value is not None}
        if len(set(self.values)) <= MAX_CHOICES:
            return "choice"
        return "number" if found <= {int, float} else "text"


def shown_fields(records: SampleRecords, named: Sequence[str] | None) -> list[ShownField]:
    """Return the fields that are named, or without names the few that tell traces apart with short values."""
    if named is None:
        named = _telling(records)
    columns: dict[str, list[Shown]] = {name: [] for name in named if name not in SHOWN_ANYWAY}
    for record in records if columns else ():
        for name, values in columns.items():
            values.append(_shown(value_of(record, name)))
    for name, values in columns.items():
        if len(records) and all(value is None for value in values):
            raise records.unknown(name)
    return [ShownField(name, values) for name, values in columns.items()]


def _shown(value: object) -> Shown:
    """Return a value as a page carries it: on one short line, and nothing that JSON or a browser would change."""
    if isinstance(value, str):
        return one_line(value)
    is_odd = isinstance(value, float) and not math.isfinite(value)
    if is_odd or (isinstance(value, int) and abs(value) > LARGEST_WHOLE):
        return one_line(value)
    return value if isinstance(value, (bool, int, float)) else None


@dataclass(slots=True)
class _Candidate:
    """What was seen of a field that nobody named."""

    values: set[Any] = field(default_factory=set)
    num_records: int = 0
    is_short: bool = True

    def add(self, value: object) -> None:
        self.num_records += 1
        if not isinstance(value, (str, int, float)) or len(str(value)) > MAX_DEFAULT_CHARS:
            self.is_short = False
        elif self.is_short:
            # True and 1 are one value to a set; as texts they are two.
            self.values.add(str(value))
            self.is_short = len(self.values) <= MAX_DEFAULT_CHOICES


def _telling(records: SampleRecords) -> list[str]:
    """Return fields with a few short values each, that most records have."""
    found: dict[str, _Candidate] = {}
    for record in records:
        for name, value in fields_in(record):
            if name in found or len(found) < MAX_NAMES_LOOKED_AT:
                found.setdefault(name, _Candidate()).add(value)
    fit = [
        name
        for name, each in found.items()
        if each.is_short and len(each.values) > 1 and 2 * each.num_records >= len(records)
    ]
    return fit[:MAX_DEFAULT_FIELDS]
