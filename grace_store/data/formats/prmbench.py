"""PRMBench: solutions that were spoilt on purpose, with the numbers of the wrong steps and the kind of error."""

from grace_store.base.states import Reason
from grace_store.data.formats.trace import (
    Fields,
    Format,
    StepLabels,
    Trace,
    answer_at_the_end,
    listed_steps,
    text_field,
)
from grace_store.data.sample import Turn


def _read(record: Fields) -> Trace:
    prompt = text_field(record, "modified_question", Reason.NO_PROMPT)
    return answer_at_the_end((Turn("user", (prompt,)),), listed_steps(record, "modified_process"))


FORMAT = Format(
    name="prmbench",
    description="PRMBench: modified_question, modified_process [...], error_steps [...] from 1",
    recognises=lambda record: (
        isinstance(record.get("modified_process"), list) and isinstance(record.get("error_steps"), list)
    ),
    read=_read,
    answer_marks="the end of the last step",
    # Its kinds of error write one question in slightly different ways; idx is the same in all of them.
    step_labels=StepLabels("error_steps", is_first=False, kind="classification", question="idx"),
)
