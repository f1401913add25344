"""Records whose fields have names of their own: which field is which part. Knows no files.

Some parts make a record readable by themselves (prompt, response or steps, answer, options): their format is `mapped`.
The others (images, system, id) only take the place of what a record of any format has under these names.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from grace_store.base.errors import SettingError
from grace_store.base.settings import DataSpec
from grace_store.base.states import Reason, Unusable
from grace_store.data.formats.trace import Fields, shown_keys
from grace_store.data.images import IMAGE_KEYS

MAPPED = "mapped"
"""The name of the format that reads what is mapped."""
TRACE_PARTS = ("prompt", "response", "steps", "answer", "options")
ANY_PARTS = ("images", "system", "id")

_INDEX = re.compile(r"-?\d{1,9}")
_USUAL_NAMES = {
    "prompt": ("prompt", "question", "problem", "query", "instruction", "input"),
    "response": ("response", "rationale", "solution", "reasoning", "cot", "completion", "generation", "output",
                 "explanation", "answer"),
    "answer": ("final_answer", "correct", "answer", "answerKey", "target"),
    "options": ("options", "choices"),
    "id": ("qid", "question_id", "problem_id", "idx"),
}  # fmt: skip
"""What datasets call the parts, the likeliest first."""


# ---------------------------------------------------------------- the setting


def names_trace(mapping: Mapping[str, str]) -> bool:
    """Whether a mapping names parts of the trace itself, so that no other format reads the record."""
    return any(part in mapping for part in TRACE_PARTS)


def check_part_names(mapping: Mapping[str, str]) -> None:
    """Raise SettingError for a part that there is not."""
    if unknown := [part for part in mapping if part not in (*TRACE_PARTS, *ANY_PARTS)]:
        known = ", ".join((*TRACE_PARTS, *ANY_PARTS))
        raise SettingError(f"--map {unknown[0]}={mapping[unknown[0]]}: there is no such part. The parts are {known}.")


def check_map(spec: DataSpec) -> None:
    """Raise SettingError for a mapping that no record could be read with."""
    check_part_names(spec.map)
    if not names_trace(spec.map):
        if spec.format == MAPPED:
            raise SettingError(f"--format {MAPPED} takes --map prompt=FIELD --map response=FIELD.")
        return
    if spec.format != MAPPED:
        named = next(part for part in TRACE_PARTS if part in spec.map)
        how = f"--format {spec.format} finds the {named} in its own way"
        raise SettingError(f"{how}, so --map {named}={spec.map[named]} cannot be used with it. Leave out one of them.")
    _check_parts(spec)


def _check_parts(spec: DataSpec) -> None:
    """Raise SettingError unless the parts make up a trace."""
    if "prompt" not in spec.map:
        raise SettingError("--map says nothing of the prompt. Add --map prompt=FIELD.")
    if ("response" in spec.map) == ("steps" in spec.map):
        raise SettingError("Give either --map response=FIELD (a text) or --map steps=FIELD (a list of texts).")
    if "answer" in spec.map and spec.answer != "format":
        answer = f"--map answer={spec.map['answer']} and --answer {spec.answer}"
        raise SettingError(f"{answer} both say where the answer is. Leave out one of them.")


def suggested_map(record: Fields) -> dict[str, str] | None:
    """Return a mapping for a record whose fields have usual names, also one level down; None if they have not."""
    found = usual_parts(record)
    return found if {"prompt", "response"} <= found.keys() else None


def usual_parts(record: Fields) -> dict[str, str]:
    """Return the fields of a record whose names are usual for a part, by the part, also one level down."""
    paths = {path.rpartition(".")[2]: path for path in reversed(list(_paths(record)))}
    names = {part: next((name for name in usual if name in paths), None) for part, usual in _USUAL_NAMES.items()}
    found = {part: paths[name] for part, name in names.items() if name is not None}
    if found.get("answer") == found.get("response"):
        found.pop("answer", None)
    if "id" in record:
        found.pop("id", None)
    return found


def _paths(record: Fields) -> Iterator[str]:
    yield from record
    for name, value in record.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inside}" for inside in value)


# ---------------------------------------------------------------- a record


def mapped_record(record: dict[str, Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    """Return a record with its parts under the names of the parts, or raise Unusable if one is not there."""
    if not mapping:
        return record
    parts = {part: value_at(record, path) for part, path in mapping.items()}
    if "id" in parts:
        parts["id"] = _as_id(parts["id"], mapping["id"])
    replaced = {*(TRACE_PARTS if names_trace(mapping) else ()), *(IMAGE_KEYS if "images" in parts else ())}
    return {key: value for key, value in record.items() if key not in replaced} | parts


def value_at(record: Fields, path: str) -> Any:
    """Return what a record holds at a dotted path; in a list, a number counts its items, from the end if negative.

    >>> value_at({"meta": {"question": "Why?"}, "turns": [{"text": "a"}, {"text": "b"}]}, "turns.-1.text")
    'b'
    """
    if path in record:  # a name may have dots in it
        return record[path]
    found: Any = record
    for name in path.split("."):
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and _INDEX.fullmatch(name) and -len(found) <= int(name) < len(found):
            found = found[int(name)]
        else:
            raise Unusable(Reason.UNKNOWN_RECORD, f"no field {path!r}; the keys are {shown_keys(record)}")
    return found


def _as_id(value: Any, path: str) -> str:
    """Return an id as text. Whoever names the field of ids wants them all from there."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of integers in which some were missing
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        found = "is empty" if value is None or value == "" else f"is a {type(value).__name__}"
        raise Unusable(Reason.UNKNOWN_RECORD, f"the id ({path!r}) {found}; a text or a whole number is wanted")
    return str(value)
