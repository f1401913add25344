"""Read the items of a benchmark from files of records: a question each, with its solution or answer if there is one.

Unlike a sample, an item needs no steps and no response. The format of the records decides how they are read. If the
format is unknown, --map or the usual field names (question, problem, prompt; solution, answer; options) decide.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from grace_store.base.errors import NothingUsable, SettingError, UnknownFormat
from grace_store.base.states import Reason, Unusable
from grace_store.data.dataset import Dataset
from grace_store.data.formats.conversation import read_prompt
from grace_store.data.formats.known_formats import FORMATS
from grace_store.data.formats.mapped import read_choices
from grace_store.data.formats.trace import Format, shown_keys
from grace_store.data.mapping import MAPPED, check_part_names, names_trace, usual_maps, value_at
from grace_store.data.parse_records import detect_format, sample_id
from grace_store.data.record import Record
from grace_store.data.text_matches import Item


def read_items(
    dataset: Dataset, format: str | None = None, mapping: Mapping[str, str] | None = None
) -> tuple[list[Item], Counter[str]]:
    """Return the items, and the number of records without a question by reason; raise NothingUsable without items."""
    mapping = mapping or {}
    read = _choose_format(dataset, format, mapping)
    items: list[Item] = []
    set_aside: Counter[str] = Counter()
    first = None
    for record in dataset.scan():
        try:
            items.append(_item(record, dataset.files[record.file].name, read, mapping))
        except Unusable as why:
            set_aside[why.reason] += 1
            first = first or why
    if not items:
        names = ", ".join(str(file.path) for file in dataset.files)
        raise NothingUsable(
            f"No record of {names} has a question ({first or 'there are none'}). Name the field of the question with "
            "--map prompt=FIELD, and the field of a solution with --map response=FIELD."
        )
    return items, set_aside


def _choose_format(dataset: Dataset, format: str | None, mapping: Mapping[str, str]) -> Format | None:
    """Return the format of the items; None if field names decide, from --map or the usual names."""
    check_part_names(mapping)
    if names_trace(mapping):
        if format not in (None, MAPPED):
            raise SettingError(f"--format {format} and --map cannot be used together: leave one of the two out")
        if "prompt" not in mapping:
            raise SettingError("--map does not name the field of the question. Add --map prompt=FIELD.")
        return None
    if format is not None:
        if format not in FORMATS:
            raise UnknownFormat(f"unknown value {format!r} of --format: use one of {', '.join(FORMATS)}.")
        return FORMATS[format]
    parsed = []
    for record in islice(dataset.scan(), 64):
        with suppress(Unusable):
            parsed.append(record.parse())
    try:
        return FORMATS[detect_format(parsed)]
    except UnknownFormat:
        return None


def _item(record: Record, file_name: str, format: Format | None, mapping: Mapping[str, str]) -> Item:
    fields = record.parse()
    texts = None
    if format is not None:
        with suppress(Unusable):  # for example a test set with secret answers
            trace = format.read(fields)
            texts = "\n".join(turn.text for turn in trace.turns if turn.role == "user"), trace.response
    if texts is None:
        texts = _texts_of(fields, mapping if names_trace(mapping) else next(usual_maps(fields)))
    # Half of a surrogate pair is not a character and cannot be shown or written.
    question, solution = (text.encode(errors="replace").decode() for text in texts)
    if not question.strip():
        raise Unusable(Reason.NO_PROMPT, "the question is empty")
    named = {**fields, "id": value_at(fields, mapping["id"])} if "id" in mapping else fields
    return Item(sample_id(named, file_name, record.row_in_file), record.row, question, solution)


def _texts_of(fields: dict[str, Any], parts: Mapping[str, str]) -> tuple[str, str]:
    """Return the question with its options below it, and the solution, from the fields that parts names."""
    if "prompt" not in parts:
        raise Unusable(Reason.UNKNOWN_RECORD, f"no field has a usual name; the keys are {shown_keys(fields)}")
    asked = read_prompt({"prompt": value_at(fields, parts["prompt"])})
    texts = [part for role, turn in asked if role == "user" for part in turn if isinstance(part, str)]
    values: dict[str, Any] = {}
    for part in parts:
        with suppress(Unusable):  # only the question is required
            values[part] = value_at(fields, parts[part])
    question = "\n".join([*texts, *(each.line for each in read_choices(values.get("options")))])
    for part in ("response", "steps", "answer"):
        if isinstance(value := values.get(part), list):
            return question, "\n".join(each for each in value if isinstance(each, str))
        if isinstance(value, str):
            return question, value
    return question, ""
