"""The table of planted flaws: on a few traces, as it is made on all of GSM8K."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grace_store.base.states import TEXT_FLAGS, TEXT_SHIFT, flag_names
from grace_store.data.hygiene import text_flags
from grace_store.data.sample import Sample
from jobs.hygiene import FLAWS, GSM8K, main, read_samples, try_flaws, written_samples


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    records = [
        {
            "question": f"Anna has {n} boxes with {n + 40} red pens in each of them. She loses 5 pens on her way to "
            "the school. How many pens does she still have when she gets there?",
            "answer": f"In her boxes Anna has {n} * {n + 40} = <<{n}*{n + 40}={n * (n + 40)}>>{n * (n + 40)} pens.\n"
            "On the way to her school she loses 5 of these pens.\n"
            f"When she gets there she still has {n * (n + 40)} - 5 = {n * (n + 40) - 5} pens.\n#### {n * (n + 40) - 5}",
        }
        for n in range(11, 41)
    ]
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def test_planted_flaws_are_found_and_nothing_else(gsm8k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {flag for flag, _ in FLAWS.values()} == set(TEXT_FLAGS)
    found = try_flaws(list(read_samples(gsm8k, GSM8K)))
    assert {each.num_untouched_flagged for each in found.values()} == {0}
    low = {"the last step is cut off": 0.5, "the response is cut off": 0.2}
    assert {name: each.recall for name, each in found.items() if each.recall < low.get(name, 0.95)} == {}
    main([str(gsm8k), "--share", "0.5"])
    printed = capsys.readouterr().out
    assert "| one step, twelve times | `repeated_steps` |" in printed
    assert "| the steps reach the answer | 56 | 0 |\n| the steps reach another answer | 22 | 22 |" in printed


WRITTEN = written_samples()


@pytest.mark.parametrize(("record", "sample"), WRITTEN, ids=[record["kind"] for record, _ in WRITTEN])
def test_answers_that_the_steps_reach_are_known_in_many_forms(record: dict[str, Any], sample: Sample) -> None:
    wanted = ["unsupported_answer"] if record["is_flawed"] else []
    assert flag_names(text_flags(sample) << TEXT_SHIFT) == wanted
