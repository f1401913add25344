"""What a record format is: a name, a test, and functions that find a record's parts. The extension point of data.

A new format is a module with one ``Format`` called FORMAT, and its name in ``formats/__init__``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grace_store.base.states import Reason, Unusable
from grace_store.data.answers import AnswerFinder, natural_answer
from grace_store.data.sample import Turn
from grace_store.data.splitters import Splitter, natural_starts

Fields = Mapping[str, Any]

# With what opens the formula around it, so that no half of a formula is left to the step.
_BOXED = re.compile(r"(?:(?:\\[\[(]|\$\$?|\*\*)\s?)?\\boxed\b")
_ANSWER_IS = re.compile(r"\banswer(?: is:?|:)\s+(?=\S)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[a-z)\]}$0-9])[.!?]\s+(?=\S)", re.IGNORECASE)
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Trace:
    """The parts of a record: the conversation, the response, and the segments if the record itself lists them."""

    turns: tuple[Turn, ...]
    response: str
    step_starts: tuple[int, ...] | None = None
    answer_start: int | None = None


@dataclass(frozen=True, slots=True)
class StepLabels:
    """Where the records of a format say which of their steps are wrong."""

    field: str
    is_first: bool
    """Whether it holds the number of the first wrong step, from 0, or -1; otherwise the wrong steps, from 1."""
    kind: str | None = None
    """The field that names the kind of error."""
    question: str | None = None
    """The field that traces of one question share; without it, the prompt."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way of writing reasoning traces as records."""

    name: str
    description: str
    """What such a record holds, in a line; shown in --help and when no format fits."""
    recognises: Callable[[Fields], bool]
    """Whether a record is of this format and of no other."""
    read: Callable[[Fields], Trace]
    """Find a record's parts; raises Unusable."""
    split: Splitter = natural_starts
    """The format's own splitter; not asked when the trace has step_starts."""
    find_answer: AnswerFinder = natural_answer
    """The format's own way to the answer; not asked when the trace has answer_start."""
    answer_marks: str = r"`†Answer:`, `####`, `</think>`, `<CONCLUSION>`, `\boxed{}` or a line `Answer:`"
    """What find_answer looks for, in words."""
    turns: str | None = None
    """The field that may hold a conversation, a list of turns."""
    step_labels: StepLabels | None = None
    """Of a benchmark whose records say which steps are wrong."""


def listed_trace(turns: tuple[Turn, ...], steps: Sequence[str], answer: str | None) -> Trace:
    """Return the trace whose response is the steps and the answer, if it stands apart, joined by newlines."""
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
    """Return the trace of steps that hold the answer in the last of them, from where it begins there.

    It begins with the last boxed formula, else after the last "answer is" or "answer:", else with the last sentence if
    there are several, else with the last word. What stands before it remains a step; a last step of one word is the
    answer.
    """
    if not steps:
        raise Unusable(Reason.NO_STEPS, "there are no steps")
    *before, last = steps
    if not last.strip():
        raise Unusable(Reason.NO_ANSWER, "the last step, which has the answer, is empty")
    return answer_inside(listed_trace(turns, before, last), _answer_in(last))


def answer_inside(trace: Trace, cut: int) -> Trace:
    """Return a trace whose answer opens cut characters into its last part; the text before it remains a step."""
    assert trace.step_starts is not None
    assert trace.answer_start is not None
    if not trace.response[trace.answer_start :][:cut].strip():
        return trace
    return replace(trace, step_starts=(*trace.step_starts, trace.answer_start), answer_start=trace.answer_start + cut)


def _answer_in(text: str) -> int:
    boxed, words = ([match.start() for match in pattern.finditer(text)] for pattern in (_BOXED, _WORD))
    said, sentences = ([match.end() for match in pattern.finditer(text)] for pattern in (_ANSWER_IS, _SENTENCE_END))
    return next(places[-1] for places in (boxed, said, sentences, words) if places)


def listed_steps(record: Fields, key: str) -> list[str]:
    """Return a field that holds the steps, a list of texts."""
    steps = record.get(key)
    if not isinstance(steps, list) or not all(isinstance(step, str) for step in steps):
        raise wrong_field(record, key, "a list of strings")
    return steps


def text_field(record: Fields, key: str, reason: Reason) -> str:
    """Return a text that the format needs: UNKNOWN_RECORD when it is no text, the given reason when it is blank."""
    value = record.get(key)
    if key not in record or not isinstance(value, str | None):
        raise wrong_field(record, key, "a string")
    if not value or value.isspace():
        raise Unusable(reason, f"{key!r} is empty")
    return value


def wrong_field(record: Fields, key: str, wanted: str) -> Unusable:
    """Return the verdict on a record whose field is missing or of the wrong type."""
    missing = f"no {key!r} among its keys ({shown_keys(record)})"
    found = f"{key!r} is a {type(record[key]).__name__}" if key in record else missing
    return Unusable(Reason.UNKNOWN_RECORD, f"{found}; {wanted} is wanted")


def shown_keys(record: Fields) -> str:
    """Return a record's keys for people, shortened."""
    keys = [repr(key if len(key) <= 40 else key[:40] + "...") for key in list(record)[:12]]
    return ", ".join(keys) + (", ..." if len(record) > 12 else "")


def has_text(record: Fields, *keys: str) -> bool:
    """Whether all of these fields hold a string."""
    return all(isinstance(record.get(key), str) for key in keys)
