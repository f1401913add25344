"""The explicit format: a prompt, a list of steps and an answer; and traces made of such lists."""

from __future__ import annotations

from collections.abc import Sequence

from grace_store.base.errors import Unusable
from grace_store.base.metadata import Reason
from grace_store.data.formats.conversation import read_turns
from grace_store.data.formats.trace import Fields, Format, Trace, has_text, text_field, wrong_field
from grace_store.data.images import Draft, place_images, record_images
from grace_store.data.sample import Turn


def listed_trace(turns: tuple[Turn, ...], steps: Sequence[str], answer: str) -> Trace:
    """Return the trace whose response is the steps and the answer joined by newlines."""
    starts, at = [], 0
    for number, step in enumerate(steps, start=1):
        if not step.strip():
            raise Unusable(Reason.EMPTY_SEGMENT, f"step {number} is empty")
        starts.append(at)
        at += len(step) + 1
    return Trace(turns, "\n".join([*steps, answer]), tuple(starts), at)


def _read(record: Fields) -> Trace:
    """The prompt is a text, or a list of {role, content} turns."""
    drafts: list[Draft] = []
    if isinstance(record.get("prompt"), list):
        drafts += read_turns(record, "prompt", "role", "content")
    else:
        if isinstance(system := record.get("system"), str) and system:
            drafts.append(("system", [system]))
        drafts.append(("user", [text_field(record, "prompt", Reason.NO_PROMPT)]))
    steps = record.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, str) for step in steps):
        raise wrong_field(record, "steps", "a list of strings")
    answer = record.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        record = {**record, "answer": str(answer)}
    if answer is None:
        raise Unusable(Reason.NO_ANSWER, "'answer' is missing")
    return listed_trace(
        place_images(drafts, record_images(record)), steps, text_field(record, "answer", Reason.NO_ANSWER)
    )


EXPLICIT = Format(
    name="explicit",
    description="prompt, steps [...], answer, optional images, system, id",
    recognises=lambda record: (
        (has_text(record, "prompt") or isinstance(record.get("prompt"), list))
        and isinstance(record.get("steps"), list)
        and "answer" in record
    ),
    read=_read,
    answer_marks="'answer'",
)
