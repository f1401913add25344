"""Each format on records written by hand from its description, and what each sets aside."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from grace_store.base.errors import SettingError, UnknownFormat
from grace_store.base.settings import DataSpec
from grace_store.base.states import UNREAD_KEYS, Reason, Unusable, text_mask
from grace_store.data.formats.known_formats import FORMATS
from grace_store.data.hygiene import text_flags
from grace_store.data.parse_records import check_spec, detect_format, parse_record
from grace_store.data.record import Record
from grace_store.data.sample import ImageRef, Sample, Turn
from tests.format_examples import (
    ALPACA,
    EXAMPLES,
    EXPLICIT,
    GSM8K,
    LIMO,
    LLAVA_COT,
    MESSAGES,
    MMATHCOT,
    OPENR1,
    PRM800K,
    PRMBENCH,
    PROCESSBENCH,
    S1K,
    TRL,
)


def sample(fields: Any, format: str, **settings: Any) -> Sample:
    spec = DataSpec(format=format, **{"min_steps": 1, **settings})
    check_spec(spec)
    record = Record(0, 0, 0, 0, json.dumps(fields).encode())
    return parse_record(record, spec, "data.jsonl", 4)


def verdict(fields: Any, format: str, **settings: Any) -> Unusable:
    with pytest.raises(Unusable, match=r"^[a-z_]+(: |$)") as caught:
        sample(fields, format, **settings)
    return caught.value


def user(*parts: str | ImageRef) -> tuple[Turn, ...]:
    return (Turn("user", parts),)


# ---------------------------------------------------------------- the formats


def test_every_format_has_an_example_and_recognises_only_its_own():
    assert list(EXAMPLES) == list(FORMATS)
    for name, fields in EXAMPLES.items():
        assert [other for other, format in FORMATS.items() if format.recognises(fields)] == [name]
        assert detect_format([fields] * 3) == name
        assert FORMATS[name].description


def test_mmathcot():
    found = sample(MMATHCOT, "mmathcot")
    assert found.turns == user(ImageRef("images/1.png"), "How many?")
    assert found.segments == [
        "Look.\nStep 1: a\n\n", "**Step 2:** b, as in Step 1: a\n", "Step 3: c\n", "†Answer: 7",
    ]  # fmt: skip
    assert found.sample_id == "data.jsonl:4"
    assert (found.num_steps, found.num_segments, found.images) == (3, 4, [ImageRef("images/1.png")])
    without = verdict({**MMATHCOT, "output": "Step 1: a\nAnswer: 7"}, "mmathcot")
    assert without.reason is Reason.NO_ANSWER
    assert "looked for `†Answer:`; --answer says how else" in without.detail
    assert verdict({**MMATHCOT, "output": "no marker\n†Answer: 7"}, "mmathcot").reason is Reason.NO_STEPS


def test_messages():
    found = sample(MESSAGES, "messages")
    assert found.turns == (Turn("system", ("Be brief.",)), Turn("user", (ImageRef("a.png"), "What is it?")))
    assert found.segments == ["First a.\n\n", "Then b.\n\n", "So \\boxed{c}."]


def test_earlier_turns_are_the_prompt():
    turns = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d\nAnswer: e"), ("user", "thanks")]
    found = sample({"messages": [{"role": role, "content": text} for role, text in turns]}, "messages")
    assert [turn.text for turn in found.turns] == ["a", "b", "c"]
    assert found.segments == ["d\n", "Answer: e"]


def test_messages_with_parts():
    content = [
        {"type": "text", "text": "Look: "},
        {"type": "image_url", "image_url": {"url": "http://x/a.png"}},
        {"type": "image"},
        "and say.",
    ]
    reply = {"role": "assistant", "content": [{"type": "text", "text": "a\nAnswer: b"}]}
    fields = {"messages": [{"role": "user", "content": content}, reply], "images": ["b.png"]}
    found = sample(fields, "messages")
    assert found.turns == user("Look: ", ImageRef("http://x/a.png"), ImageRef("b.png"), "and say.")
    assert verdict({**fields, "images": []}, "messages").reason is Reason.IMAGE_COUNT


def test_alpaca():
    found = sample({**ALPACA, "system": "Be.", "history": [["q", "r"]]}, "alpaca")
    assert found.turns == (
        Turn("system", ("Be.",)),
        Turn("user", ("q",)),
        Turn("assistant", ("r",)),
        Turn("user", ("Add.\n1 and 2",)),
    )
    assert found.segments == ["One.\n", "Two.\n", "Answer: 3"]
    assert sample({**ALPACA, "input": ""}, "alpaca").turns == user("Add.")


def test_sharegpt_with_llava_cot_sections():
    found = sample(LLAVA_COT, "sharegpt")
    assert found.sample_id == "sqa/1"
    assert found.turns == user(ImageRef("sqa/1.png"), "Which?")
    assert found.segments == [
        "<SUMMARY> s </SUMMARY>\n\n", "<CAPTION> c </CAPTION>\n\n", "<REASONING> r1\n\n", "r2 </REASONING>\n\n",
        "<CONCLUSION> B </CONCLUSION>",
    ]  # fmt: skip
    system = sample({**LLAVA_COT, "system": "Be."}, "sharegpt").turns[0]
    assert system == Turn("system", ("Be.",))


def test_openr1():
    found = sample(OPENR1, "openr1")
    assert found.sample_id == "u-1"
    assert found.turns == user("1+1?")
    assert found.segments == ["<think>\nOne.\n\n", "Two.\n</think>\n\n", "It is $2$."]
    first = sample({**OPENR1, "correctness_math_verify": None}, "openr1")
    assert first.segments == ["<think>\nwrong\n</think>\n\n", "3"]
    unclosed = sample({**OPENR1, "generations": ["<think>\nOne.\n\nSo \\boxed{2}"]}, "openr1")
    assert unclosed.segments == ["<think>\nOne.\n\n", "So \\boxed{2}"]
    messages = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "<think>a</think>b"}]
    assert sample({**OPENR1, "messages": messages}, "openr1").response == "<think>a</think>b"


OPEN_THOUGHTS = (
    "<|begin_of_thought|>\n\nOkay, one apple.\n\nThen 6 more, which makes 7 apples.\n\n<|end_of_thought|>\n\n"
    "<|begin_of_solution|>\n\nThere are \\boxed{7} apples.\n\n<|end_of_solution|>"
)


def test_the_tags_of_open_thoughts_are_not_steps_and_raise_no_flag():
    turns = [{"from": "user", "value": "How many?"}, {"from": "assistant", "value": OPEN_THOUGHTS}]
    found = sample({"system": "Think.", "conversations": turns}, "sharegpt")
    assert found.segments == [
        "<|begin_of_thought|>\n\nOkay, one apple.\n\n",
        "Then 6 more, which makes 7 apples.\n\n<|end_of_thought|>\n\n",
        "<|begin_of_solution|>\n\nThere are \\boxed{7} apples.\n\n<|end_of_solution|>",
    ]
    assert text_flags(found) == 0
    turns[1]["value"] += "\n<|im_start|>user\nAnd now?"
    assert text_flags(sample({"conversations": turns}, "sharegpt")) == text_mask("text_after_answer")


@pytest.mark.parametrize("tag", ["think", "thinking", "Thought"])
def test_the_answer_is_the_text_after_a_thought(tag):
    response = f"<{tag}>\nOne.\n\nTwo.\n</{tag}>\n\nIt is 2."
    assert sample({**ALPACA, "output": response}, "alpaca").segments == [
        f"<{tag}>\nOne.\n\n", f"Two.\n</{tag}>\n\n", "It is 2.",
    ]  # fmt: skip


def test_trl_has_a_prompt_and_a_completion_as_texts_or_as_turns():
    found = sample(TRL, "pair")
    assert found.turns == (Turn("system", ("Be brief.",)), Turn("user", ("1+1?",)))
    assert (found.sample_id, found.segments) == ("t-1", ["One.\n", "One more.\n", "Answer: 2"])
    plain = {"prompt": "1+1?", "completion": "One.\nOne more.\nAnswer: 2"}
    assert detect_format([plain]) == "pair"
    assert sample(plain, "pair").turns == user("1+1?")
    assert sample(plain, "pair").response == found.response
    unsaid = {**TRL, "completion": [{"role": "user", "content": "Well?"}]}
    assert verdict(unsaid, "pair").detail == "no turn of 'completion' is the assistant's"
    called = {**TRL, "completion": [{"role": "assistant", "content": "x", "tool_calls": [{"name": "f"}]}]}
    assert verdict(called, "pair").reason is Reason.UNREAD_TOOL_CALLS
    assert verdict({"prompt": "x"}, "pair").detail.startswith("no 'response' among its keys")


def test_thoughts_in_a_field_of_their_own_go_inside_think_tags():
    found = sample(S1K, "thinking")
    assert found.segments == ["<think>\nFirst, one.\n\n", "Then two.\n</think>\n\n", "The sum is \\boxed{2}."]
    medical = {"Question": "Why?", "Complex_CoT": "Hm.\n\nSo.", "Response": "Because."}
    assert detect_format([medical]) == "thinking"
    assert sample(medical, "thinking").response == "<think>\nHm.\n\nSo.\n</think>\n\nBecause."
    newer = {**S1K, "deepseek_thinking_trajectory": "A.\n\nB.", "deepseek_attempt": "2"}
    assert sample(newer, "thinking").response == "<think>\nA.\n\nB.\n</think>\n\n2"
    others = FORMATS["thinking"].others
    assert others is not None
    wanted = "--map prompt=question --map thinking=thinking_trajectories --map response=attempt"
    assert (others(S1K), others(newer)) == (None, wanted)
    assert verdict({**S1K, "thinking_trajectories": []}, "thinking").reason is Reason.NO_STEPS


def test_a_pair_is_recognised_only_without_more_parts_of_the_question():
    assert detect_format([{"problem": "1+1?", "generated_solution": "a", "expected_answer": "2"}]) == "pair"
    assert detect_format([{"question": "1+1?", "system_prompt": "Be.", "response": "a"}]) == "pair"
    assert detect_format([{**MESSAGES, "problem": "1+1?", "solution": "2"}]) == "messages"
    code = {"problem": "Add.", "outputs": ["3", "4"], "samples": ["1 2", "1 3"], "solution": "a\nb\nAnswer: c"}
    assert sample(code, detect_format([code])).response == code["solution"]
    for more in ({"choices": ["a", "b"]}, {"context": "c"}):
        with pytest.raises(UnknownFormat, match="recognised: none"):
            detect_format([{**LIMO, **more}])
    assert sample({"query": "1?", "system_prompt": "Be.", "response": "x\nAnswer: 1"}, "pair").turns == (
        Turn("system", ("Be.",)), Turn("user", ("1?",)),
    )  # fmt: skip


TEXT = "One.\nOne more.\nAnswer: 2"
SAID = [{"role": "assistant", "content": TEXT}]


@pytest.mark.parametrize("field", ["response", "responses", "output", "completion", "solution"])
@pytest.mark.parametrize(("key", "value"), [("tool_calls", [{"name": "f"}]), ("reasoning_content", "Let me see.")])
def test_keys_in_the_turns_of_a_response_set_a_pair_aside(field, key, value):
    fields = {"prompt": "1+1?", field: [{**SAID[0], key: value}]}
    assert verdict(fields, detect_format([fields])).reason == f"unread_{key}"
    assert sample({"prompt": "1+1?", "responses": [TEXT], "tools": ["f"]}, "pair").response == TEXT


@pytest.mark.parametrize("response", [TEXT, SAID])
@pytest.mark.parametrize("prompt", ["1+1?", [{"role": "user", "content": "1+1?"}]])
@pytest.mark.parametrize("own", [{}, {"system": None}, {"system": ""}])
def test_a_pair_has_its_system_prompt_however_it_is_written(response, prompt, own):
    fields = {"prompt": prompt, "response": response, "system_prompt": "Be brief.", **own}
    assert sample(fields, "pair").turns == (Turn("system", ("Be brief.",)), *user("1+1?"))


@pytest.mark.parametrize("empty", [{"responses": []}, {"completions": []}, {"completion": ""}, {"problem": ""}])
def test_an_empty_field_does_not_hide_a_filled_one(empty):
    fields = {**empty, "prompt": "1+1?", "response": TEXT}
    found = sample(fields, detect_format([fields]))
    assert (found.turns, found.response) == (user("1+1?"), TEXT)
    assert verdict({"query": "1+1?", "responses": []}, "pair").detail == "'responses' is empty"


@pytest.mark.parametrize(("fields", "format"), [(S1K, "thinking"), (LIMO, "pair")])
def test_a_question_of_several_parts_is_never_read_in_part(fields, format):
    whole = {**fields, "options": ["a", "b"]}
    with pytest.raises(UnknownFormat, match="recognised: none"):
        detect_format([whole])
    found = verdict(whole, format)
    assert found.reason is Reason.UNKNOWN_RECORD
    assert found.detail.startswith(
        "'options' is a part of the question; use --map prompt=question --map response=FIELD"
    )
    assert sample({**fields, "options": []}, format) == sample(fields, format)


def test_gsm8k():
    found = sample(GSM8K, "gsm8k")
    assert found.turns == user("How many?")
    assert found.segments == ["a = <<1+1=2>>2\n", "b = <<2+1=3>>3\n", "#### 3"]


def prm800k(*last: dict[str, Any], **label: Any) -> dict[str, Any]:
    steps = [*PRM800K["label"]["steps"][:2], *last]
    return {**PRM800K, "label": {"steps": steps, **label}}


def test_prm800k():
    found = sample(PRM800K, "prm800k")
    assert found.turns == user("Solve.")
    assert found.segments == ["good\n", "by hand\n", "So x = 5.\n\n", "# Answer\n\n5"]
    two_lines = prm800k({"chosen_completion": 0, "completions": [{"text": "so\nx = 5"}]})
    assert sample(two_lines, "prm800k").segments == ["good\n", "by hand\n", "so\n", "x = 5"]
    assert sample(prm800k(), "prm800k").segments == ["good\n", "by hand\n", "5"]
    neither = {"chosen_completion": None, "completions": [{"text": "x"}]}
    assert sample(prm800k(neither), "prm800k").segments == ["good\n", "by hand\n", "5"]
    header = prm800k({"human_completion": "# Answer\n\n5"})
    assert sample(header, "prm800k").segments == ["good\n", "by hand\n", "# Answer\n\n5"]
    ended = verdict(prm800k(neither, finish_reason="found_error"), "prm800k")
    assert (ended.reason, ended.detail) == (Reason.NO_ANSWER, "the labeller ended with 'found_error'")
    assert verdict({**prm800k(), "question": {"problem": "Solve."}}, "prm800k").reason is Reason.NO_ANSWER
    assert verdict({**PRM800K, "label": {"steps": [neither]}}, "prm800k").reason is Reason.NO_STEPS


def test_processbench_keeps_its_own_steps_and_cuts_the_answer_off_the_last():
    found = sample(PROCESSBENCH, "processbench")
    assert (found.sample_id, found.turns) == ("gsm8k-0", user("How many?"))
    assert found.segments == ["Two and two is five.\n", "So there are ", "\\(\\boxed{5}\\) of them."]


def test_prmbench_reads_what_was_modified():
    found = sample(PRMBENCH, "prmbench")
    assert found.turns == user("How many, if any?")
    assert found.segments == ["Two and two is five.\n", "So there are ", "5."]
    assert verdict({**PRMBENCH, "modified_process": "five"}, "prmbench").reason is Reason.UNKNOWN_RECORD
    assert verdict({**PRMBENCH, "modified_process": []}, "prmbench").reason is Reason.NO_STEPS


@pytest.mark.parametrize(
    ("last", "parts"),
    [
        ("It is **\\boxed{5}**.", ["It is ", "**\\boxed{5}**."]),
        (
            "Thus 5. The final answer is 5. I hope it is correct.",
            ["Thus 5. The final answer is ", "5. I hope it is correct."],
        ),
        ("Five are left. So Tom has 5.", ["Five are left. ", "So Tom has 5."]),
        ("So 2.5 remain", ["So 2.5 ", "remain"]),
        ("Right.", ["Right."]),
        ("\\boxed{5}", ["\\boxed{5}"]),
    ],
)
def test_where_the_answer_begins_in_a_last_step(last: str, parts: list[str]):
    found = sample({**PROCESSBENCH, "steps": ["a", last]}, "processbench")
    assert found.segments == ["a\n", *parts]


def test_explicit():
    found = sample(EXPLICIT, "explicit")
    assert (found.sample_id, found.turns) == ("12", user("Why?"))
    assert found.response == "one\ntwo\nlines\nthree\nfour"
    assert found.segments == ["one\n", "two\nlines\n", "three\n", "four"]
    assert sample({**EXPLICIT, "answer": 4}, "explicit").segments[-1] == "4"
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "<image>u"}]
    found = sample({**EXPLICIT, "prompt": turns, "images": "a.png"}, "explicit")
    assert found.turns == (Turn("system", ("s",)), Turn("user", (ImageRef("a.png"), "u")))
    assert sample({**EXPLICIT, "system": "s"}, "explicit").turns[0] == Turn("system", ("s",))


# ---------------------------------------------------------------- images


def with_images(text: str, images: Any, key: str = "images") -> dict[str, Any]:
    return {"prompt": text, "steps": ["a"], "answer": "b", key: images}


def test_images_stand_where_the_text_says():
    found = sample(with_images("<image>and\n<image>", ["a.png", "b.png"]), "explicit")
    assert found.turns == user(ImageRef("a.png"), "and\n", ImageRef("b.png"))
    found = sample(with_images("x", ["a.png", "b.png"]), "explicit")
    assert found.turns == user(ImageRef("a.png"), ImageRef("b.png"), "x")
    for images in ([], None):
        wrong = verdict(with_images("an <image> tag", images), "explicit")
        assert (wrong.reason, wrong.detail) == (Reason.IMAGE_COUNT, "0 images for 1 <image> in the prompt")
    wrong = verdict(with_images("<image>", ["a.png", "b.png"]), "explicit")
    assert (wrong.reason, wrong.detail) == (Reason.IMAGE_COUNT, "2 images for 1 <image> in the prompt")


PIXEL = b"\x89PNG"
ENCODED = base64.b64encode(PIXEL).decode()


@pytest.mark.parametrize(
    ("image", "source"),
    [
        ("a.png", "a.png"),
        ({"path": "a.png", "bytes": None}, "a.png"),
        ({"path": "a.png", "bytes": {"bytes_base64": ENCODED}}, PIXEL),
        ({"bytes": ENCODED}, PIXEL),
        ({"bytes_base64": ENCODED}, PIXEL),
        ({"url": "http://x/a.png"}, "http://x/a.png"),
    ],
)
@pytest.mark.parametrize("key", ["image", "images", "image_url"])
def test_images_are_written_in_many_ways(image, source, key):
    for value in (image, [image]):
        assert sample(with_images("x", value, key), "explicit").images == [ImageRef(source)]


@pytest.mark.parametrize("image", [{"path": None}, 5, {"bytes_base64": "?"}, {"bytes": "é"}])
def test_an_image_that_says_nothing_is_unreadable(image):
    assert verdict(with_images("x", [image]), "explicit").reason is Reason.IMAGE_UNREADABLE


# ---------------------------------------------------------------- what is set aside


def turns(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


@pytest.mark.parametrize(
    ("fields", "format", "reason", "detail"),
    [
        ({"x": 1}, "mmathcot", Reason.UNKNOWN_RECORD, "no 'output' among its keys ('x'); a string is wanted"),
        ({**MMATHCOT, "output": 5}, "mmathcot", Reason.UNKNOWN_RECORD, "'output' is a int; a string is wanted"),
        ({**MMATHCOT, "instruction": " "}, "mmathcot", Reason.NO_PROMPT, "'instruction' is empty"),
        ({**MMATHCOT, "output": None}, "mmathcot", Reason.NO_RESPONSE, "'output' is empty"),
        ({"k" * 50: 1}, "gsm8k", Reason.UNKNOWN_RECORD, "kkk...'"),
        ({"messages": "x"}, "messages", Reason.UNKNOWN_RECORD, "a list of turns is wanted"),
        ({"messages": []}, "messages", Reason.UNKNOWN_RECORD, "a list of turns is wanted"),
        ({"messages": ["x"]}, "messages", Reason.UNKNOWN_RECORD, "turn 1 of 'messages' has no 'role'"),
        (turns(("tool", "x")), "messages", Reason.UNKNOWN_RECORD, "is from 'tool'; known are system"),
        (turns(("user", 5)), "messages", Reason.UNKNOWN_RECORD, "holds a int; text is wanted"),
        (turns(("user", [{"type": "video"}])), "messages", Reason.UNKNOWN_RECORD, "a part of type 'video'"),
        (turns(("user", "x")), "messages", Reason.NO_RESPONSE, "no turn is the assistant's"),
        (turns(("assistant", "x\nAnswer: y")), "messages", Reason.NO_PROMPT, "nothing is asked"),
        (turns(("user", " "), ("assistant", "x\nAnswer: y")), "messages", Reason.NO_PROMPT, "nothing is asked"),
        (turns(("user", "x"), ("assistant", None)), "messages", Reason.NO_RESPONSE, "the response is empty"),
        (turns(("user", "x"), ("assistant", "just this")), "messages", Reason.NO_ANSWER, "`</think>`"),
        (turns(("user", "x"), ("assistant", "Answer: y")), "messages", Reason.NO_STEPS, "no step found before"),
        ({**ALPACA, "history": ["x"]}, "alpaca", Reason.UNKNOWN_RECORD, "'history' is not a list of"),
        ({**ALPACA, "input": 5}, "alpaca", Reason.UNKNOWN_RECORD, "is not a string"),
        ({**OPENR1, "generations": 5}, "openr1", Reason.UNKNOWN_RECORD, "'generations' is a int; a string is"),
        ({**OPENR1, "generations": []}, "openr1", Reason.NO_RESPONSE, "'generations' is empty"),
        ({**OPENR1, "generations": [1, 2]}, "openr1", Reason.UNKNOWN_RECORD, "a list of strings is wanted"),
        ({**GSM8K, "answer": "a\nb"}, "gsm8k", Reason.NO_ANSWER, "`####` at the start of a line"),
        ({"question": "x"}, "prm800k", Reason.UNKNOWN_RECORD, "'question' is a str; an object is wanted"),
        ({"question": {}, "label": {}}, "prm800k", Reason.UNKNOWN_RECORD, "an object with 'steps'"),
        (prm800k("x"), "prm800k", Reason.UNKNOWN_RECORD, "step 3 of 'label' is not an object"),
        (prm800k({"chosen_completion": 4}), "prm800k", Reason.UNKNOWN_RECORD, "step 3: no completion number 4"),
        (prm800k({"human_completion": 4}), "prm800k", Reason.UNKNOWN_RECORD, "step 3: the completion has no text"),
        ({**EXPLICIT, "steps": ["a", 1]}, "explicit", Reason.UNKNOWN_RECORD, "a list of strings is wanted"),
        ({**EXPLICIT, "steps": []}, "explicit", Reason.NO_STEPS, "no step found"),
        ({**EXPLICIT, "steps": ["a", " "]}, "explicit", Reason.EMPTY_SEGMENT, "step 2 is empty"),
        ({**EXPLICIT, "answer": ""}, "explicit", Reason.NO_ANSWER, "'answer' is empty"),
        ({"prompt": "x", "steps": ["a"]}, "explicit", Reason.NO_ANSWER, "'answer' is missing"),
        ({**EXPLICIT, "prompt": "\ud800"}, "explicit", Reason.BAD_TEXT, "(U+D800) at character 0 of the user turn"),
        ({**EXPLICIT, "answer": "é\udfff"}, "explicit", Reason.BAD_TEXT, "(U+DFFF) at character 21 of the response"),
        ({**EXPLICIT, "id": "\ud800"}, "explicit", Reason.BAD_TEXT, "of 'id'"),
        (with_images("x", "\ud800.png"), "explicit", Reason.BAD_TEXT, "the user turn"),
        ([1], "explicit", Reason.NOT_AN_OBJECT, "a JSON array"),
    ],
)
def test_verdicts_name_the_reason_and_what_was_found(fields, format, reason, detail):
    found = verdict(fields, format)
    assert found.reason is reason
    assert detail in found.detail


# ---------------------------------------------------------------- keys that would be lost

RECORD_KEYS = ("tools", "videos", "audios", "objects")
TURN_KEYS = (
    "reasoning_content", "reasoning", "thinking", "tool_calls", "function_call", "loss", "loss_scale", "weight",
)  # fmt: skip
WEIGHT_KEYS = ("loss", "loss_scale", "weight")
CONVERSATIONS = {
    "messages": (MESSAGES, "messages"),
    "sharegpt": (LLAVA_COT, "conversations"),
    "openr1": ({**OPENR1, "messages": MESSAGES["messages"], "images": ["a.png"]}, "messages"),
    "explicit": ({**EXPLICIT, "prompt": [{"role": "user", "content": "How many?"}]}, "prompt"),
}


def with_key(format: str, key: str, value: Any, turn: int = -1) -> dict[str, Any]:
    """Return a conversation that has a key where that key belongs: on the record, or on a turn."""
    fields, field = CONVERSATIONS[format]
    if key in RECORD_KEYS:
        return {**fields, key: value}
    turns = [*fields[field]]
    turns[turn] = {**turns[turn], key: value}
    return {**fields, field: turns}


def test_the_keys_that_are_not_understood_are_these():
    assert tuple(UNREAD_KEYS) == (*RECORD_KEYS, *TURN_KEYS)


@pytest.mark.parametrize("format", CONVERSATIONS)
@pytest.mark.parametrize("key", [*RECORD_KEYS, *TURN_KEYS])
def test_a_key_that_would_be_lost_sets_a_conversation_aside_unless_it_is_ignored(format, key):
    value = 0.5 if key in WEIGHT_KEYS else [{"type": "function"}] if "tool" in key else "Let me see."
    fields = with_key(format, key, value)
    found = verdict(fields, format)
    assert found.reason == f"unread_{key}"
    assert found.detail == f"{key!r} is not read yet, --ignore-key {key} reads the record without it"
    assert found.why.keys == (key,)
    plain = sample(CONVERSATIONS[format][0], format)
    assert sample(fields, format, ignore_key=(key,)) == plain
    other = next(each for each in UNREAD_KEYS if each != key)
    assert verdict(fields, format, ignore_key=(other,)).reason is found.reason


@pytest.mark.parametrize("format", CONVERSATIONS)
@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (UNREAD_KEYS, [None, "", " \n", [], {}, [None], [{}], "[]", " {} ", "null", {"ref": [], "bbox": None}]),
        (WEIGHT_KEYS, [1, 1.0, True]),
        (["name", "channel", "train", "label"], ["said", 0, 0.5, False]),
    ],
)
def test_a_key_that_says_nothing_or_is_unknown_changes_nothing(format, keys, values):
    plain = sample(CONVERSATIONS[format][0], format)
    for key in keys:
        for value in values:
            assert sample(with_key(format, key, value), format) == plain, (key, value)


@pytest.mark.parametrize("value", [0, 0.0, False, 2, 1.5, -1, "1", [1]])
@pytest.mark.parametrize("key", WEIGHT_KEYS)
def test_every_weight_but_one_counts_on_any_turn(key, value):
    for turn in range(3):
        assert verdict(with_key("messages", key, value, turn), "messages").reason == f"unread_{key}"


@pytest.mark.parametrize("value", [1, True, 0, False])
def test_a_key_that_is_no_weight_counts_whatever_its_number_is(value):
    assert verdict(with_key("messages", "thinking", value), "messages").reason is Reason.UNREAD_THINKING


def test_all_keys_of_a_record_are_named_and_the_reason_is_the_first():
    fields = with_key("messages", "reasoning_content", "Let me see.") | {"tools": [{"type": "function"}]}
    found = verdict(fields, "messages")
    assert (found.reason, found.why.keys) == (Reason.UNREAD_TOOLS, ("tools", "reasoning_content"))
    assert "--ignore-key tools reads" in found.detail
    assert "--ignore-key reasoning_content reads" in found.detail
    assert verdict(fields, "messages", ignore_key=("tools",)).reason is Reason.UNREAD_REASONING_CONTENT


def test_only_conversations_have_such_keys_and_those_that_a_mapping_names_are_read():
    assert sample({**ALPACA, "tools": "x"}, "alpaca") == sample(ALPACA, "alpaca")
    assert sample({**OPENR1, "tools": "x", "messages": []}, "openr1") == sample(OPENR1, "openr1")
    assert sample({**EXPLICIT, "tools": "x"}, "explicit") == sample(EXPLICIT, "explicit")
    told = sample({**MESSAGES, "tools": "Use a pen."}, "messages", map={"system": "tools"})
    assert told.turns[0].text == "Be brief."  # its own system turn stands
    asked = {"asked": [{"role": "user", "content": "Why?", "weight": 0}], "said": "One.\nTwo.\nAnswer: 3"}
    mapping = {"prompt": "asked", "response": "said"}
    assert verdict(asked, "mapped", map=mapping).reason is Reason.UNREAD_WEIGHT
    assert sample(asked, "mapped", map=mapping, ignore_key=("weight",)).num_steps == 2


def test_nul_characters_are_text():
    assert sample({**EXPLICIT, "steps": ["a\0b"]}, "explicit").segments[0] == "a\0b\n"


# ---------------------------------------------------------------- settings


def test_number_of_steps():
    assert sample(EXPLICIT, "explicit", min_steps=3, max_steps=3).num_steps == 3
    few = verdict(EXPLICIT, "explicit", min_steps=8)
    assert (few.reason, few.detail) == (Reason.TOO_FEW_STEPS, "3 steps, at least 8 wanted")
    many = verdict(EXPLICIT, "explicit", max_steps=2)
    assert (many.reason, many.detail) == (Reason.TOO_MANY_STEPS, "3 steps, at most 2 wanted")


@pytest.mark.parametrize(
    ("settings", "segments"),
    [
        ({}, ["one\n", "two\nlines\n", "three\n", "four"]),
        ({"splitter": "lines"}, ["one\n", "two\n", "lines\n", "three\n", "four"]),
        ({"answer": "last"}, ["one\n", "two\nlines\n", "three\n", "four"]),
        ({"answer": "marker:li"}, ["one\n", "two\n", "lines\nthree\nfour"]),
        ({"splitter": "lines", "answer": "last"}, ["one\n", "two\n", "lines\n", "three\n", "four"]),
        ({"splitter": "marker:t", "answer": "last"}, ["one\ntwo\nlines\n", "three\nfour"]),
    ],
)
def test_the_users_splitter_and_answer_come_before_the_formats(settings, segments):
    assert sample(EXPLICIT, "explicit", **settings).segments == segments


def test_a_boxed_answer_takes_the_splitters_unit():
    fields = turns(("user", "x"), ("assistant", "a\n\nb\nso \\boxed{2}"))
    assert sample(fields, "messages", answer="boxed").segments == ["a\n\n", "b\nso \\boxed{2}"]
    lines = sample(fields, "messages", answer="boxed", splitter="lines")
    assert lines.segments == ["a\n\n", "b\n", "so \\boxed{2}"]
    missing = verdict(EXPLICIT, "explicit", answer="boxed")
    assert (missing.reason, "looked for --answer boxed" in missing.detail) == (Reason.NO_ANSWER, True)


def test_a_splitter_that_finds_nothing_is_named():
    found = verdict(EXPLICIT, "explicit", splitter="marker:zzz")
    assert (found.reason, "--splitter marker:zzz" in found.detail) == (Reason.NO_STEPS, True)
    assert verdict(EXPLICIT, "explicit", splitter="marker:zzz", answer="last").reason is Reason.NO_STEPS


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"format": "csv"}, UnknownFormat, "unknown value 'csv' of --format: use one of mmathcot, messages"),
        ({"splitter": "words"}, SettingError, "unknown value 'words' of --splitter"),
        ({"answer": "marker:("}, SettingError, "--answer marker:"),
        ({"min_steps": 9, "max_steps": 8}, SettingError, "--min-steps 9 is above --max-steps 8"),
        ({"ignore_key": ("name", "tools")}, SettingError, "unknown value 'name' of --ignore-key: use tools, vid"),
    ],
)
def test_settings_are_checked_before_any_record(settings, error, message):
    with pytest.raises(error, match=message):
        check_spec(DataSpec(**{"format": "explicit", **settings}))


# ---------------------------------------------------------------- ids and detection


@pytest.mark.parametrize(
    ("own", "expected"),
    [({"id": "a"}, "a"), ({"id": 0}, "0"), ({"uuid": "u"}, "u"), ({"sample_id": "s", "uuid": "u"}, "s"),
     ({"id": ""}, "data.jsonl:4"), ({"id": True}, "data.jsonl:4"), ({"id": 1.5}, "data.jsonl:4"),
     ({}, "data.jsonl:4")],
)  # fmt: skip
def test_ids(own, expected):
    fields = {key: value for key, value in EXPLICIT.items() if key != "id"}
    assert sample({**fields, **own}, "explicit").sample_id == expected


def test_the_majority_decides_the_format():
    assert detect_format([GSM8K, GSM8K, {"x": 1}]) == "gsm8k"


def test_an_unclear_format_is_explained():
    with pytest.raises(UnknownFormat, match="recognised: 1 as messages, 1 as gsm8k") as caught:
        detect_format([GSM8K, MESSAGES])
    assert "Keys of the first record: 'question', 'answer'." in str(caught.value)
    with pytest.raises(UnknownFormat, match="Records read: 3; recognised: 1 as gsm8k"):
        detect_format([GSM8K, {"x": 1}, {"x": 1}])
    with pytest.raises(UnknownFormat, match="recognised: none") as caught:
        detect_format([{"text": "é\x1b" * 500, **{f"k{i}": i for i in range(20)}}])
    message = str(caught.value)
    assert "\\u00e9\\u001b" in message
    assert "\x1b" not in message
    assert len(message) < 2200
    assert all(f"  {name} " in message for name in FORMATS)
    with pytest.raises(UnknownFormat, match="there is no record, so the format is unknown"):
        detect_format([])
