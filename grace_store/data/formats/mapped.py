"""The format for all other records, after `data.mapping` has renamed their fields to the names of the parts.

The options of a multiple-choice question become lines of the prompt.
"""

import json
import re
from typing import Any, NamedTuple

from grace_store.base.states import Reason, Unusable
from grace_store.data.answers import natural_answer
from grace_store.data.formats.conversation import read_prompt
from grace_store.data.formats.trace import Fields, Format, Trace, listed_steps, listed_trace, text_field, with_thoughts
from grace_store.data.images import place_images, record_images

_AROUND = " \t\r\n*_.$([{)}]"
_LABELLED = re.compile(r"\s*[(\[]?([A-Z])[).:\]]")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Choice(NamedTuple):
    """One option: its label, its text without the label, and the line that shows both."""

    label: str
    text: str
    line: str


def read_choices(value: Any) -> list[Choice]:
    """Return the options that a field holds; an empty field has none.

    The field may hold a list of texts with labels, a list of texts without labels (which become A, B, C, ...), an
    object from labels to texts, an object with a list of labels and a list of texts, or a list of objects that have a
    label and a text each.
    """
    if not value:
        return []
    if isinstance(value, dict):
        labels, texts = value.get("label"), value.get("text")
        if isinstance(labels, list) and isinstance(texts, list) and len(labels) == len(texts):
            return [_labelled(label, text) for label, text in zip(labels, texts, strict=True)]
        return [_labelled(label, text) for label, text in value.items()]
    if not isinstance(value, list):
        raise _unknown(value)
    if all(isinstance(each, dict) for each in value):
        label_keys, text_keys = ("label", "key", "letter", "id"), ("text", "value", "content", "option")
        return [_labelled(_first(each, label_keys), _first(each, text_keys)) for each in value]
    texts = [_text(each) for each in value]
    found = [_LABELLED.match(text) for text in texts]
    if [match and match[1] for match in found] == list(_LETTERS[: len(texts)]):
        return [
            Choice(match[1], text[match.end() :].strip(), text.strip())
            for match, text in zip(found, texts, strict=True)
            if match is not None
        ]
    return [_labelled(_LETTERS[i] if i < len(_LETTERS) else i + 1, text) for i, text in enumerate(texts)]


def _labelled(label: Any, text: Any) -> Choice:
    label, text = _text(label).strip(), _text(text).strip()
    return Choice(label, text, f"{label}) {text}")


def _first(option: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((option[key] for key in keys if key in option), None)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise _unknown(value)


def _unknown(value: Any) -> Unusable:
    wanted = "a list of texts, or an object from labels to texts, is wanted"
    return Unusable(Reason.UNKNOWN_RECORD, f"the options hold a {type(value).__name__}; {wanted}")


def _read(record: Fields) -> Trace:
    choices = read_choices(record.get("options"))
    drafts = read_prompt(record)
    asked = max((number for number, (role, _) in enumerate(drafts) if role == "user"), default=None)
    if choices and asked is not None:
        role, parts = drafts[asked]
        drafts[asked] = role, [*parts, "\n" + "\n".join(each.line for each in choices)]
    turns = place_images(drafts, record_images(record))
    answer = _answer(record, choices) if "answer" in record else None
    if "steps" in record:
        return listed_trace(turns, listed_steps(record, "steps"), answer)
    response = text_field(record, "response", Reason.NO_RESPONSE)
    if "thinking" in record:
        response = with_thoughts(record, "thinking", "response")
    if answer is None:
        return Trace(turns, response)
    if (start := _stated_answer(response, answer)) is not None:
        return Trace(turns, response, answer_start=start)
    response += "" if response.endswith("\n") else "\n"
    return Trace(turns, response + answer, answer_start=len(response))


def _answer(record: Fields, choices: list[Choice]) -> str:
    """Return the answer as text.

    If there are options, a number is an option's label or text, or else counts the options from 0.
    """
    if isinstance(answer := record["answer"], int) and not isinstance(answer, bool) and choices:
        if any(str(answer) in (each.label, each.text) for each in choices):
            return str(answer)
        if not 0 <= answer < len(choices):
            raise Unusable(Reason.NO_ANSWER, f"the answer {answer} is none of {len(choices)} options, counted from 0")
        return choices[answer].label
    if isinstance(answer, bool | int | float):
        return json.dumps(answer)
    if answer is None:
        raise Unusable(Reason.NO_ANSWER, "'answer' is empty")
    return text_field(record, "answer", Reason.NO_ANSWER)


def _stated_answer(response: str, answer: str) -> int | None:
    """Return where the response states the answer on its last line; None if it does not.

    This avoids a second "C" after "The answer is C."
    """
    if (start := natural_answer(response)) is None or not response[:start].strip():
        return None
    line, wanted = response[start:].strip(_AROUND), answer.strip(_AROUND)
    is_stated = re.search(rf"(?<!\w){re.escape(wanted)}(?:[).:]\s.*)?$", line)
    return start if "\n" not in line and wanted and is_stated else None


MAPPED_FORMAT = Format(
    name="mapped",
    description="any other record, its fields named by --map: prompt, response or steps, thinking, answer, options",
    recognises=lambda record: False,
    read=_read,
    turns=("prompt",),
)
