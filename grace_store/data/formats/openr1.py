"""OpenR1-Math-220k."""

from grace_store.base.states import Reason, Unusable
from grace_store.data.answers import after_think, boxed_answer
from grace_store.data.formats.conversation import finish_conversation, read_turns
from grace_store.data.formats.trace import Fields, Format, Trace, has_text, text_field, wrong_field
from grace_store.data.sample import Turn
from grace_store.data.splitters import paragraph_starts


def _read(record: Fields) -> Trace:
    """The response is the last assistant message, else the first generation verified as correct, else the first."""
    prompt = text_field(record, "problem", Reason.NO_PROMPT)
    if record.get("messages"):
        return finish_conversation(record, read_turns(record, "messages", "role", "content"))
    generations = record.get("generations")
    if not isinstance(generations, list):
        raise wrong_field(record, "generations", "a list of texts")
    if not generations:
        raise Unusable(Reason.NO_RESPONSE, "'generations' is empty")
    response = generations[_first_correct(record, len(generations))]
    if not isinstance(response, str):
        raise Unusable(Reason.UNKNOWN_RECORD, "a generation is not a string")
    return Trace((Turn("user", (prompt,)),), response)


def _first_correct(record: Fields, num_generations: int) -> int:
    for key in ("correctness_math_verify", "correctness_llama"):
        verdicts = record.get(key)
        if isinstance(verdicts, list) and True in verdicts[:num_generations]:
            return verdicts.index(True)
    return 0


def _find_answer(response: str) -> int | None:
    start = after_think(response)
    return boxed_answer(response, by_paragraph=True) if start is None else start


FORMAT = Format(
    name="openr1",
    description="OpenR1-Math: problem, generations and/or messages with `<think>` paragraphs",
    recognises=lambda record: has_text(record, "problem") and isinstance(record.get("generations"), list),
    read=_read,
    split=paragraph_starts,
    find_answer=_find_answer,
    answer_marks=r"text after `</think>`, or `\boxed{}`",
    turns="messages",
)
