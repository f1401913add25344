"""MMathCoT-1M, the paper's dataset."""

from grace_store.base.states import Reason
from grace_store.data.answers import dagger_answer
from grace_store.data.formats.trace import Fields, Format, Trace, has_text, text_field
from grace_store.data.images import place_images, record_images
from grace_store.data.splitters import step_starts


def _read(record: Fields) -> Trace:
    prompt = text_field(record, "instruction", Reason.NO_PROMPT)
    response = text_field(record, "output", Reason.NO_RESPONSE)
    return Trace(place_images([("user", [prompt])], record_images(record)), response)


FORMAT = Format(
    name="mmathcot",
    description="MMathCoT-1M: image_url, instruction, output with `Step N:` lines and a last `†Answer:`",
    recognises=lambda record: has_text(record, "instruction", "output") and "image_url" in record,
    read=_read,
    split=step_starts,
    find_answer=dagger_answer,
    answer_marks="`†Answer:`",
)
