"""Records of well-known layouts, written by hand after each layout's documentation, and what they are read as.

`docs/layouts.md` has a row for each. A layout has the format that it is recognised as, the options of the command, a
record, and the prompt, steps and answer of its first trace.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests import format_examples as examples


class Layout(NamedTuple):
    """A layout: how its record is read."""

    format: str
    record: dict[str, Any]
    prompt: str
    steps: list[str]
    answer: str
    options: str = ""
    num_traces: int = 1


def said(*turns: tuple[str, str], role: str = "role", text: str = "content", **more: Any) -> list[dict[str, Any]]:
    return [{role: who, text: what, **more} for who, what in turns]


THOUGHT = "<think>\nOne and one.\n\nThat is 2.\n</think>\n\nThe sum is \\boxed{2}."
THOUGHT_STEPS = ["<think>\nOne and one.\n\n", "That is 2.\n</think>\n\n"]
SUM = "The sum is \\boxed{2}."
WORKED = "One and one.\n\nThat is 2.\n\nThe sum is \\boxed{2}."
WORKED_STEPS = ["One and one.\n\n", "That is 2.\n\n"]
TAGGED = (
    "<|begin_of_thought|>\n\nOne and one.\n\nThat is 2.\n\n<|end_of_thought|>\n\n"
    "<|begin_of_solution|>\n\nThe sum is \\boxed{2}.\n\n<|end_of_solution|>"
)
TAGGED_STEPS = ["<|begin_of_thought|>\n\nOne and one.\n\n", "That is 2.\n\n<|end_of_thought|>\n\n"]
TAGGED_ANSWER = "<|begin_of_solution|>\n\nThe sum is \\boxed{2}.\n\n<|end_of_solution|>"

LAYOUTS: dict[str, Layout] = {
    "MMathCoT-1M": Layout(
        "mmathcot",
        examples.MMATHCOT,
        "How many?",
        ["Look.\nStep 1: a\n\n", "**Step 2:** b, as in Step 1: a\n", "Step 3: c\n"],
        "†Answer: 7",
    ),
    "ms-swift, OpenAI": Layout(
        "messages", {"messages": said(("user", "1+1?"), ("assistant", WORKED))}, "1+1?", WORKED_STEPS, SUM
    ),
    "NuminaMath-CoT": Layout(
        "messages",
        {
            "source": "olympiads",
            "problem": "1+1?",
            "solution": WORKED,
            "messages": said(("user", "1+1?"), ("assistant", WORKED)),
        },
        "1+1?",
        WORKED_STEPS,
        SUM,
    ),
    "Mixture-of-Thoughts": Layout(
        "messages",
        {"messages": said(("user", "1+1?"), ("assistant", THOUGHT)), "num_tokens": 9, "source": "math"},
        "1+1?",
        THOUGHT_STEPS,
        SUM,
    ),
    "AM-DeepSeek-R1-Distilled": Layout(
        "messages",
        {
            "messages": said(
                ("user", "1+1?"), ("assistant", f"{THOUGHT[: -len(SUM)].strip()}\n<answer>\n2\n</answer>"), info={}
            )
        },
        "1+1?",
        ["<think>\nOne and one.\n\n", "That is 2.\n</think>\n"],
        "<answer>\n2\n</answer>",
    ),
    "LLaMA-Factory alpaca": Layout(
        "alpaca", {"instruction": "Add.", "input": "1 and 1", "output": WORKED}, "Add.\n1 and 1", WORKED_STEPS, SUM
    ),
    "OpenO1-SFT": Layout(
        "alpaca",
        {
            "instruction": "1+1?",
            "output": "<Thought>\nOne and one.\n\nThat is 2.\n</Thought>\n<Output>\nIt is 2.\n</Output>",
        },
        "1+1?",
        ["<Thought>\nOne and one.\n\n", "That is 2.\n</Thought>\n"],
        "<Output>\nIt is 2.\n</Output>",
    ),
    "LLaMA-Factory sharegpt": Layout(
        "sharegpt",
        {
            "conversations": said(("human", "1+1?"), ("gpt", WORKED), role="from", text="value"),
            "system": "Be brief.",
        },
        "Be brief.\n1+1?",
        WORKED_STEPS,
        SUM,
    ),
    "LLaVA-CoT-100k": Layout(
        "sharegpt",
        examples.LLAVA_COT,
        "Which?",
        ["<SUMMARY> s </SUMMARY>\n\n", "<CAPTION> c </CAPTION>\n\n", "<REASONING> r1\n\n", "r2 </REASONING>\n\n"],
        "<CONCLUSION> B </CONCLUSION>",
    ),
    "OpenThoughts-114k, Bespoke-Stratos, Sky-T1": Layout(
        "sharegpt",
        {
            "system": "Think.",
            "conversations": said(("user", "1+1?"), ("assistant", TAGGED), role="from", text="value"),
        },
        "Think.\n1+1?",
        TAGGED_STEPS,
        TAGGED_ANSWER,
    ),
    "OpenThoughts2, OpenThoughts3": Layout(
        "sharegpt",
        {
            "conversations": said(("human", "1+1?"), ("gpt", THOUGHT), role="from", text="value"),
            "source": "math",
            "difficulty": 3,
        },
        "1+1?",
        THOUGHT_STEPS,
        SUM,
    ),
    "OpenThoughts-114k, metadata": Layout(
        "thinking",
        {
            "problem": "1+1?",
            "deepseek_reasoning": "One and one.\n\nThat is 2.",
            "deepseek_solution": SUM,
            "ground_truth_solution": "2",
            "domain": "math",
        },
        "1+1?",
        THOUGHT_STEPS,
        SUM,
    ),
    "OpenR1-Math-220k": Layout(
        "openr1", examples.OPENR1, "1+1?", ["<think>\nwrong\n</think>\n\n"], "3", "--expand generations", num_traces=2
    ),
    "GSM8K": Layout("gsm8k", examples.GSM8K, "How many?", ["a = <<1+1=2>>2\n", "b = <<2+1=3>>3\n"], "#### 3"),
    "PRM800K": Layout("prm800k", examples.PRM800K, "Solve.", ["good\n", "by hand\n", "So x = 5.\n\n"], "# Answer\n\n5"),
    "ProcessBench": Layout(
        "processbench",
        examples.PROCESSBENCH,
        "How many?",
        ["Two and two is five.\n", "So there are "],
        "\\(\\boxed{5}\\) of them.",
    ),
    "PRMBench": Layout(
        "prmbench", examples.PRMBENCH, "How many, if any?", ["Two and two is five.\n", "So there are "], "5."
    ),
    "explicit": Layout("explicit", examples.EXPLICIT, "Why?", ["one\n", "two\nlines\n", "three\n"], "four"),
    "s1K": Layout(
        "thinking",
        examples.S1K,
        "1+1?",
        ["<think>\nFirst, one.\n\n", "Then two.\n</think>\n\n"],
        "The sum is \\boxed{2}.",
    ),
    "s1K-1.1": Layout(
        "thinking",
        {
            "question": "1+1?",
            "solution": "2",
            "gemini_thinking_trajectory": "Hm.\n\nWell.",
            "gemini_attempt": "2",
            "deepseek_thinking_trajectory": "One and one.\n\nThat is 2.",
            "deepseek_attempt": SUM,
            "deepseek_grade": "Yes",
        },
        "1+1?",
        THOUGHT_STEPS,
        SUM,
    ),
    "medical-o1-reasoning-SFT": Layout(
        "thinking",
        {"Question": "1+1?", "Complex_CoT": "One and one.\n\nThat is 2.", "Response": SUM},
        "1+1?",
        THOUGHT_STEPS,
        SUM,
    ),
    "TRL, texts": Layout("pair", {"prompt": "1+1?", "completion": WORKED}, "1+1?", WORKED_STEPS, SUM),
    "TRL, conversations": Layout("pair", examples.TRL, "Be brief.\n1+1?", ["One.\n", "One more.\n"], "Answer: 2"),
    "verl, generated": Layout(
        "pair",
        examples.VERL,
        "1+1?",
        ["One.\n\n", "And one.\n\n"],
        "So \\boxed{2}.",
        "--expand responses",
        num_traces=2,
    ),
    "LIMO": Layout("pair", examples.LIMO, "1+1?", ["Take one.\n\n", "Add one.\n\n"], "**Final Answer**\n\\boxed{2}"),
    "MATH": Layout(
        "pair",
        {"problem": "1+1?", "level": "Level 1", "type": "Sums", "solution": WORKED},
        "1+1?",
        WORKED_STEPS,
        SUM,
    ),
    "NuminaMath-1.5": Layout(
        "pair",
        {"problem": "1+1?", "solution": WORKED, "answer": "2", "problem_type": "Algebra", "source": "olympiads"},
        "1+1?",
        WORKED_STEPS,
        SUM,
    ),
    "OpenMathReasoning, OpenMathInstruct": Layout(
        "pair",
        {"problem": "1+1?", "generated_solution": THOUGHT, "expected_answer": "2", "generation_model": "a model"},
        "1+1?",
        THOUGHT_STEPS,
        SUM,
    ),
    "Llama-Nemotron-Post-Training": Layout(
        "pair",
        examples.NEMOTRON,
        "detailed thinking on\n1+1?",
        ["<think>\nOne.\n\n", "Two.\n</think>\n\n"],
        "It is 2.",
    ),
    "AceReason-1.1-SFT": Layout(
        "pair", {"category": "math", "source": "s", "input": "1+1?", "output": THOUGHT}, "1+1?", THOUGHT_STEPS, SUM
    ),
    "MetaMathQA": Layout(
        "pair",
        {
            "query": "1+1?",
            "original_question": "1+1?",
            "type": "GSM_AnsAug",
            "response": "One.\nTwo.\nThe answer is: 2",
        },
        "1+1?",
        ["One.\n", "Two.\n"],
        "The answer is: 2",
    ),
    "OpenOrca": Layout(
        "pair",
        {"id": "cot.1", "system_prompt": "Be brief.", "question": "1+1?", "response": WORKED},
        "Be brief.\n1+1?",
        WORKED_STEPS,
        SUM,
    ),
    "AQuA-RAT": Layout(
        "mapped",
        {"question": "1+1?", "options": ["A)2", "B)3"], "rationale": "One and one.\nThat is 2.", "correct": "A"},
        "1+1?\nA)2\nB)3",
        ["One and one.\n", "That is 2.\n"],
        "A",
        "--map prompt=question --map options=options --map response=rationale --map answer=correct",
    ),
    "Dolphin-R1": Layout(
        "mapped",
        {
            "messages": said(("system", "Be brief."), ("user", "1+1?")),
            "reasoning": "One and one.\n\nThat is 2.",
            "answer": SUM,
            "model": "a model",
        },
        "Be brief.\n1+1?",
        THOUGHT_STEPS,
        SUM,
        "--map prompt=messages --map thinking=reasoning --map response=answer",
    ),
    "DeepMath-103K": Layout(
        "mapped",
        {
            "question": "1+1?",
            "final_answer": "2",
            "difficulty": 1.0,
            "r1_solution_1": THOUGHT,
            "r1_solution_2": "b",
            "r1_solution_3": "c",
        },
        "1+1?",
        THOUGHT_STEPS,
        SUM,
        "--map prompt=question --map response=r1_solution_1",
    ),
    "samples in a list of your own": Layout(
        "mapped",
        {"task": "1+1?", "tries": [WORKED, "No.\n\nSo \\boxed{3}."], "is_correct": [True, False]},
        "1+1?",
        WORKED_STEPS,
        SUM,
        "--map prompt=task --map response=tries --expand tries",
        num_traces=2,
    ),
}
