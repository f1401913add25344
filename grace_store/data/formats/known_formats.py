"""The record formats that can be recognised from records, by name. A new format is a ``Format`` in the list here."""

from types import UnionType
from typing import Any

from grace_store.base.states import Reason, Unusable
from grace_store.data.answers import after_think, boxed_answer, dagger_answer, hashes_answer
from grace_store.data.formats.conversation import finish_conversation, holds_turns, is_asked, read_prompt, read_turns
from grace_store.data.formats.trace import (
    Fields,
    Format,
    StepLabels,
    Trace,
    answer_at_the_end,
    answer_inside,
    has_text,
    listed_steps,
    listed_trace,
    text_field,
    with_thoughts,
    wrong_field,
)
from grace_store.data.images import Draft, place_images, record_images
from grace_store.data.sample import Turn
from grace_store.data.splitters import line_starts, paragraph_starts, step_starts


def _asked(record: Fields, key: str) -> tuple[Turn]:
    """Return the conversation that is one question, in a field of the record."""
    return (Turn("user", (text_field(record, key, Reason.NO_PROMPT),)),)


def _read_alpaca(record: Fields) -> Trace:
    """Join instruction and input by a newline, as LLaMA-Factory does; history is earlier turns."""
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


def _read_openr1(record: Fields) -> Trace:
    """Take the one generation of an expanded record, else the last assistant message, else a generation of the list.

    This is the first generation verified as correct, else the first.
    """
    turns = _asked(record, "problem")
    generations = record.get("generations")
    if record.get("messages") and not isinstance(generations, str):
        return finish_conversation(record, read_turns(record, "messages", "role", "content"))
    if not isinstance(generations, list):
        return Trace(turns, _response(record, "generations"))
    verdicts = [record.get(key) for key in ("correctness_math_verify", "correctness_llama")]
    correct = [each.index(True) for each in verdicts if isinstance(each, list) and True in each[: len(generations)]]
    return Trace(turns, _response(record, "generations", correct[0] if correct else 0))


def _response(record: Fields, key: str, index: int = 0) -> str:
    """Return the response in a field that holds a text or a list of texts."""
    if not isinstance(record.get(key), list):
        return text_field(record, key, Reason.NO_RESPONSE)
    if not (texts := listed_steps(record, key)):
        raise Unusable(Reason.NO_RESPONSE, f"{key!r} is empty")
    return texts[index]


def _replied(record: Fields, prompt: str, response: str) -> Trace:
    """Return the trace of a prompt, after the record's system prompt, and a response."""
    return Trace(place_images(_read_question(record, prompt), record_images(record)), response)


def _read_question(record: Fields, prompt: str) -> list[Draft]:
    """Return the system prompt and the question, or raise Unusable if another field has a part of the question."""
    if more := _more_of_question(record, prompt):
        how = f"use --map prompt={prompt} --map response=FIELD, and --map options={more} for a multiple choice"
        raise Unusable(Reason.UNKNOWN_RECORD, f"{more!r} is a part of the question; {how}")
    return read_prompt({**record, "system": record.get("system") or record.get("system_prompt")}, prompt)


_THINKING = (
    ("question", "deepseek_thinking_trajectory", "deepseek_attempt"),
    ("question", "gemini_thinking_trajectory", "gemini_attempt"),
    ("question", "thinking_trajectories", "attempt"),
    ("problem", "deepseek_reasoning", "deepseek_solution"),
    ("Question", "Complex_CoT", "Response"),
)
"""The fields of question, thoughts and reply in s1K, OpenThoughts' metadata and medical-o1."""


def _thinking_fields(record: Fields) -> list[tuple[str, str, str]]:
    """Return the fields of each trace of a record, traces without thoughts last."""
    known = [each for each in _THINKING if all(key in record for key in each)]
    return sorted(known, key=lambda each: not record[each[1]])


def _read_thinking(record: Fields) -> Trace:
    prompt, thinking, reply = (_thinking_fields(record) or _THINKING)[0]
    return _replied(record, prompt, with_thoughts(record, thinking, reply))


def _other_thinking(record: Fields) -> str | None:
    others = (each for each in _thinking_fields(record)[1:] if record[each[1]])
    return next((f"--map prompt={asked} --map thinking={by} --map response={said}" for asked, by, said in others), None)


_QUESTIONS = ("problem", "question", "query", "prompt", "instruction", "input")
_SEVERAL = ("responses", "completions", "generations")
_RESPONSES = (*_SEVERAL, "generated_solution", "completion", "response", "output", "solution")
"""The usual names of a question and of its response, or of its responses. A `solution` is often only the reference."""
_MORE_OF_QUESTION = ("options", "choices", "context", "input")
"""Fields that belong to the question; a record that has one needs --map."""


def _pair_fields(record: Fields) -> tuple[str, str] | None:
    """Return the names of a question (text or turns) and its response (text, turns or texts); filled fields first."""
    questions = [key for key in _QUESTIONS if is_asked(record, key)]
    lists = [key for key in _SEVERAL if _holds_texts(record, key)]
    responses = [key for key in _RESPONSES if is_asked(record, key) or key in lists]
    if not questions or not responses:
        return None
    question, response = (next((key for key in some if record[key]), some[0]) for some in (questions, responses))
    return question, response


def _more_of_question(record: Fields, question: str) -> str | None:
    """Return the first field with another part of the question."""
    return next((key for key in _MORE_OF_QUESTION if key != question and record.get(key)), None)


def _holds_texts(record: Fields, key: str) -> bool:
    return isinstance(texts := record.get(key), list) and all(isinstance(text, str) for text in texts)


def _read_pair(record: Fields) -> Trace:
    question, response = _pair_fields(record) or ("prompt", "response")
    if not holds_turns(record, response, "role", "content"):
        return _replied(record, question, _response(record, response))
    said = read_turns({response: record[response]}, response, "role", "content")
    if all(role != "assistant" for role, _ in said):
        raise Unusable(Reason.NO_RESPONSE, f"no turn of {response!r} is the assistant's")
    return finish_conversation(record, [*_read_question(record, question), *said])


def _other_responses(record: Fields) -> str | None:
    """Return --expand for a record whose list holds several responses."""
    found = (key for key in _SEVERAL if _holds_texts(record, key) and len(record[key]) > 1)
    return next((f"--expand {key}" for key in found), None)


def _read_prm800k(record: Fields) -> Trace:
    """Take each step's chosen completion, else the human one; the trace ends at the first step with neither.

    The answer is a final "# Answer" part of the last step, else the last of its lines if it has several, else the
    ground truth, which is appended. If the labeller gave up, the trace has no answer of its own and is unusable.
    """
    question, label = record.get("question"), record.get("label")
    if not isinstance(question, dict):
        raise wrong_field(record, "question", "an object")
    if not isinstance(label, dict) or not isinstance(label.get("steps"), list):
        raise wrong_field(record, "label", "an object with 'steps'")
    turns = _asked(question, "problem")
    steps: list[str] = []
    for number, step in enumerate(label["steps"], start=1):
        if (text := _chosen_text(step, number)) is None:
            break
        steps.append(text)
    if not steps:
        raise Unusable(Reason.NO_STEPS, "no step has a chosen or a human completion")
    *before, last = steps
    header = last.rfind("# Answer")
    if header < 0 and label.get("finish_reason") in ("found_error", "give_up", "bad_problem"):
        raise Unusable(Reason.NO_ANSWER, f"the labeller ended with {label['finish_reason']!r}")
    lines = line_starts(last)
    cut = header if header >= 0 else lines[-1] if len(lines) > 1 else 0
    if header >= 0 or cut:
        return answer_inside(listed_trace(turns, before, last), cut)
    if not isinstance(answer := question.get("ground_truth_answer"), str) or not answer.strip():
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


def _read_explicit(record: Fields) -> Trace:
    """Read a prompt that is a text or a list of {role, content} turns, a list of steps and an answer."""
    drafts = read_prompt(record)
    steps = listed_steps(record, "steps")
    if isinstance(answer := record.get("answer"), int | float) and not isinstance(answer, bool):
        record = {**record, "answer": str(answer)}
    if answer is None:
        raise Unusable(Reason.NO_ANSWER, "'answer' is missing")
    turns = place_images(drafts, record_images(record))
    return listed_trace(turns, steps, text_field(record, "answer", Reason.NO_ANSWER))


def _holds(record: Fields, **kinds: type | UnionType) -> bool:
    """Return whether fields of a record hold values of the given types."""
    return all(isinstance(record.get(key), kind) for key, kind in kinds.items())


_NAMED = (
    Format(
        name="mmathcot",
        description="MMathCoT-1M: image_url, instruction, output with `Step N:` lines and a last `†Answer:`",
        recognises=lambda record: has_text(record, "instruction", "output") and "image_url" in record,
        read=lambda record: _replied(record, "instruction", text_field(record, "output", Reason.NO_RESPONSE)),
        split=step_starts,
        find_answer=dagger_answer,
        answer_marks="`†Answer:`",
    ),
    Format(
        name="messages",
        description="ms-swift, OpenAI: messages [{role, content}], optional images",
        recognises=lambda record: holds_turns(record, "messages", "role", "content") and "generations" not in record,
        read=lambda record: finish_conversation(record, read_turns(record, "messages", "role", "content")),
        turns=("messages",),
    ),
    Format(
        name="alpaca",
        description="LLaMA-Factory: instruction, output, optional input, system, history, images",
        recognises=lambda record: has_text(record, "instruction", "output") and "image_url" not in record,
        read=_read_alpaca,
    ),
    Format(
        name="sharegpt",
        description="ShareGPT, LLaVA-CoT, LLaMA-Factory: conversations [{from, value}], optional image(s), system",
        recognises=lambda record: holds_turns(record, "conversations", "from", "value"),
        read=lambda record: finish_conversation(record, read_turns(record, "conversations", "from", "value")),
        turns=("conversations",),
    ),
    Format(
        name="openr1",
        description="OpenR1-Math: problem, generations and/or messages with `<think>` paragraphs",
        recognises=lambda record: _holds(record, problem=str, generations=str | list),
        read=_read_openr1,
        split=paragraph_starts,
        find_answer=lambda response: (
            boxed_answer(response, by_paragraph=True) if (start := after_think(response)) is None else start
        ),
        answer_marks=r"text after `</think>`, or `\boxed{}`",
        turns=("messages",),
        others=_other_responses,
    ),
    Format(
        name="gsm8k",
        description="GSM8K: question, answer with a step per line and `#### N` last",
        recognises=lambda record: (
            has_text(record, "question", "answer") and hashes_answer(record["answer"]) is not None
        ),
        read=lambda record: Trace(_asked(record, "question"), text_field(record, "answer", Reason.NO_RESPONSE)),
        split=line_starts,
        find_answer=hashes_answer,
        answer_marks="`####` at the start of a line",
    ),
    Format(
        name="prm800k",
        description="PRM800K: question.problem, label.steps[] with chosen_completion or human_completion",
        recognises=lambda record: _holds(record, question=dict, label=dict),
        read=_read_prm800k,
        answer_marks="a last line or ground_truth_answer",
    ),
    Format(
        name="processbench",
        description="ProcessBench: problem, steps [...], label (the first wrong step from 0, or -1)",
        recognises=lambda record: _holds(record, problem=str, steps=list, label=int),
        read=lambda record: answer_at_the_end(_asked(record, "problem"), listed_steps(record, "steps")),
        answer_marks="the end of the last step",
        step_labels=StepLabels("label", is_first=True),
    ),
    # Solutions that were spoilt on purpose, with the numbers of the wrong steps and the kind of error.
    Format(
        name="prmbench",
        description="PRMBench: modified_question, modified_process [...], error_steps [...] from 1",
        recognises=lambda record: _holds(record, modified_process=list, error_steps=list),
        read=lambda record: answer_at_the_end(
            _asked(record, "modified_question"), listed_steps(record, "modified_process")
        ),
        answer_marks="the end of the last step",
        # PRMBench words one question slightly differently for each kind of error; idx stays the same.
        step_labels=StepLabels("error_steps", is_first=False, kind="classification", question="idx"),
    ),
    Format(
        name="explicit",
        description="prompt, steps [...], answer, optional images, system, id",
        recognises=lambda record: _holds(record, prompt=str | list, steps=list) and "answer" in record,
        read=_read_explicit,
        answer_marks="'answer'",
        turns=("prompt",),
    ),
    Format(
        name="thinking",
        description="s1K, OpenThoughts' metadata, medical-o1: a question, a field of thoughts and a field of the reply",
        recognises=lambda record: any(not _more_of_question(record, each[0]) for each in _thinking_fields(record)),
        read=_read_thinking,
        others=_other_thinking,
    ),
)
_KNOWN = (
    *_NAMED,
    # Recognised only if no other format is, because many records also have these fields.
    Format(
        name="pair",
        description="TRL, verl, Nemotron, LIMO, MATH, OpenMath: a question and its response(s), by their usual names",
        recognises=lambda record: (
            (found := _pair_fields(record)) is not None
            and not _more_of_question(record, found[0])
            and not any(format.recognises(record) for format in _NAMED)
        ),
        read=_read_pair,
        turns=(*_QUESTIONS, *_RESPONSES),
        others=_other_responses,
    ),
)
FORMATS = {format.name: format for format in _KNOWN}
"""The formats in the order that help shows them."""
