"""The explicit format: a prompt, a list of steps and an answer."""

from grace_store.base.states import Reason, Unusable
from grace_store.data.formats.conversation import read_prompt
from grace_store.data.formats.trace import Fields, Format, Trace, has_text, listed_steps, listed_trace, text_field
from grace_store.data.images import place_images, record_images


def _read(record: Fields) -> Trace:
    """The prompt is a text, or a list of {role, content} turns."""
    drafts = read_prompt(record)
    steps = listed_steps(record, "steps")
    answer = record.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        record = {**record, "answer": str(answer)}
    if answer is None:
        raise Unusable(Reason.NO_ANSWER, "'answer' is missing")
    turns = place_images(drafts, record_images(record))
    return listed_trace(turns, steps, text_field(record, "answer", Reason.NO_ANSWER))


FORMAT = Format(
    name="explicit",
    description="prompt, steps [...], answer, optional images, system, id",
    recognises=lambda record: (
        (has_text(record, "prompt") or isinstance(record.get("prompt"), list))
        and isinstance(record.get("steps"), list)
        and "answer" in record
    ),
    read=_read,
    answer_marks="'answer'",
    turns="prompt",
)
