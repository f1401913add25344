"""PRM800K."""

from typing import Any

from grace_store.base.states import Reason, Unusable
from grace_store.data.formats.trace import Fields, Format, Trace, answer_inside, listed_trace, text_field, wrong_field
from grace_store.data.sample import Turn
from grace_store.data.splitters import line_starts

_UNFINISHED = ("found_error", "give_up", "bad_problem")


def _read(record: Fields) -> Trace:
    """Each step is its chosen completion, else the human one; the trace ends at the first step with neither.

    The answer is a final "# Answer" part of the last step, else the last of its lines if it has several, else the
    ground truth, which is added. A trace that its labeller gave up has no answer of its own and gets none.
    """
    question, label = record.get("question"), record.get("label")
    if not isinstance(question, dict):
        raise wrong_field(record, "question", "an object")
    if not isinstance(label, dict) or not isinstance(label.get("steps"), list):
        raise wrong_field(record, "label", "an object with 'steps'")
    turns = (Turn("user", (text_field(question, "problem", Reason.NO_PROMPT),)),)
    steps: list[str] = []
    for number, step in enumerate(label["steps"], start=1):
        if (text := _chosen_text(step, number)) is None:
            break
        steps.append(text)
    if not steps:
        raise Unusable(Reason.NO_STEPS, "no step has a chosen or a human completion")
    *before, last = steps
    header = last.rfind("# Answer")
    if header < 0 and label.get("finish_reason") in _UNFINISHED:
        raise Unusable(Reason.NO_ANSWER, f"the labeller ended with {label['finish_reason']!r}")
    lines = line_starts(last)
    cut = header if header >= 0 else lines[-1] if len(lines) > 1 else 0
    if header >= 0 or cut:
        return answer_inside(listed_trace(turns, before, last), cut)
    answer = question.get("ground_truth_answer")
    if not isinstance(answer, str) or not answer.strip():
        raise Unusable(Reason.NO_ANSWER, "neither a last line nor 'ground_truth_answer'")
    return listed_trace(turns, steps, answer)


def _chosen_text(step: Any, number: int) -> str | None:
    if not isinstance(step, dict):
        raise Unusable(Reason.UNKNOWN_RECORD, f"step {number} of 'label' is not an object")
    completion: Any = step.get("human_completion")
    chosen, completions = step.get("chosen_completion"), step.get("completions")
    if chosen is not None:
        if not (isinstance(chosen, int) and isinstance(completions, list) and 0 <= chosen < len(completions)):
            raise Unusable(Reason.UNKNOWN_RECORD, f"step {number}: no completion number {str(chosen)[:20]}")
        completion = completions[chosen]
    if isinstance(completion, dict):
        completion = completion.get("text")
    if completion is not None and not isinstance(completion, str):
        raise Unusable(Reason.UNKNOWN_RECORD, f"step {number}: the completion has no text")
    return completion


FORMAT = Format(
    name="prm800k",
    description="PRM800K: question.problem, label.steps[] with chosen_completion or human_completion",
    recognises=lambda record: isinstance(record.get("question"), dict) and isinstance(record.get("label"), dict),
    read=_read,
    answer_marks="a last line or ground_truth_answer",
)
