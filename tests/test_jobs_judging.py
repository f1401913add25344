"""The study of labelled steps: which records it takes, and all of it in miniature with a random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grace_store.base.documents import read_document
from grace_store.base.errors import DataError
from grace_store.base.finding import Finding
from jobs.study.judging import BENCHMARKS, ORIGINAL, main, page, prmbench_records
from tests.tiny_models import tiny_text_model

NUM_QUESTIONS = 8


def spoilt(number: int, kind: str) -> dict[str, Any]:
    original = [f"Tom has {number} apples.", f"He buys {number % 3} more.", "So he has 7."]
    modified = [original[0], f"He eats {kind} apples.", original[2]]
    question = f"How many apples does Tom have in case {number}?"
    return {
        "original_question": f"{question} ({kind})",
        "modified_question": question,
        "original_process": original,
        "modified_process": modified,
        "error_steps": [2],
        "idx": f"p{number}",
        "classification": kind,
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like the one that the benchmarks are in."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("processbench", "prmbench", "gsm8k"):
        (folder / name).mkdir()
    solutions = [
        {
            "id": f"gsm8k-{number}",
            "problem": f"How many of {number}?",
            "steps": [f"Add {number}.", f"We get {number + 1}.", f"So it is \\boxed{{{number}}}."],
            "label": number % 4 - 1,
        }
        for number in range(24)
    ]
    (folder / "processbench" / "gsm8k.json").write_text(json.dumps(solutions))
    for kind in ("deception", "redundency"):
        lines = [json.dumps(spoilt(number, kind)) for number in range(NUM_QUESTIONS + (kind == "deception"))]
        (folder / "prmbench" / f"{kind}.jsonl").write_text("\n".join(lines) + "\n")
    problem = {"question": "How many?", "answer": "3 and 4 is 7.\nHe has 7.\n#### 7"}
    (folder / "gsm8k" / "train.jsonl").write_text((json.dumps(problem) + "\n") * 12)
    return folder


def test_of_prmbench_whole_questions_are_taken_with_their_originals(data: Path) -> None:
    records = prmbench_records(data / "prmbench", 3, seed=0)
    assert [each["classification"] for each in records[:3]] == [ORIGINAL, "deception", "redundency"]
    assert len(records) == 9
    original = records[0]
    assert (original["modified_process"], original["error_steps"]) == (original["original_process"], [])
    assert len(prmbench_records(data / "prmbench", 99, seed=0)) == 3 * NUM_QUESTIONS  # p8 lacks a kind
    with pytest.raises(DataError, match=r"has no \.jsonl file"):
        prmbench_records(data / "gsm8k" / "none", 1, seed=0)


def test_the_whole_of_it_runs_and_says_what_it_found(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "model", tmp_path / "judge"
    tiny_text_model("llama", model)
    arguments = [str(data), "--out", str(out), "--model", str(model), "--questions", "8", "--warmup-ratio", "0.5"]
    assert main([*arguments, "--threads", "1"]) == 0
    told = capsys.readouterr().out
    assert told == (out / "judging.md").read_text()
    for words in (
        "ProcessBench: steps",
        "Steps by kind of error",
        "grace of warm",
        "loss:lowest of base",
        "Too few",
    ):
        assert words in told
    found = read_document(out / "prmbench.json", Finding)
    assert set(found.pool.signals) == {"base", "warm"}
    assert found.settings["labels"]["question"] == "idx"  # each kind writes the question in its own way
    assert found.numbers["num_wrong_steps"] == 2 * NUM_QUESTIONS
    assert found.numbers["num_questions"] == NUM_QUESTIONS
    assert set(found.tables["steps_by_kind"].columns) == {"measure", "deception", "redundency"}
    assert found.tables["steps"].rows[0]["same_question"].num > 0


def test_the_tables_that_are_kept_follow_from_the_judgements_that_are_kept(repository: Path) -> None:
    results = repository / "jobs/study/results/judge"
    found = {name: read_document(results / f"{name.lower()}.json", Finding) for name in BENCHMARKS}
    assert page(found) == (results / "judging.md").read_text(encoding="utf-8")
