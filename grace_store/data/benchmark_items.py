"""The items of a benchmark from files of records: a question each, and a solution or answer if there is one.

Unlike a sample, an item needs no steps and no response. Records are read by their format if it is known; otherwise by
the names that benchmarks usually have (question, problem, prompt; solution, answer; options, choices), or as mapped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from grace_store.base.errors import NothingUsable, SettingError, UnknownFormat
from grace_store.base.states import Reason, Unusable
from grace_store.data.choices import read_choices
from grace_store.data.dataset import Dataset
from grace_store.data.formats import FORMATS
from grace_store.data.formats.conversation import read_prompt
from grace_store.data.formats.trace import Format, shown_keys
from grace_store.data.mapping import MAPPED, check_part_names, names_trace, usual_parts, value_at
from grace_store.data.record import Record
from grace_store.data.text_matches import Item
from grace_store.data.understand import detect_format, sample_id

RECORDS_LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class Items:
    """What a benchmark's files hold."""

    items: list[Item]
    set_aside: Counter[str] = field(default_factory=Counter)
    """Records without a question, by the reason."""


def read_items(dataset: Dataset, format: str | None = None, mapping: Mapping[str, str] | None = None) -> Items:
    """Return the items of a dataset; raise a DataError if no record has a question."""
    reading = _Reading.of(dataset, format, mapping or {})
    found, first = Items([]), None
    for record in dataset.scan():
        try:
            found.items.append(reading.item(record, dataset.files[record.file].name))
        except Unusable as why:
            found.set_aside[why.reason] += 1
            first = first or why
    if not found.items:
        names = ", ".join(str(file.path) for file in dataset.files)
        raise NothingUsable(
            f"No record of {names} has a question ({first or 'there are none'}). Name the field that has it: --map "
            "prompt=FIELD, and --map response=FIELD for a solution."
        )
    return found


@dataclass(frozen=True, slots=True)
class _Reading:
    """How records become items: by a format, by fields that were named, or by usual names."""

    format: Format | None
    mapping: Mapping[str, str]

    @classmethod
    def of(cls, dataset: Dataset, format: str | None, mapping: Mapping[str, str]) -> _Reading:
        check_part_names(mapping)
        if names_trace(mapping):
            if format not in (None, MAPPED):
                raise SettingError(f"--format {format} finds questions in its own way: leave it or --map out")
            if "prompt" not in mapping:
                raise SettingError("--map says nothing of the question. Add --map prompt=FIELD.")
            return cls(None, mapping)
        if format is not None:
            if format not in FORMATS:
                raise UnknownFormat(f"--format {format!r} is none of {', '.join(FORMATS)}.")
            return cls(FORMATS[format], mapping)
        return cls(_recognised(dataset), mapping)

    def item(self, record: Record, file_name: str) -> Item:
        """Return a record as an item, or raise Unusable."""
        fields = record.parse()
        # Half a surrogate pair is no character: it could not be shown or written.
        question, solution = (text.encode(errors="replace").decode() for text in self._texts(fields))
        if not question.strip():
            raise Unusable(Reason.NO_PROMPT, "the question is empty")
        named = {**fields, "id": value_at(fields, self.mapping["id"])} if "id" in self.mapping else fields
        return Item(sample_id(named, file_name, record.row_in_file), record.row, question, solution)

    def _texts(self, fields: dict[str, Any]) -> tuple[str, str]:
        if self.format is not None:
            try:
                trace = self.format.read(fields)
            except Unusable:  # such as a test set whose answers are kept secret
                return _texts_of(fields, usual_parts(fields))
            return "\n".join(turn.text for turn in trace.turns if turn.role == "user"), trace.response
        return _texts_of(fields, self.mapping if names_trace(self.mapping) else usual_parts(fields))


def _recognised(dataset: Dataset) -> Format | None:
    """Return the format of the first records; None if they have none that is known."""
    parsed = []
    for record in islice(dataset.scan(), RECORDS_LOOKED_AT):
        try:
            parsed.append(record.parse())
        except Unusable:
            continue
    try:
        return FORMATS[detect_format(parsed)]
    except UnknownFormat:
        return None


def _texts_of(fields: dict[str, Any], parts: Mapping[str, str]) -> tuple[str, str]:
    """Return the question, its options below it, and the solution that fields of these names hold."""
    if "prompt" not in parts:
        raise Unusable(Reason.UNKNOWN_RECORD, f"no field has a usual name; the keys are {shown_keys(fields)}")
    asked = read_prompt({"prompt": value_at(fields, parts["prompt"])})
    texts = [part for role, turn in asked if role == "user" for part in turn if isinstance(part, str)]
    options = _held(fields, parts, "options")
    lines = [each.line for each in read_choices(options)] if options is not None else []
    return "\n".join([*texts, *lines]), _solution(fields, parts)


def _solution(fields: dict[str, Any], parts: Mapping[str, str]) -> str:
    for part in ("response", "steps", "answer"):
        value = _held(fields, parts, part)
        if isinstance(value, list):
            return "\n".join(each for each in value if isinstance(each, str))
        if isinstance(value, str):
            return value
    return ""


def _held(fields: dict[str, Any], parts: Mapping[str, str], part: str) -> Any:
    """Return what a record has of a part; None if it has nothing: only the question is needed."""
    try:
        return value_at(fields, parts[part]) if part in parts else None
    except Unusable:
        return None
