"""Records whose fields have names of their own, and multiple choices, as datasets write them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grace_store.base.errors import SettingError, UnknownFormat
from grace_store.base.settings import DataSpec
from grace_store.base.states import Reason, Unusable
from grace_store.data.formats.known_formats import FORMATS
from grace_store.data.mapping import usual_maps
from grace_store.data.parse_records import check_spec, detect_format, parse_record
from grace_store.data.record import Record
from grace_store.data.sample import ImageRef, Sample
from tests.format_examples import EXAMPLES

AQUA = {
    "question": "A grocery sells 3 bags of 7 apples. How many apples?",
    "options": ["A)21", "B)10", "C)37"],
    "rationale": "There are 3 bags.\nEach has 7 apples.\nSo 3 * 7 = 21.",
    "correct": "A",
}
AQUA_MAP = {"prompt": "question", "response": "rationale", "answer": "correct", "options": "options"}


def sample(fields: Any, mapping: dict[str, str], format: str = "mapped", **settings: Any) -> Sample:
    spec = DataSpec(format=format, map=mapping, **{"min_steps": 1, **settings})
    check_spec(spec)
    return parse_record(Record(0, 0, 0, 0, json.dumps(fields).encode()), spec, "data.jsonl", 4)


def verdict(fields: Any, mapping: dict[str, str], **settings: Any) -> tuple[Reason, str]:
    with pytest.raises(Unusable, match=r"^[a-z_]+: ") as caught:
        sample(fields, mapping, **settings)
    return caught.value.reason, caught.value.detail


def prompt(fields: Any, mapping: dict[str, str]) -> str:
    return "".join(turn.text for turn in sample(fields, mapping).turns)


def test_a_multiple_choice_has_its_options_below_the_question_and_its_letter_as_the_answer() -> None:
    found = sample(AQUA, AQUA_MAP)
    assert "".join(turn.text for turn in found.turns) == AQUA["question"] + "\nA)21\nB)10\nC)37"
    assert found.segments == ["There are 3 bags.\n", "Each has 7 apples.\n", "So 3 * 7 = 21.\n", "A"]
    assert found.sample_id == "data.jsonl:4"


def test_thoughts_are_mapped_beside_the_response() -> None:
    fields = {"asked": [{"role": "user", "content": "Why?"}], "thoughts": "Hm.\n\nSo.", "said": "Because."}
    mapping = {"prompt": "asked", "thinking": "thoughts", "response": "said"}
    found = sample(fields, mapping)
    assert found.segments == ["<think>\nHm.\n\n", "So.\n</think>\n\n", "Because."]
    assert sample({**fields, "right": "42"}, {**mapping, "answer": "right"}).segments[-1] == "42"
    with pytest.raises(SettingError, match="--map thinking=FIELD goes with --map response=FIELD"):
        sample(fields, {"prompt": "asked", "thinking": "thoughts", "steps": "said"})


@pytest.mark.parametrize("ending", ["The answer is A.", "Answer: A) 21", "Therefore, the answer is (A)", "#### A"])
def test_an_answer_that_the_response_states_itself_is_not_repeated(ending: str) -> None:
    found = sample({**AQUA, "rationale": f"{AQUA['rationale']}\n{ending}"}, AQUA_MAP)
    assert (found.num_steps, found.segments[-1]) == (3, ending)


@pytest.mark.parametrize("ending", ["The answer is B.", "Answer: see above", "The answer is A.\nOr so."])
def test_another_answer_in_the_response_is_a_step(ending: str) -> None:
    assert sample({**AQUA, "rationale": f"{AQUA['rationale']}\n{ending}"}, AQUA_MAP).segments[-1] == "A"


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["21", "10"], "A) 21\nB) 10"),
        ([2.5, 1.5], "A) 2.5\nB) 1.5"),
        (["(A) 21", "(B) 10"], "(A) 21\n(B) 10"),
        (["B. one", "A. two"], "A) B. one\nB) A. two"),
        ({"A": "21", "B": 10}, "A) 21\nB) 10"),
        ({"label": ["1", "2"], "text": ["left", "right"]}, "1) left\n2) right"),
        ([{"key": "A", "value": "x"}, {"key": "B", "value": "y"}], "A) x\nB) y"),
    ],
)
def test_options_as_datasets_write_them(options: Any, lines: str) -> None:
    assert prompt({**AQUA, "options": options}, AQUA_MAP) == f"{AQUA['question']}\n{lines}"


def test_a_number_stands_for_an_option_counted_from_0_unless_one_is_called_so() -> None:
    plain = {**AQUA, "options": ["red", "blue"]}
    assert sample({**plain, "correct": 1}, AQUA_MAP).segments[-1] == "B"
    assert sample({**AQUA, "options": ["1", "0"], "correct": 1}, AQUA_MAP).segments[-1] == "1"
    assert verdict({**plain, "correct": 2}, AQUA_MAP) == (
        Reason.NO_ANSWER,
        "the answer 2 is none of 2 options, counted from 0",
    )
    assert verdict({**AQUA, "options": [None]}, AQUA_MAP)[0] is Reason.UNKNOWN_RECORD
    assert verdict({**AQUA, "options": 7}, AQUA_MAP)[0] is Reason.UNKNOWN_RECORD
    assert prompt({**AQUA, "options": []}, AQUA_MAP) == AQUA["question"]


def test_paths_go_into_objects_and_lists_and_a_name_with_dots_counts_first() -> None:
    fields = {
        "meta": {"question": "Why?", "id": 17},
        "turns": [{"text": "no"}, {"text": "One.\nTwo.\nAnswer: 3"}],
        "meta.system": "Be brief.",
    }
    mapping = {"prompt": "meta.question", "response": "turns.-1.text", "id": "meta.id", "system": "meta.system"}
    found = sample(fields, mapping)
    assert [turn.text for turn in found.turns] == ["Be brief.", "Why?"]
    assert (found.sample_id, found.segments) == ("17", ["One.\n", "Two.\n", "Answer: 3"])
    reason, detail = verdict(fields, {**mapping, "prompt": "meta.problem"})
    assert reason is Reason.UNKNOWN_RECORD
    assert detail == "no field 'meta.problem'; the keys are 'meta', 'turns', 'meta.system'"
    assert verdict(fields, {**mapping, "response": "turns.2.text"})[0] is Reason.UNKNOWN_RECORD


def test_steps_may_be_listed_with_an_answer_of_their_own_or_inside_the_last() -> None:
    fields = {"problem": "1 + 2?", "work": ["Take 1.", "Add 2.", "So \\boxed{3}."], "gold": 3}
    parts = {"prompt": "problem", "steps": "work"}
    assert sample(fields, {**parts, "answer": "gold"}).segments == [
        "Take 1.\n", "Add 2.\n", "So \\boxed{3}.\n", "3",
    ]  # fmt: skip
    assert sample(fields, parts).segments == ["Take 1.\n", "Add 2.\n", "So \\boxed{3}."]
    assert sample({**fields, "work": ["a", "b"]}, parts, answer="last").segments == ["a\n", "b"]
    assert verdict({**fields, "work": "a"}, parts)[0] is Reason.UNKNOWN_RECORD


def test_what_is_not_mapped_is_not_read_as_a_part() -> None:
    """A gold label called 'answer' is no answer of a response that has its own."""
    fields = {"question": "Q?", "solution": "One.\nTwo.\nAnswer: 3", "answer": "4", "response": "other"}
    found = sample(fields, {"prompt": "question", "response": "solution"})
    assert found.segments == ["One.\n", "Two.\n", "Answer: 3"]


def test_images_are_taken_from_the_field_named_and_no_other() -> None:
    fields = {**AQUA, "picture": ["a.png"], "image": "thumbnail.png"}
    assert sample(fields, {**AQUA_MAP, "images": "picture"}).images == [ImageRef("a.png")]
    assert sample({**fields, "picture": None}, {**AQUA_MAP, "images": "picture"}).images == []


@pytest.mark.parametrize("name", list(FORMATS))
def test_an_id_counts_in_every_format_its_own_or_another_field(name: str) -> None:
    fields = {**EXAMPLES[name], "id": "own", "qid": 7.0}
    assert sample(fields, {}, name).sample_id == "own"
    assert sample(fields, {"id": "qid"}, name).sample_id == "7"
    reason, detail = verdict({**fields, "qid": None}, {"id": "qid"}, format=name)
    assert (reason, detail) == (Reason.UNKNOWN_RECORD, "the id ('qid') is empty; a text or a whole number is wanted")


@pytest.mark.parametrize(
    ("mapping", "settings", "message"),
    [
        ({"prompt": "q", "respnse": "r"}, {}, "unknown part .*The parts are prompt, response"),
        ({"response": "r"}, {}, "does not name the field of the prompt"),
        ({"prompt": "q"}, {}, "either --map response=FIELD"),
        ({"prompt": "q", "response": "r", "steps": "s"}, {}, "either --map response=FIELD"),
        ({"prompt": "q", "response": "r", "answer": "a"}, {"answer": "last"}, "both say where the answer is"),
        ({"prompt": "q", "response": "r"}, {"format": "gsm8k"}, "gsm8k finds the prompt in its own way"),
        ({"id": "q"}, {"format": "mapped"}, "--format mapped needs --map. Add --map prompt=FIELD"),
    ],
)
def test_mappings_that_make_no_trace_are_refused(mapping: dict[str, str], settings: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_spec(DataSpec(**{"format": "mapped", "map": mapping, **settings}))


def test_a_mapping_is_proposed_where_the_names_are_usual() -> None:
    with pytest.raises(UnknownFormat, match="Try --map prompt=question --map response=rationale --map answer=correct"):
        detect_format([AQUA])
    with pytest.raises(UnknownFormat, match="Name the fields that hold prompt and response"):
        detect_format([{"neither": 1}])
    with pytest.raises(UnknownFormat, match="Name the fields that hold prompt and response"):
        detect_format([{"question": "Why?", "rationale": "on", "explanation": ["a", "b"]}] * 3)


def test_the_mapping_that_reads_most_records_is_proposed_with_their_number() -> None:
    written = {"question": "Why?", "reasoning": "on", "explanation": "One.\nTwo.\nAnswer: 3"}
    unread = {**written, "explanation": None}
    told = r"Try --map prompt=question --map response=explanation\. Of the first 4 records, it reads 3\."
    with pytest.raises(UnknownFormat, match=told):
        detect_format([written, written, unread, written])
    with pytest.raises(UnknownFormat, match="Name the fields that hold prompt and response"):
        detect_format([written, unread, unread, written])


def test_usual_names_one_level_below_are_found_too() -> None:
    assert next(usual_maps({"id": 1, "meta": {"problem": "p", "qid": 2}, "answer": "a"})) == {
        "prompt": "meta.problem",
        "response": "answer",
    }


def test_the_marker_that_the_help_explains() -> None:
    text = "(1) 3 bags of 4 apples are 12.\n    That is a dozen.\n(2) Two are eaten, so 10 are left.\nAnswer: 10"
    markers = {"splitter": r"marker:\(\d+\)", "answer": "marker:^Answer:"}
    found = sample({"q": "How many?", "r": text}, {"prompt": "q", "response": "r"}, **markers)
    assert [len(segment.splitlines()) for segment in found.segments] == [2, 1, 1]


def test_a_mapping_is_named_in_words_if_there_is_one() -> None:
    assert "map" not in DataSpec(format="explicit").in_words()
    assert DataSpec(format="mapped", map={"prompt": "q"}).in_words()["map"] == "prompt=q"
