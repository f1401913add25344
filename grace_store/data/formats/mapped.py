"""Records of any other kind, once `data.mapping` has put their parts under the names of the parts."""

import json
import re

from grace_store.base.states import Reason, Unusable
from grace_store.data.answers import natural_answer
from grace_store.data.choices import Choice, chosen_label, read_choices
from grace_store.data.formats.conversation import read_prompt
from grace_store.data.formats.trace import Fields, Format, Trace, listed_trace, text_field, text_list
from grace_store.data.images import Draft, place_images, record_images

_AROUND = " \t\r\n*_.$([{)}]"


def _read(record: Fields) -> Trace:
    choices = read_choices(record.get("options"))
    turns = place_images(_with_choices(read_prompt(record), choices), record_images(record))
    answer = _answer(record, choices) if "answer" in record else None
    if "steps" in record:
        return listed_trace(turns, text_list(record, "steps"), answer)
    response = text_field(record, "response", Reason.NO_RESPONSE)
    if answer is None:
        return Trace(turns, response)
    if (start := _stated_answer(response, answer)) is not None:
        return Trace(turns, response, answer_start=start)
    response += "" if response.endswith("\n") else "\n"
    return Trace(turns, response + answer, answer_start=len(response))


def _with_choices(drafts: list[Draft], choices: list[Choice]) -> list[Draft]:
    """Return the prompt with the options below the last question, one a line."""
    asked = max((number for number, (role, _) in enumerate(drafts) if role == "user"), default=None)
    if not choices or asked is None:
        return drafts
    role, parts = drafts[asked]
    drafts[asked] = role, [*parts, "\n" + "\n".join(each.line for each in choices)]
    return drafts


def _answer(record: Fields, choices: list[Choice]) -> str:
    """Return the answer as text; of a multiple choice, the label of the option that a number stands for."""
    answer = record["answer"]
    if isinstance(answer, int) and not isinstance(answer, bool) and choices:
        return chosen_label(answer, choices)
    if isinstance(answer, bool | int | float):
        return json.dumps(answer)
    if answer is None:
        raise Unusable(Reason.NO_ANSWER, "'answer' is empty")
    return text_field(record, "answer", Reason.NO_ANSWER)


def _stated_answer(response: str, answer: str) -> int | None:
    """Return where the response itself states the answer on its last line; None if it does not.

    So that "The answer is C." is not followed by "C" once more.
    """
    start = natural_answer(response)
    if start is None or not response[:start].strip():
        return None
    line, wanted = response[start:].strip(_AROUND), answer.strip(_AROUND)
    is_stated = re.search(rf"(?<!\w){re.escape(wanted)}(?:[).:]\s.*)?$", line)
    return start if "\n" not in line and wanted and is_stated else None


FORMAT = Format(
    name="mapped",
    description="any other record, its fields named by --map: prompt, response or steps, answer, options",
    recognises=lambda record: False,
    read=_read,
    turns="prompt",
)
