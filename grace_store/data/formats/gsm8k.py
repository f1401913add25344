"""GSM8K."""

from grace_store.base.states import Reason
from grace_store.data.answers import hashes_answer
from grace_store.data.formats.trace import Fields, Format, Trace, has_text, text_field
from grace_store.data.sample import Turn
from grace_store.data.splitters import line_starts


def _read(record: Fields) -> Trace:
    prompt = text_field(record, "question", Reason.NO_PROMPT)
    return Trace((Turn("user", (prompt,)),), text_field(record, "answer", Reason.NO_RESPONSE))


FORMAT = Format(
    name="gsm8k",
    description="GSM8K: question, answer with a step per line and `#### N` last",
    recognises=lambda record: has_text(record, "question", "answer") and hashes_answer(record["answer"]) is not None,
    read=_read,
    split=line_starts,
    find_answer=hashes_answer,
    answer_marks="`####` at the start of a line",
)
