"""LLaMA-Factory's alpaca format."""

from grace_store.base.states import Reason, Unusable
from grace_store.data.formats.trace import Fields, Format, Trace, has_text, text_field
from grace_store.data.images import Draft, place_images, record_images


def _read(record: Fields) -> Trace:
    """Instruction and input are joined by a newline, as LLaMA-Factory does; history is earlier turns."""
    drafts: list[Draft] = []
    if isinstance(system := record.get("system"), str) and system:
        drafts.append(("system", [system]))
    history = record.get("history") or []
    for exchange in history if isinstance(history, list) else [history]:
        if not (isinstance(exchange, list) and len(exchange) == 2 and all(isinstance(text, str) for text in exchange)):
            raise Unusable(Reason.UNKNOWN_RECORD, "'history' is not a list of [question, reply] pairs")
        drafts += [("user", [exchange[0]]), ("assistant", [exchange[1]])]
    question = [record.get(key) or "" for key in ("instruction", "input")]
    if not all(isinstance(text, str) for text in question):
        raise Unusable(Reason.UNKNOWN_RECORD, "'instruction' or 'input' is not a string")
    drafts.append(("user", ["\n".join(text for text in question if text)]))
    return Trace(place_images(drafts, record_images(record)), text_field(record, "output", Reason.NO_RESPONSE))


FORMAT = Format(
    name="alpaca",
    description="LLaMA-Factory: instruction, output, optional input, system, history, images",
    recognises=lambda record: has_text(record, "instruction", "output") and "image_url" not in record,
    read=_read,
)
