"""The --map setting: it says which field of a record holds which part. Knows no files.

With some parts (prompt, response or steps, thinking, answer, options) the record has the format `mapped`. The other
parts (images, system, id) replace the fields of these names in a record of any format.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from grace_store.base.errors import SettingError
from grace_store.base.settings import DataSpec
from grace_store.base.states import Reason, Unusable
from grace_store.data.formats.trace import Fields, shown_keys
from grace_store.data.images import IMAGE_KEYS

MAPPED = "mapped"
"""The name of the format that reads mapped parts."""
TRACE_PARTS = ("prompt", "response", "steps", "thinking", "answer", "options")
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
"""The names that datasets use for the parts, the most usual first."""


def names_trace(mapping: Mapping[str, str]) -> bool:
    """Return whether a mapping names parts of the trace, so that the record has the format `mapped`."""
    return any(part in mapping for part in TRACE_PARTS)


def check_part_names(mapping: Mapping[str, str]) -> None:
    """Raise SettingError for a part that does not exist."""
    known = (*TRACE_PARTS, *ANY_PARTS)
    for part, field in mapping.items():
        if part not in known:
            raise SettingError(f"unknown part {part!r} in --map {part}={field}. The parts are {', '.join(known)}.")


def check_map(spec: DataSpec) -> None:
    """Raise SettingError for a mapping that cannot work for any record."""
    check_part_names(spec.map)
    if not names_trace(spec.map):
        if spec.format == MAPPED:
            raise SettingError(f"--format {MAPPED} needs --map. Add --map prompt=FIELD --map response=FIELD.")
        return
    if spec.format != MAPPED:
        part = next(each for each in TRACE_PARTS if each in spec.map)
        how = f"--format {spec.format} finds the {part} in its own way"
        raise SettingError(f"{how}, so --map {part}={spec.map[part]} cannot be used. Leave out one of the two options.")
    if "prompt" not in spec.map:
        raise SettingError("--map does not name the field of the prompt. Add --map prompt=FIELD.")
    if ("response" in spec.map) == ("steps" in spec.map):
        raise SettingError("Give either --map response=FIELD (a text) or --map steps=FIELD (a list of texts).")
    if "thinking" in spec.map and "steps" in spec.map:
        raise SettingError("--map thinking=FIELD goes with --map response=FIELD. Leave out --map steps.")
    if "answer" in spec.map and spec.answer != "format":
        answer = f"--map answer={spec.map['answer']} and --answer {spec.answer}"
        raise SettingError(f"{answer} both say where the answer is. Leave out one of the two options.")


def usual_maps(record: Fields) -> Iterator[dict[str, str]]:
    """Yield every {part: field} of fields with a usual name, at the top level or one level below; most usual first."""
    paths = {path.rpartition(".")[2]: path for path in reversed(list(_paths(record)))}
    found = {part: [paths[name] for name in usual if name in paths] for part, usual in _USUAL_NAMES.items()}
    if "id" in record:
        found["id"] = []
    first = {part: found[part][0] for part in ("options", "id") if found[part]}
    none: list[str | None] = [None]
    for prompt, response, answer in product(*([*found[part], *none] for part in ("prompt", "response", "answer"))):
        if answer is None or answer != response:
            named = {"prompt": prompt, "response": response, "answer": answer}
            yield {part: field for part, field in named.items() if field is not None} | first


def _paths(record: Fields) -> Iterator[str]:
    yield from record
    for name, value in record.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inside}" for inside in value)


def mapped_record(record: dict[str, Any], spec: DataSpec) -> dict[str, Any]:
    """Return a record with its fields renamed to the parts, or raise Unusable if a field is missing."""
    if not (mapping := spec.map):
        return record
    parts = {part: value_at(record, path) for part, path in mapping.items()}
    if "id" in parts:
        value = parts["id"]
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # tables store a column of integers with missing values as floats
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            found = "is empty" if value is None or value == "" else f"is a {type(value).__name__}"
            what = f"the id ({mapping['id']!r}) {found}; a text or a whole number is wanted"
            raise Unusable(Reason.UNKNOWN_RECORD, what)
        parts["id"], written = str(value), record.get("id")
        if spec.expand and isinstance(written, str) and written.startswith(f"{value}/"):
            parts["id"] = written  # the id of one element of the record
    replaced = {*(TRACE_PARTS if names_trace(mapping) else ()), *(IMAGE_KEYS if "images" in parts else ())}
    return {key: value for key, value in record.items() if key not in replaced} | parts


def value_at(record: Fields, path: str) -> Any:
    """Return the value at a dotted path. A number is an index into a list; negative numbers count from the end.

    >>> value_at({"meta": {"question": "Why?"}, "turns": [{"text": "a"}, {"text": "b"}]}, "turns.-1.text")
    'b'
    """
    if path in record:  # the name of a field may have dots in it
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
