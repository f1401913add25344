"""Flags of texts: each finds its flaw, and traces of many ways of writing have none."""

from __future__ import annotations

import pytest

from grace_store.base.states import TEXT_SHIFT, flag_names
from grace_store.data.hygiene import text_flags
from grace_store.data.parse_records import cover
from grace_store.data.sample import Sample, Turn

QUESTION = (
    "Janet's ducks lay 16 eggs a day. She eats three of them for breakfast and sells the rest. How many are sold?"
)
STEPS = ["She eats 3 eggs a day.", "She sells 16 - 3 = <<16-3=13>>13 eggs."]


def flags(steps: list[str], answer: str, question: str = QUESTION) -> list[str]:
    response = "\n".join([*steps, answer])
    starts = [sum(len(step) + 1 for step in steps[:i]) for i in range(len(steps) + 1)]
    bounds = cover(response, starts[:-1], starts[-1])
    return flag_names(text_flags(Sample("s", (Turn("user", (question,)),), response, bounds)) << TEXT_SHIFT)


@pytest.mark.parametrize(
    ("steps", "answer"),
    [
        (STEPS, "#### 13"),
        (STEPS, "The answer is 13 eggs."),
        (STEPS, "Answer: exactly 13"),
        (STEPS, "Answer: all 13 eggs"),
        (["It takes 3 hours to lay the eggs.", "She does that 4 times, so 12 hours."], "Answer: 720 minutes"),
        (["She drives 13 km to sell the eggs."], "Answer: 13,000 meters"),
        (["It holds for no egg of the 16, as shown."], "Answer: not all"),
        (STEPS, "$$\n\\boxed{13}\n$$"),
        (STEPS, "Thus the number is $\\boxed{13}$ eggs, which she sells."),
        (["Step 1: She eats 3 eggs.", "Step 2: So 16 - 3 = 13 are left."], "†Answer: 13"),
        (["<think>She eats 3 eggs.", "16 - 3 = 13 are left.</think>"], "She sells 13 eggs."),
        (["She eats 3 eggs.", "16 - 3 = 13 are left.</think>"], "She sells 13 eggs."),
        (["We have\n\\[\n16 - 3 = 13,\n\\]", "so that\n\\begin{align*}\nx &= 13\n\\end{align*}"], "\\boxed{13}"),
        (["```python", "for egg in range(16):", "    print(egg)", "    print(egg)", "print(13)", "```"], "Answer: 13"),
        (["Half of 26 is 13.", "That is $\\frac{13}{16}$ of all."], "#### 0.8125"),
        (["She sells 1 300 eggs in 100 days."], "#### 1,300"),
        (["她早餐吃了三个鸡蛋。", "十六减三等于十三，也就是 13 个。"], "答案是 13。"),
        (["So it is thirteen: she sells all but three."], "Answer: thirteen"),
        (["$x = 5$", "$x = 5$ again"], "\\boxed{5}"),
    ],
)
def test_traces_without_a_flaw_have_no_flag(steps, answer):
    assert flags(steps, answer) == []


@pytest.mark.parametrize(
    ("flag", "steps", "answer"),
    [
        ("repeated_steps", [*STEPS, STEPS[1]], "#### 13"),
        ("repeated_steps", [f"Step {i}: She sells 16 - 3 = 13 eggs." for i in range(1, 13)], "#### 13"),
        (
            "repeated_steps",
            ["Is she right that 13 is it? " + 3 * "Let me go over all of that again. " + "13."],
            "#### 13",
        ),
        ("repeated_steps", ["十六减三等于十三个鸡蛋。", "是 13 个。", "十六减三等于十三个鸡蛋。"], "#### 13"),
        ("cut_off", [STEPS[0], "She sells the rest of"], "#### 3"),
        ("cut_off", ["With 3 eaten there are 13 eggs left.", "After breakfast she sells sixteen minus"], "#### 13"),
        ("cut_off", STEPS, "So in the end it is 13, as we take 16 and"),
        ("cut_off", STEPS, "We write \\(16 - 3 = 13"),
        ("cut_off", [*STEPS, "```python\nprint(13)"], "The answer is 13."),
        ("unsupported_answer", STEPS, "#### 14"),
        ("unsupported_answer", STEPS, "\\boxed{\\frac{22}{7}}"),
        ("unsupported_answer", STEPS, "Answer: exactly 77"),
        ("unsupported_answer", STEPS, "Answer: the same 77 eggs"),
        ("unsupported_answer", STEPS, "Answer: 91 eggs"),
        ("unsupported_answer", STEPS, "Answer: 13000 small eggs"),
        ("text_after_answer", STEPS, "#### 13\nThat is all."),
        ("text_after_answer", STEPS, "The answer is \\boxed{13}. I hope that it is correct."),
        ("text_after_answer", STEPS, "Answer: 13\n\nLet us now look at another one."),
        ("text_after_answer", STEPS, "Answer: 13\nQuestion: And on Sundays?"),
        ("think_blocks", ["<think>\n\n</think>", *STEPS], "#### 13"),
        ("think_blocks", ["<think>" + STEPS[0], STEPS[1]], "#### 13"),
        ("think_blocks", [f"<think>{step}</think>" for step in STEPS], "#### 13"),
        ("think_blocks", ["<think>" + STEPS[0] + "</thinking>", STEPS[1]], "#### 13"),
        ("restates_question", ["She eats three of them for breakfast and sells the rest.", *STEPS], "#### 13"),
        ("restates_question", [QUESTION, *STEPS], "#### 13"),
    ],
)
def test_each_flaw_has_its_flag(flag, steps, answer):
    assert flags(steps, answer) == [flag]


@pytest.mark.parametrize(
    ("last", "found"),
    [
        ("So she sells \\(\\boxed{13}\\) eggs.", []),
        ("Together, all of the eggs that she sells are **\\boxed{13}**.", []),
        ("So she sells \\(\\boxed{13}\\) eggs, and the", ["cut_off"]),
    ],
)
def test_an_answer_in_the_midst_of_a_sentence_does_not_cut_it_off(last, found):
    response = "\n".join([*STEPS, last])
    starts = [0, len(STEPS[0]) + 1, response.index(last)]
    sample = Sample("s", (Turn("user", (QUESTION,)),), response, cover(response, starts, response.index("\\boxed")))
    assert flag_names(text_flags(sample) << TEXT_SHIFT) == found


@pytest.mark.parametrize("number", ["1" * 60_000, "1,23" * 9000, "1/" * 9000 + "0", "0/0", "1e999", "ten " * 9000])
def test_numbers_of_any_length_are_no_fault_of_the_rules(number):
    for steps, answer in ([[f"It is {number}."], "#### 7"], [["It is 7."], f"\\boxed{{{number}}}"]):
        assert set(flags(steps, answer)) <= {"unsupported_answer"}


CHOICES = "Which is a prime number?\n(A) 21\n(B) 23\n(C) 25"


@pytest.mark.parametrize(
    ("steps", "answer", "found"),
    [
        (["21 is 3 times 7, and 25 is 5 times 5.", "So it is option B."], "B", []),
        (["21 is 3 times 7, and 25 is 5 times 5.", "Only 23 is left."], "Answer: (B)", []),
        (["21 is 3 times 7.", "That cannot be it."], "Answer: B", ["unsupported_answer"]),
    ],
)
def test_options_are_known_by_letter_or_by_what_they_say(steps, answer, found):
    assert flags(steps, answer, CHOICES) == found
