"""A store that is only planned: what needs no model is scored, chosen, audited and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import grace_store as gs
from tests.commands import run, run_json

NUM = 24


@pytest.fixture
def store(tmp_path: Path) -> Path:
    records = []
    for i in range(NUM):
        steps = [f"Add {k} to {i + k}, which makes {i + 2 * k}." for k in range(1, 3 + i % 3)]
        if i == 4:
            steps.append(steps[0])  # a repeated step, which is a flag
        answer = "\n".join([*steps, f"#### {i + 2 * (len(steps))}"])
        records.append(json.dumps({"question": f"Question {i // 2}?", "answer": answer}))
    (tmp_path / "data.jsonl").write_text("\n".join(records) + "\n")
    run("plan", tmp_path / "s.zarr", tmp_path / "data.jsonl", "--min-steps", 1)
    return tmp_path / "s.zarr"


@pytest.mark.parametrize("measure", ["random", "steps:highest", "characters:highest"])
def test_what_a_plan_knows_is_scored_and_chosen_by(store: Path, tmp_path: Path, measure: str) -> None:
    table = tmp_path / "scores.parquet"
    found = run_json("score", store, "--measure", measure, "--out", table)
    assert (found["num_with_value"], found["signals"]) == (NUM, {})
    scores = gs.read_scores(table)
    assert scores.method == measure
    assert scores.table["num_tokens"].null_count == NUM
    assert "cut_off" in scores.known_flags
    run("select", table, "--ratio", "0.5", "--exclude-flagged", "--out", tmp_path / "subset.jsonl")
    run("audit", table)
    run("select", table, "--ratio", "0.25", "--out", tmp_path / "other.jsonl")
    run("compare", tmp_path / "subset.jsonl", tmp_path / "other.jsonl")
    run("score", "--replay", table, "--out", tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == table.read_bytes()


@pytest.mark.parametrize("measure", ["tokens", "loss", "grace"])
def test_what_needs_a_model_is_refused(store: Path, tmp_path: Path, measure: str) -> None:
    told = run("score", store, "--measure", measure, "--out", tmp_path / "x.parquet", code=1).stderr
    assert "has no signal yet" in told
