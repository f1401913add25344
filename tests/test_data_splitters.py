"""Splitters and answers: what opens a segment, and that segments cover any text exactly."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.base.errors import SettingError
from grace_store.base.states import Unusable
from grace_store.data.answers import (
    after_think,
    answer_line,
    boxed_answer,
    conclusion_answer,
    dagger_answer,
    hashes_answer,
    named_answer,
    natural_answer,
)
from grace_store.data.parse_records import cover
from grace_store.data.splitters import (
    line_starts,
    named_splitter,
    natural_starts,
    paragraph_starts,
    section_starts,
    step_starts,
)

SPLITTERS = {
    "lines": line_starts,
    "paragraphs": paragraph_starts,
    "steps": step_starts,
    "sections": section_starts,
    "natural": natural_starts,
    "marker": named_splitter(r"marker:\d+\.|- "),
}
ANSWERS = {
    "dagger": dagger_answer,
    "hashes": hashes_answer,
    "conclusion": conclusion_answer,
    "answer line": answer_line,
    "think": after_think,
    "boxed": boxed_answer,
    "boxed paragraph": named_answer("boxed", by_paragraph=True),
    "natural": natural_answer,
    "marker": named_answer("marker:ANS", by_paragraph=False),
}
PIECES = st.sampled_from(
    ["\n", "\n\n", "\r\n", " ", "\t", "a", "Step 1:", "**Step 2:** ", "### Step 3: x", "†Answer:", "**†Answer:** 4",
     "#### 5", "<think>", "</think>", "<SUMMARY>", "</SUMMARY>", "<REASONING>", "</REASONING>", "<CONCLUSION>",
     "\\boxed{", "}", "\\boxed{\\frac{1}{2}}", "$$", "Final answer: 3", "1. ", "- ", "ANS", "\x1c", "\u2028", "é"]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=25).map("".join)


@pytest.mark.parametrize("find", ANSWERS.values(), ids=ANSWERS)
@given(text=TEXTS)
def test_segments_cover_any_response_exactly(find, text):
    answer_start = find(text)
    if answer_start is None:
        return
    assert 0 <= answer_start < len(text)
    for split in SPLITTERS.values():
        starts = split(text[:answer_start])
        if starts:
            bounds = cover(text, starts, answer_start)  # raises for an empty segment, so none is
            segments = [text[start:stop] for start, stop in pairwise(bounds)]
            assert "".join(segments) == text
            assert all(segment.strip() for segment in segments)
            assert len(segments) == len(starts) + 1


@pytest.mark.parametrize("split", SPLITTERS.values(), ids=SPLITTERS)
@given(text=TEXTS)
def test_steps_open_in_order_at_visible_text(split, text):
    starts = split(text)
    assert starts == sorted(set(starts))
    assert all(segment.strip() for segment in steps(split, text))


def steps(split, text: str) -> list[str]:
    return [text[start:stop] for start, stop in pairwise([*split(text), len(text)])]


# ---------------------------------------------------------------- splitters


def test_lines_and_paragraphs():
    text = "one\n  two\n\n \t\nthree\r\n\r\nfour"
    assert steps(line_starts, text) == ["one\n", "  two\n\n \t\n", "three\r\n\r\n", "four"]
    assert steps(paragraph_starts, text) == ["one\n  two\n\n \t\n", "three\r\n\r\n", "four"]
    assert line_starts("") == paragraph_starts(" \n ") == []


def test_a_tag_alone_is_no_step():
    text = "<think>\n\nfirst\n\nsecond\n\n</think>\n\n"
    assert steps(paragraph_starts, text) == ["<think>\n\nfirst\n\n", "second\n\n</think>\n\n"]
    assert steps(line_starts, text) == ["<think>\n\nfirst\n\n", "second\n\n</think>\n\n"]
    assert steps(line_starts, "<think>\n") == ["<think>\n"]
    assert steps(line_starts, "a\n<x>\nb") == ["a\n", "<x>\n", "b"]


def test_step_markers_count_at_the_start_of_a_line_only():
    text = "Hm.\nStep 1: as in Step 9: foo\n\n**Step 2:** bar\n### Step 3: x\n  Step 4 : y\nStep five: no\nStep 6 no"
    assert steps(step_starts, text) == [
        "Step 1: as in Step 9: foo\n\n",
        "**Step 2:** bar\n",
        "### Step 3: x\n",
        "  Step 4 : y\nStep five: no\nStep 6 no",
    ]
    assert steps(step_starts, "**Step 10**: bold") == ["**Step 10**: bold"]


def test_sections():
    text = "<SUMMARY> s\n\ns2 </SUMMARY>\n\n<CAPTION> c </CAPTION>\n\n<REASONING>\nr1\n\nr2\n\nr3\n</REASONING>\n\n"
    assert steps(section_starts, text) == [
        "<SUMMARY> s\n\ns2 </SUMMARY>\n\n",
        "<CAPTION> c </CAPTION>\n\n",
        "<REASONING>\nr1\n\n",
        "r2\n\n",
        "r3\n</REASONING>\n\n",
    ]
    assert len(section_starts("<REASONING>\n\nr1\n\nr2\n\n</REASONING>")) == 2


def test_the_natural_order():
    assert natural_starts("Step 1: a\n\nb\nStep 2: c") == [0, 13]
    assert natural_starts("Step 1: a\n\nb\n\nc") == [0, 11, 14]
    assert natural_starts("<SUMMARY>a</SUMMARY><REASONING>b\n\nc</REASONING>") == [0, 20, 34]
    assert natural_starts("<think>\na\nb\n\nc\n</think>") == [0, 13]
    assert natural_starts("a\nb") == [0, 2]


def test_user_markers():
    split = named_splitter(r"marker:(?i)STEP\s\d")
    assert steps(split, "x\n  step 1 a step 2\n- step 3\nStep 4") == ["  step 1 a step 2\n- step 3\n", "Step 4"]
    assert steps(named_splitter("marker:^- "), "- a\n - b\n- c") == ["- a\n - b\n", "- c"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("marker:(", r"--splitter marker:\( is not a regular expression"),
        ("marker:a*", "matches empty text, and so every line"),
        ("marker:(a+)+b", "repeats a repeat, and such a search can take forever"),
        (r"marker:(?:[ab]*)*c", "repeats a repeat, and such a search can take forever"),
        ("marker:", "use format, lines, paragraphs or marker:REGEX"),
        ("line", "unknown value 'line' of --splitter: use format, lines, paragraphs"),
    ],
)
def test_bad_splitters_are_refused(name, message):
    with pytest.raises(SettingError, match=message):
        named_splitter(name)


def test_bad_answers_are_refused():
    with pytest.raises(SettingError, match=r"--answer marker:\[ is not a regular expression"):
        named_answer("marker:[", by_paragraph=False)
    with pytest.raises(SettingError, match="unknown value 'box' of --answer: use format, last, boxed or marker:REGEX"):
        named_answer("box", by_paragraph=False)


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("find", "response", "answer"),
    [
        (dagger_answer, "a †Answer: 1\nb\n†Answer: 2", "†Answer: 2"),
        (dagger_answer, "so it is B. †Answer: B\nmore", "†Answer: B\nmore"),
        (dagger_answer, "a\n**†Answer:** 3", "**†Answer:** 3"),
        (dagger_answer, "a\nAnswer: 3", None),
        (dagger_answer, "a\n**†Answer:** ", None),
        (hashes_answer, "a\n#### 5", "#### 5"),
        (hashes_answer, "a #### 5", None),
        (hashes_answer, "a\n#### ", None),
        (conclusion_answer, "a\n<CONCLUSION> C </CONCLUSION>", "<CONCLUSION> C </CONCLUSION>"),
        (conclusion_answer, "a\n<CONCLUSION> </CONCLUSION>", None),
        (after_think, "<think>a</think>\n\nit is 5", "it is 5"),
        (after_think, "<think>a</think> \n", None),
        (after_think, "a", None),
        (answer_line, "a\nThe answer is 4.\nbye", "The answer is 4.\nbye"),
        (answer_line, "a\n**Final Answer:** 4", "**Final Answer:** 4"),
        (answer_line, "a\nTherefore, the answer is 4", "Therefore, the answer is 4"),
        (answer_line, "a\nanswering is hard", None),
        (answer_line, "a\nFinal answer:", None),
        (boxed_answer, "a\nso $\\boxed{\\frac{1}{2}}$ qed\nbye", "so $\\boxed{\\frac{1}{2}}$ qed\nbye"),
        (boxed_answer, "a\n\\[\n\\boxed{5}\n\\]", "\\[\n\\boxed{5}\n\\]"),
        (boxed_answer, "a\n\\boxed{1}\nb \\boxed{2", "\\boxed{1}\nb \\boxed{2"),
        (boxed_answer, "a\n\\boxed{\\{1\\}}", "\\boxed{\\{1\\}}"),
        (boxed_answer, "a\n\\boxed{}", None),
        (boxed_answer, "a\n" + "\\boxed{" * 200, None),
        (ANSWERS["boxed paragraph"], "a\n\nb\nso \\boxed{2}", "b\nso \\boxed{2}"),
        (ANSWERS["boxed paragraph"], "a\nso \\boxed{2}", "so \\boxed{2}"),
        (named_answer("marker:The result", by_paragraph=False), "The result a\nx. The result b", "The result b"),
    ],
)
def test_where_the_answer_opens(find, response, answer):
    start = find(response)
    assert (None if start is None else response[start:]) == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("a\n#### 4\n†Answer: 5", "†Answer: 5"),
        ("#### Solution\na\n#### 4", "#### 4"),
        ("#### Solution\na\nAnswer: 4", "Answer: 4"),
        ("<think>\\boxed{3}\n</think>\n\\boxed{4}", "\\boxed{4}"),
        ("a\n<CONCLUSION>\\boxed{4}</CONCLUSION>", "<CONCLUSION>\\boxed{4}</CONCLUSION>"),
        ("Step 1: a\nso\n\\boxed{4}\nAnswer: 4", "\\boxed{4}\nAnswer: 4"),
        ("a\n\nso\n\\boxed{4}", "so\n\\boxed{4}"),
        ("just text", None),
    ],
)
def test_the_natural_answer(response, answer):
    start = natural_answer(response)
    assert (None if start is None else response[start:]) == answer


def test_long_odd_texts_take_no_time():
    # Quadratic behaviour on any of these would take minutes.
    for text in (" " * 200_000 + "x", "\n" * 200_000, "*" * 200_000, "#" * 200_000, "†Answer:" + " " * 200_000 + "x"):
        for find in ANSWERS.values():
            find(text)
        for split in SPLITTERS.values():
            split(text)


def test_cover_says_what_is_empty():
    with pytest.raises(Unusable, match="no_steps"):
        cover("abc", [], 1)
    with pytest.raises(Unusable, match="empty_segment: step 2 is empty"):
        cover("a  b", [0, 1], 3)
    with pytest.raises(Unusable, match=re.escape("the answer is empty")):
        cover("ab  ", [0], 2)
