"""The options of a multiple choice: from the ways that datasets write them to lines of a prompt."""

import re
from typing import Any, NamedTuple

from grace_store.base.states import Reason, Unusable

_LABELLED = re.compile(r"\s*[(\[]?([A-Z])[).:\]]")
_LABEL_KEYS = ("label", "key", "letter", "id")
_TEXT_KEYS = ("text", "value", "content", "option")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Choice(NamedTuple):
    """One option: its label, its text without, and the line that shows both."""

    label: str
    text: str
    line: str


def read_choices(value: Any) -> list[Choice]:
    """Return the options that a field holds; none if it is empty.

    It may be a list of texts, with labels of their own or without (these get A, B, C, ...), an object from labels to
    texts, an object of a list of labels and one of texts, or a list of objects with a label and a text each.
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
        return [_labelled(_first(each, _LABEL_KEYS), _first(each, _TEXT_KEYS)) for each in value]
    return _from_texts([_text(each) for each in value])


def chosen_label(answer: int, choices: list[Choice]) -> str:
    """Return the label for an answer that is a number: itself if an option is called so, else counted from 0."""
    if any(str(answer) in (each.label, each.text) for each in choices):
        return str(answer)
    if not 0 <= answer < len(choices):
        raise Unusable(Reason.NO_ANSWER, f"the answer {answer} is none of {len(choices)} options, counted from 0")
    return choices[answer].label


def _from_texts(texts: list[str]) -> list[Choice]:
    found = [_LABELLED.match(text) for text in texts]
    if [match and match[1] for match in found] == list(_LETTERS[: len(texts)]):
        return [
            Choice(match[1], text[match.end() :].strip(), text.strip())
            for match, text in zip(found, texts, strict=True)
            if match is not None
        ]
    return [
        _labelled(_LETTERS[number] if number < len(_LETTERS) else number + 1, text) for number, text in enumerate(texts)
    ]


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
