"""The interface of a record format: a name, a test, and functions that find the parts of a record."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grace_store.base.states import Reason, Unusable
from grace_store.data.sample import Turn

Fields = Mapping[str, Any]

# Includes the opening of the formula around the box, so that the step does not keep half of a formula.
_BOXED = re.compile(r"(?:(?:\\[\[(]|\$\$?|\*\*)\s?)?\\boxed\b")
_ANSWER_IS = re.compile(r"\banswer(?: is:?|:)\s+(?=\S)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[a-z)\]}$0-9])[.!?]\s+(?=\S)", re.IGNORECASE)
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Trace:
    """The parts of a record: the conversation, the response, and the segments if the record lists them."""

    turns: tuple[Turn, ...]
    response: str
    step_starts: tuple[int, ...] | None = None
    answer_start: int | None = None


@dataclass(frozen=True, slots=True)
class StepLabels:
    """The fields of a format that say which steps of a record are wrong."""

    field: str
    is_first: bool
    """Whether the field holds the first wrong step, counted from 0, or -1; else it lists wrong steps from 1."""
    kind: str | None = None
    """The field that names the kind of error."""
    question: str | None = None
    """The field that is the same for all traces of one question; if None, the prompt."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way of writing reasoning traces as records."""

    name: str
    description: str
    """The fields of such a record, in one line; shown in --help and when no format fits."""
    recognises: Callable[[Fields], bool]
    """Whether a record is of this format and of no other."""
    read: Callable[[Fields], Trace]
    """The function that finds the parts of a record, or raises Unusable."""
    split: Callable[[str], list[int]] | None = None
    """The format's own splitter, if it has one; not used if the trace has step_starts."""
    find_answer: Callable[[str], int | None] | None = None
    """The format's own function to find the answer, if it has one; not used if the trace has answer_start."""
    answer_marks: str = r"`†Answer:`, `####`, `</think>`, `<CONCLUSION>`, `\boxed{}` or a line `Answer:`"
    """A description of the text that find_answer looks for."""
    turns: tuple[str, ...] = ()
    """The fields that may hold a conversation as a list of turns."""
    others: Callable[[Fields], str | None] | None = None
    """The options that read the responses of a record that this format leaves out; None if there are none."""
    step_labels: StepLabels | None = None
    """The labels of a benchmark whose records say which steps are wrong."""


def listed_trace(turns: tuple[Turn, ...], steps: Sequence[str], answer: str | None) -> Trace:
    """Return the trace whose response is the steps, and the answer if there is one, joined by newlines."""
    starts, at = [], 0
    for number, step in enumerate(steps, start=1):
        if not step.strip():
            raise Unusable(Reason.EMPTY_SEGMENT, f"step {number} is empty")
        starts.append(at)
        at += len(step) + 1
    if answer is None:
        return Trace(turns, "\n".join(steps), tuple(starts))
    return Trace(turns, "\n".join([*steps, answer]), tuple(starts), at)


def answer_at_the_end(turns: tuple[Turn, ...], steps: Sequence[str]) -> Trace:
    """Return the trace of steps whose last step contains the answer.

    The answer begins with the last boxed formula, else after the last "answer is" or "answer:", else with the last
    sentence if there are several, else with the last word. The text before the answer remains a step. A last step of
    one word is the answer.
    """
    if not steps:
        raise Unusable(Reason.NO_STEPS, "there are no steps")
    *before, last = steps
    if not last.strip():
        raise Unusable(Reason.NO_ANSWER, "the last step, which has the answer, is empty")
    boxed, words = ([match.start() for match in pattern.finditer(last)] for pattern in (_BOXED, _WORD))
    stated, sentences = ([match.end() for match in pattern.finditer(last)] for pattern in (_ANSWER_IS, _SENTENCE_END))
    cut = next(places[-1] for places in (boxed, stated, sentences, words) if places)
    return answer_inside(listed_trace(turns, before, last), cut)


def answer_inside(trace: Trace, cut: int) -> Trace:
    """Return the trace with its answer starting cut characters later; the text before it becomes a step."""
    assert trace.step_starts is not None
    assert trace.answer_start is not None
    if not trace.response[trace.answer_start :][:cut].strip():
        return trace
    return replace(trace, step_starts=(*trace.step_starts, trace.answer_start), answer_start=trace.answer_start + cut)


def with_thoughts(record: Fields, thinking: str, reply: str) -> str:
    """Return thoughts inside think tags, then the reply. The field of thoughts is a text or a list of texts."""
    if isinstance(record.get(thinking), list):
        record = {**record, thinking: "\n\n".join(listed_steps(record, thinking))}
    thoughts = text_field(record, thinking, Reason.NO_STEPS).strip().removeprefix("<think>").removesuffix("</think>")
    return f"<think>\n{thoughts.strip()}\n</think>\n\n{text_field(record, reply, Reason.NO_RESPONSE).lstrip()}"


def listed_steps(record: Fields, key: str) -> list[str]:
    """Return the steps from a field that holds a list of texts."""
    if not isinstance(steps := record.get(key), list) or not all(isinstance(step, str) for step in steps):
        raise wrong_field(record, key, "a list of strings")
    return steps


def text_field(record: Fields, key: str, reason: Reason) -> str:
    """Return a required text field, or raise Unusable: UNKNOWN_RECORD if it is no text, reason if it is blank."""
    if key not in record or not isinstance(value := record[key], str | None):
        raise wrong_field(record, key, "a string")
    if not value or value.isspace():
        raise Unusable(reason, f"{key!r} is empty")
    return value


def wrong_field(record: Fields, key: str, wanted: str) -> Unusable:
    """Return the error for a field that is missing or has the wrong type."""
    missing = f"no {key!r} among its keys ({shown_keys(record)})"
    found = f"{key!r} is a {type(record[key]).__name__}" if key in record else missing
    return Unusable(Reason.UNKNOWN_RECORD, f"{found}; {wanted} is wanted")


def shown_keys(record: Fields) -> str:
    """Return the keys of a record for a message, shortened."""
    keys = [repr(key if len(key) <= 40 else key[:40] + "...") for key in list(record)[:12]]
    return ", ".join(keys) + (", ..." if len(record) > 12 else "")


def has_text(record: Fields, *keys: str) -> bool:
    """Return whether all of these fields hold a string."""
    return all(isinstance(record.get(key), str) for key in keys)
