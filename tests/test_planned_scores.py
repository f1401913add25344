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


def test_a_choice_of_a_plan_is_compared_without_tokens_and_ties_are_named(store: Path, tmp_path: Path) -> None:
    for name, more in (("a", ()), ("b", ("--where", "row > 5"))):
        run("score", store, "--measure", "steps", *more, "--out", tmp_path / f"{name}.parquet")
    found = run_json("select", tmp_path / "a.parquet", "--ratio", "0.2", "--out", tmp_path / "a.jsonl")
    assert (found["num_samples"], found["num_tied"], found["threshold"], found["smallest_value"]) == (5, 4, None, 4.0)
    text = run("select", tmp_path / "a.parquet", "--ratio", "0.2", "--out", tmp_path / "a.jsonl").stdout
    assert "5 of 24 samples, smallest value kept 4.0000." in text
    compared = run_json("compare", tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert "nan" not in json.dumps(compared).lower()
    assert compared["tables"]["entered"]["title"].endswith(" entered")
    (why,) = {each["why"] for each in compared["tables"]["entered"]["rows"]}
    assert why == "a tie, in which earlier records come first (of 9 samples in A and 6 in B)"
    assert "a tie, in which earlier records come first (" in compared["conclusion"]


@pytest.mark.parametrize("as_format", ["trl-pairs", "llama-factory-pairs", "ms-swift-pairs"])
def test_pairs_of_a_plan_need_no_signal(store: Path, tmp_path: Path, as_format: str) -> None:
    run("score", store, "--measure", "steps", "--out", tmp_path / "s.parquet")
    words = ("--as", as_format, "--right", "row % 2 = 0", "--out", tmp_path / "pairs.jsonl")
    assert run_json("select", tmp_path / "s.parquet", *words)["num_samples"] == NUM // 2
    assert len((tmp_path / "pairs.jsonl").read_text().splitlines()) == NUM // 2
    run("select", tmp_path / "s.parquet", "--as", "ms-swift", "--out", tmp_path / "train.jsonl")


def test_inspect_shows_the_value_that_a_plan_knows_or_what_is_missing(store: Path, tmp_path: Path) -> None:
    for measure in ("steps:highest", "characters:lowest", "random"):
        run("score", store, "--measure", measure, "--out", tmp_path / "s.parquet")
        value = gs.read_scores(tmp_path / "s.parquet").value[7]
        assert run_json("inspect", store, "#7", "--measure", measure)["value"] == value
        assert f"value {value:.4f} by {measure}" in run("inspect", store, "#7", "--measure", measure).stdout
    assert "value" not in run_json("inspect", store, "#7")
    told = " ".join(run("inspect", store, "#7", "--measure", "loss", code=1).stderr.split())
    assert "has no signal yet, and loss:lowest needs one" in told


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
