"""Parse records into samples: choose the format, find the parts and the segments. Knows no files and no models."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from grace_store.base.errors import SettingError, UnknownFormat
from grace_store.base.settings import DataSpec
from grace_store.base.states import UNREAD_KEYS, Reason, Unusable
from grace_store.base.text import counted
from grace_store.data.answers import named_answer, natural_answer
from grace_store.data.formats.conversation import unread_keys
from grace_store.data.formats.known_formats import FORMATS
from grace_store.data.formats.mapped import MAPPED_FORMAT
from grace_store.data.formats.trace import Format, Trace, shown_keys
from grace_store.data.mapping import MAPPED, check_map, mapped_record, usual_maps
from grace_store.data.record import ID_KEYS, Record
from grace_store.data.sample import Sample
from grace_store.data.splitters import STEP_MARKER, named_splitter, natural_starts

NUM_TRIED = 16
"""Number of records that a proposed mapping is tried on."""
MAX_ID_CHARS = 1024
"""Limit on the length of an id, because every table made from the store repeats it."""
_MANY_LINES = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def parse_record(
    record: Record, spec: DataSpec, file_name: str, row_in_file: int, fields: dict[str, Any] | None = None
) -> Sample:
    """Return the sample that a record holds, or raise Unusable. A record without an id gets the id file_name:row."""
    fields = mapped_record(record.parse() if fields is None else fields, spec)
    format = chosen_format(spec)
    named = {*spec.ignore_key, *(path.partition(".")[0] for path in spec.map.values())}
    if lost := tuple(key for key in unread_keys(fields, format.turns) if key not in named):
        why = "; ".join(f"{key!r} is not read yet, --ignore-key {key} reads the record without it" for key in lost)
        raise Unusable(UNREAD_KEYS[lost[0]], why, keys=lost)
    trace = format.read(fields)
    _check_text(trace)
    _check_expanded(fields, trace, format, spec)
    if not any(turn.role == "user" and (turn.text.strip() or turn.images) for turn in trace.turns):
        raise Unusable(Reason.NO_PROMPT, "nothing is asked before the response")
    if not trace.response.strip():
        raise Unusable(Reason.NO_RESPONSE, "the response is empty")
    bounds = _segment(trace, format, spec)
    num_steps = len(bounds) - 2
    if num_steps < spec.min_steps:
        raise Unusable(Reason.TOO_FEW_STEPS, f"{num_steps} steps, at least {spec.min_steps} wanted", num_steps)
    if num_steps > spec.max_steps:
        raise Unusable(Reason.TOO_MANY_STEPS, f"{num_steps} steps, at most {spec.max_steps} wanted", num_steps)
    return Sample(sample_id(fields, file_name, row_in_file), trace.turns, trace.response, bounds)


def _check_expanded(fields: Mapping[str, Any], trace: Trace, format: Format, spec: DataSpec) -> None:
    """Raise Unusable if the format takes its response from another field than the one that is expanded."""
    if spec.expand is None or (element := fields.get(spec.expand)) in (None, []):
        return  # the record has no list, so it was not expanded
    is_read = True
    if format is MAPPED_FORMAT:
        paths = (spec.map.get(part, "") for part in ("response", "thinking", "steps", "answer"))
        is_read = any(f"{path}.".startswith(f"{spec.expand}.") for path in paths)
    elif isinstance(element, str) and element.strip():
        is_read = element.strip() in trace.response
    else:
        with suppress(Unusable):
            is_read = format.read({**fields, spec.expand: None}) != trace
    if not is_read:
        path = spec.expand if isinstance(element, str) else f"{spec.expand}.text"
        how = f"--map prompt=FIELD --map response={path} reads it"
        raise Unusable(Reason.UNKNOWN_RECORD, f"format {spec.format} reads no response from {spec.expand!r}; {how}")


def sample_id(fields: Mapping[str, Any], file_name: str, row_in_file: int) -> str:
    """Return the record's own id, else "file name:row"."""
    for key in ID_KEYS:
        if isinstance(own := fields.get(key), int) and not isinstance(own, bool):
            return str(own)
        if isinstance(own, str) and own.strip():
            _check_encodable(own, f"{key!r}")
            if len(own) > MAX_ID_CHARS:
                raise Unusable(Reason.BAD_TEXT, f"{key!r} has {len(own)} characters; an id has at most {MAX_ID_CHARS}")
            if found := _MANY_LINES.search(own):
                what = f"a line break or control character (U+{ord(found[0]):04X})"
                raise Unusable(Reason.BAD_TEXT, f"{key!r} has {what}; an id is one line")
            return own
    return f"{file_name}:{row_in_file}"


def check_spec(spec: DataSpec) -> None:
    """Raise UnknownFormat or SettingError for settings that cannot work for any record."""
    chosen_format(spec)
    check_map(spec)
    if spec.splitter != "format":
        named_splitter(spec.splitter)
    if spec.answer not in ("format", "last"):
        named_answer(spec.answer, by_paragraph=False)
    if unknown := [key for key in spec.ignore_key if key not in UNREAD_KEYS]:
        known = f"use {', '.join(UNREAD_KEYS)}"
        raise SettingError(f"unknown value {unknown[0]!r} of --ignore-key: {known}. Other keys need no --ignore-key.")
    if spec.min_steps > spec.max_steps:
        raise SettingError(
            f"--min-steps {spec.min_steps} is above --max-steps {spec.max_steps}. Lower --min-steps or raise "
            "--max-steps."
        )


def chosen_format(spec: DataSpec) -> Format:
    """Return the format that a spec names, or raise UnknownFormat."""
    if spec.format == MAPPED_FORMAT.name:
        return MAPPED_FORMAT
    if spec.format not in FORMATS:
        raise UnknownFormat(f"unknown value {spec.format!r} of --format: use one of {', '.join(FORMATS)}.")
    return FORMATS[spec.format]


def detect_format(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the format of more than half of the records; raise UnknownFormat if there is none."""
    if not records:
        raise UnknownFormat("there is no record, so the format is unknown: give --format")
    counts = {name: sum(map(format.recognises, records)) for name, format in FORMATS.items()}
    best = max(counts, key=lambda name: counts[name])
    if counts[best] * 2 > len(records) and list(counts.values()).count(counts[best]) == 1:
        return best
    seen = ", ".join(f"{count} as {name}" for name, count in counts.items() if count) or "none"
    known = "\n".join(f"  {name:<14}{format.description}" for name, format in FORMATS.items())
    text = json.dumps(records[0])
    example = text if len(text) <= 300 else text[:300] + "..."
    name_them = "Name the fields that hold prompt and response: --map prompt=FIELD --map response=FIELD."
    raise UnknownFormat(
        f"the format of the records is not clear. Records read: {len(records)}; recognised: {seen}.\n"
        f"Keys of the first record: {shown_keys(records[0])}.\nThe first record begins: {example}\n"
        f"{_proposal(records) or name_them}\nOr give --format, or convert the records to one of:\n{known}"
    )


def _proposal(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the mapping of usual names that reads most of the first records, as a sentence; None if it reads few."""
    tried = [Record(0, 0, 0, 0, json.dumps(fields).encode()) for fields in records[:NUM_TRIED]]

    def num_read(mapping: dict[str, str]) -> int:
        num, spec = 0, DataSpec(format=MAPPED, map=mapping, min_steps=1)
        for record in tried:
            with suppress(Unusable):
                parse_record(record, spec, "", 0)
                num += 1
        return num

    possible = [each for each in usual_maps(records[0]) if {"prompt", "response"} <= each.keys()]
    counts = [num_read(mapping) for mapping in possible]
    if 2 * max(counts, default=0) <= len(tried):
        return None
    options = " ".join(f"--map {part}={field}" for part, field in possible[counts.index(max(counts))].items())
    return f"Try {options}. Of the first {counted(len(tried), 'record')}, it reads {max(counts)}."


def _segment(trace: Trace, format: Format, spec: DataSpec) -> tuple[int, ...]:
    if spec.answer == "last":
        *starts, answer_start = _all_starts(trace, format, spec) or [0]
    else:
        answer_start = _answer_start(trace, format, spec)
        starts = [start for start in _all_starts(trace, format, spec, answer_start) if start < answer_start]
    if not starts:
        how = "" if spec.splitter == "format" else f" --splitter {spec.splitter}"
        raise Unusable(Reason.NO_STEPS, f"no step found before the answer{how}; see --splitter")
    return cover(trace.response, starts, answer_start)


def cover(response: str, step_starts: Sequence[int], answer_start: int) -> tuple[int, ...]:
    """Return the bounds of segments that begin at the given places and cover the response without gaps.

    Text before the first step belongs to the first step. Each segment ends where the next one begins, so a separator
    belongs to the segment before it. Text after the answer belongs to the answer. Raises Unusable if there are no
    steps, or if a segment has no visible character.
    """
    if not step_starts:
        raise Unusable(Reason.NO_STEPS)
    bounds = (0, *step_starts[1:], answer_start, len(response))
    for i, (start, stop) in enumerate(pairwise(bounds)):
        if start >= stop or response[start:stop].isspace():
            name = "the answer" if i == len(bounds) - 2 else f"step {i + 1}"
            raise Unusable(Reason.EMPTY_SEGMENT, f"{name} is empty")
    return bounds


def _answer_start(trace: Trace, format: Format, spec: DataSpec) -> int:
    if spec.answer == "format":
        if trace.answer_start is not None:
            return trace.answer_start
        start, wanted = (format.find_answer or natural_answer)(trace.response), format.answer_marks
    else:
        has_no_markers = STEP_MARKER.search(trace.response) is None
        by_paragraph = spec.splitter == "paragraphs" or (spec.splitter == "format" and has_no_markers)
        start, wanted = named_answer(spec.answer, by_paragraph=by_paragraph)(trace.response), f"--answer {spec.answer}"
    if start is None:
        how = "--answer says how else to find it: last, boxed or marker:REGEX"
        raise Unusable(Reason.NO_ANSWER, f"looked for {wanted}; {how}")
    return start


def _all_starts(trace: Trace, format: Format, spec: DataSpec, stop: int | None = None) -> list[int]:
    """Return where segments begin before stop; if stop is None, in the whole response."""
    if spec.splitter != "format":
        return named_splitter(spec.splitter)(trace.response[:stop])
    if trace.step_starts is None:
        return (format.split or natural_starts)(trace.response[:stop])
    return [*trace.step_starts, *([] if stop is not None or trace.answer_start is None else [trace.answer_start])]


def _check_text(trace: Trace) -> None:
    _check_encodable(trace.response, "the response")
    for turn in trace.turns:
        for part in turn.parts:
            text = part if isinstance(part, str) else part.source
            if isinstance(text, str):
                _check_encodable(text, f"the {turn.role} turn")


def _check_encodable(text: str, where: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"half a surrogate pair (U+{ord(text[error.start]):04X})"
        raise Unusable(Reason.BAD_TEXT, f"{found} at character {error.start} of {where}") from None
