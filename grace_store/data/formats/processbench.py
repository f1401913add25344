"""ProcessBench: solutions written by models, with the number of the first wrong step."""

from grace_store.base.states import Reason
from grace_store.data.formats.trace import (
    Fields,
    Format,
    StepLabels,
    Trace,
    answer_at_the_end,
    has_text,
    listed_steps,
    text_field,
)
from grace_store.data.sample import Turn


def _read(record: Fields) -> Trace:
    prompt = text_field(record, "problem", Reason.NO_PROMPT)
    return answer_at_the_end((Turn("user", (prompt,)),), listed_steps(record, "steps"))


FORMAT = Format(
    name="processbench",
    description="ProcessBench: problem, steps [...], label (the first wrong step from 0, or -1)",
    recognises=lambda record: (
        has_text(record, "problem") and isinstance(record.get("steps"), list) and isinstance(record.get("label"), int)
    ),
    read=_read,
    answer_marks="the end of the last step",
    step_labels=StepLabels("label", is_first=True),
)
