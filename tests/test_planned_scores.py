"""A store that is only planned: what needs no model is scored, chosen, audited and compared."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

import grace_store as gs
from grace_store.choose.select import read_subset, replay_subset
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
    assert "The measures steps, characters, random need none." in " ".join(told.split())


def test_exact_copies_are_dropped_without_a_signal(store: Path, tmp_path: Path) -> None:
    """Half of the records are copies of others under other ids."""
    rng = random.Random(0)
    records = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    records = [{**each, "id": f"{name}{i}"} for name in "ab" for i, each in enumerate(records)]
    rng.shuffle(records)
    (tmp_path / "twice.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    run("plan", tmp_path / "t.zarr", tmp_path / "twice.jsonl", "--min-steps", 1)
    run("score", tmp_path / "t.zarr", "--measure", "random", "--out", tmp_path / "t.parquet")
    table = gs.read_scores(tmp_path / "t.parquet")
    best: dict[str, int] = {}
    for place in np.argsort(-table.value).tolist():
        best.setdefault(records[table.row[place]]["answer"], int(table.row[place]))
    words = ("select", tmp_path / "t.parquet", "--diversity", "dedup", "--ratio", 0.5, "--out", tmp_path / "s.jsonl")
    run(*words)
    subset = read_subset(tmp_path / "s.jsonl")
    assert set(subset.row.tolist()) == set(best.values())
    assert len(replay_subset(subset).rank().take()) == NUM  # the same samples, or this raises
    for more in (("--similarity", 0.9), ("--descriptor", "steps")):
        told = " ".join(run(*words, *more, code=1).stderr.split())
        assert "come from the plan alone, and this needs a signal" in told
    words = ("duplicates", tmp_path / "t.zarr", "--scores", tmp_path / "t.parquet", "--out", tmp_path / "d.parquet")
    assert "come from the plan alone, and this needs a signal" in " ".join(run(*words, code=1).stderr.split())
