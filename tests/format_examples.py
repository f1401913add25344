"""A record of every format."""

from __future__ import annotations

from typing import Any

MMATHCOT = {
    "image_url": "images/1.png",
    "instruction": "How many?",
    "output": "Look.\nStep 1: a\n\n**Step 2:** b, as in Step 1: a\nStep 3: c\n†Answer: 7",
}
MESSAGES = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<image>What is it?"},
        {"role": "assistant", "content": "First a.\n\nThen b.\n\nSo \\boxed{c}."},
    ],
    "images": ["a.png"],
}
ALPACA = {"instruction": "Add.", "input": "1 and 2", "output": "One.\nTwo.\nAnswer: 3"}
LLAVA_COT = {
    "id": "sqa/1",
    "image": "sqa/1.png",
    "conversations": [
        {"from": "human", "value": "Which?"},
        {
            "from": "gpt",
            "value": "<SUMMARY> s </SUMMARY>\n\n<CAPTION> c </CAPTION>\n\n<REASONING> r1\n\nr2 </REASONING>\n\n"
            "<CONCLUSION> B </CONCLUSION>",
        },
    ],
}
OPENR1 = {
    "problem": "1+1?",
    "solution": "2",
    "answer": "2",
    "uuid": "u-1",
    "generations": ["<think>\nwrong\n</think>\n\n3", "<think>\nOne.\n\nTwo.\n</think>\n\nIt is $2$."],
    "correctness_math_verify": [False, True],
}
GSM8K = {"question": "How many?", "answer": "a = <<1+1=2>>2\nb = <<2+1=3>>3\n#### 3"}
PRM800K = {
    "question": {"problem": "Solve.", "ground_truth_answer": "5"},
    "label": {
        "steps": [
            {"completions": [{"text": "bad"}, {"text": "good"}], "chosen_completion": 1, "human_completion": None},
            {"completions": [], "chosen_completion": None, "human_completion": {"text": "by hand"}},
            {"completions": [{"text": "So x = 5.\n\n# Answer\n\n5"}], "chosen_completion": 0},
        ],
        "finish_reason": "solution",
    },
}
PROCESSBENCH = {
    "id": "gsm8k-0",
    "generator": "a model",
    "problem": "How many?",
    "steps": ["Two and two is five.", "So there are \\(\\boxed{5}\\) of them."],
    "final_answer_correct": False,
    "label": 0,
}
PRMBENCH = {
    "original_question": "How many?",
    "modified_question": "How many, if any?",
    "question": "How many?",
    "original_process": ["Two and two is four.", "So there are 4."],
    "modified_process": ["Two and two is five.", "So there are 5."],
    "modified_steps": [1, 2],
    "error_steps": [1],
    "reason": "It is four.",
    "idx": "p_0",
    "classification": "counterfactual",
}
EXPLICIT = {"id": 12, "prompt": "Why?", "steps": ["one", "two\nlines", "three"], "answer": "four"}

TRL = {
    "id": "t-1",
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}],
    "completion": [{"role": "assistant", "content": "One.\nOne more.\nAnswer: 2"}],
}
VERL = {
    "data_source": "math",
    "prompt": [{"role": "user", "content": "1+1?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 3},
    "responses": ["One.\n\nAnd one.\n\nSo \\boxed{2}.", "No.\n\nIt is\n\n\\boxed{3}."],
}
NEMOTRON = {
    "input": [{"role": "user", "content": "1+1?"}],
    "output": "<think>\nOne.\n\nTwo.\n</think>\n\nIt is 2.",
    "category": "math",
    "reasoning": "on",
    "system_prompt": "detailed thinking on",
}
S1K = {
    "question": "1+1?",
    "solution": "2",
    "cot_type": "math",
    "thinking_trajectories": ["First, one.\n\nThen two."],
    "attempt": "The sum is \\boxed{2}.",
}
LIMO = {"question": "1+1?", "solution": "Take one.\n\nAdd one.\n\n**Final Answer**\n\\boxed{2}", "answer": "2"}

EXAMPLES: dict[str, dict[str, Any]] = {
    "mmathcot": MMATHCOT,
    "messages": MESSAGES,
    "alpaca": ALPACA,
    "sharegpt": LLAVA_COT,
    "openr1": OPENR1,
    "gsm8k": GSM8K,
    "prm800k": PRM800K,
    "processbench": PROCESSBENCH,
    "prmbench": PRMBENCH,
    "explicit": EXPLICIT,
    "thinking": S1K,
    "pair": TRL,
}
