"""The study of real traces: its settings, and all of it in miniature with a random model."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from grace_store.base.documents import read_document
from grace_store.base.errors import ResumeMismatch
from grace_store.scoring.weight_table import read_weights
from grace_store.study.trial_documents import TrialRun
from jobs.study.corruptions import CLEAN, CORRUPTIONS, usable
from jobs.study.real_pool import CHOICES, short_records, write_data
from jobs.study.real_training import SETTINGS, Settings, curation_of, kept_weights, run
from jobs.study.training import Study, read_settings
from jobs.study.tuning import read_records
from tests.tiny_models import tiny_text_model

KEPT = Path(__file__).parent.parent / "jobs" / "study" / "results" / "real-training"
NUM_PROBLEMS = 4
SMALL = {
    "seed": 3,
    "data": {"num_problems": NUM_PROBLEMS, "most_characters": 400, "num_targets": 2, "num_heldout": 8},
    "warmup": {"ratio": "0.2", "num_epochs": 1, "batch_size": 2, "learning_rate": 1e-3},
    "subsets": {"ratio": "0.2", "dimension": 16, "methods": list(CHOICES)},
    "trial": {
        "num_updates": 8,
        "batch_size": 2,
        "learning_rate": 1e-2,
        "num_seeds": 1,
        "num_random": 2,
        "dtype": "float32",
    },
}


def problem(number: int) -> dict[str, str]:
    steps = [
        f"He has {number}+{i} = <<{number}+{i}={number + i}>>{number + i} apples." for i in range(1, 4 + number % 3)
    ]
    return {
        "question": f"Tom has {number} apples and gets more. How many are that?",
        "answer": "\n".join([*steps, f"#### {number + len(steps)}"]),
    }


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study[Settings]:
    home = tmp_path_factory.mktemp("real")
    (home / "gsm8k").mkdir()
    for name, numbers in (("train", range(10, 40)), ("test", range(50, 64))):
        lines = [json.dumps(problem(number)) for number in numbers]
        (home / "gsm8k" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    tiny_text_model("llama", home / "model", num_hidden_layers=1)
    study = Study(Settings.model_validate(SMALL), home, home / "out", home / "model", 1)
    run(study)
    return study


def test_the_settings_are_those_that_were_fixed() -> None:
    settings = read_settings(SETTINGS, Settings)
    assert set(settings.subsets.methods) == set(CHOICES)
    assert settings.trial.num_seeds >= 3
    assert settings.subsets.ratio == "0.2"


def test_what_is_kept_can_be_read(repository: Path) -> None:
    kept = repository / "jobs/study/results/real-training"
    runs = [read_document(path, TrialRun) for path in (kept / "trial" / "runs").glob("*.json")]
    assert len({run.plan_sha256 for run in runs}) == 1
    assert len(read_weights(kept / "subsets" / "weights.parquet")) == 1000


def test_only_short_problems_that_can_be_spoilt_are_taken(study: Study[Settings]) -> None:
    path = study.data / "gsm8k" / "train.jsonl"
    whole = list(short_records(path, 400))
    assert len(whole) == 30
    assert all(usable(record) for _, record in whole)
    assert not list(short_records(path, 100))


def test_pool_targets_and_held_out_part_share_no_problem(study: Study[Settings]) -> None:
    pool = read_records(study.work / "pool.jsonl")
    assert len(pool) == NUM_PROBLEMS * (1 + len(CORRUPTIONS))
    questions = {record["question"] for record in pool}
    assert len(questions) == NUM_PROBLEMS
    targets = [each for path in (study.work / "targets").glob("*.jsonl") for each in read_records(path)]
    assert len(targets) == 6
    held_out = read_records(study.work / "heldout.jsonl")
    assert not questions & {each["question"] for each in (*targets, *held_out)}


def test_every_subset_is_tried_against_random_ones(study: Study[Settings]) -> None:
    tables = (study.out / "tables.md").read_text()
    for choice in CHOICES.values():
        assert tables.count(f"| {choice.label} |") == (2 if choice.label == "GRACE" else 3)
    ids = {method: study.ids(method).read_text().split() for method in CHOICES}
    assert {len(each) for each in ids.values()} == {NUM_PROBLEMS}
    assert ids["grace-weights"] == ids["grace"]
    assert len({each.partition("-")[0] for each in ids["grace-questions"]}) == NUM_PROBLEMS
    assert {f"{CLEAN}"} | set(CORRUPTIONS) >= {each.partition("-")[2] for each in ids["less"]}
    runs = list((study.out / "trial" / "runs").glob("*.json"))
    assert len(runs) == len(CHOICES) + 2


def test_what_is_kept_is_enough_to_go_on_from(study: Study[Settings], tmp_path: Path) -> None:
    """In another place, without anything that can be made again: the same tables, nothing trained or chosen again."""
    elsewhere = replace(study, out=tmp_path / "elsewhere")
    for name in ("settings.json", "subsets", "trial/runs"):
        source, copy = study.out / name, elsewhere.out / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy2(source, copy)
    runs = elsewhere.out / "trial" / "runs"
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*.json")}
    run(elsewhere)
    assert (elsewhere.out / "tables.md").read_bytes() == (study.out / "tables.md").read_bytes()
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*.json")} == before
    assert not (elsewhere.work / "warmup").exists()


def test_weights_of_another_pool_are_refused(study: Study[Settings], tmp_path: Path) -> None:
    other = replace(study, out=tmp_path)
    problems = [json.dumps(problem(number)) for number in range(70, 100)]
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "train.jsonl").write_text("\n".join(problems) + "\n")
    shutil.copy(study.data / "gsm8k" / "test.jsonl", tmp_path / "gsm8k")
    write_data(tmp_path, other.work, study.settings.data, study.settings.seed)
    curation_of(other).plan()
    with pytest.raises(ResumeMismatch, match="the weights of another pool"):
        curation_of(other).adopt(kept_weights(study))


def test_kept_trainings_are_those_that_their_names_say_and_the_tables_are_made_of() -> None:
    """Each is bound to its training, undamaged, and the losses in the tables are their means."""
    settings = read_settings(SETTINGS, Settings)
    methods = sorted(settings.subsets.methods, key=lambda method: CHOICES[method].has_weights)
    names = [f"{each}.txt" + " with weights.parquet" * CHOICES[each].has_weights for each in methods]
    arms = {f"subset-{number}": name for number, name in enumerate(names, start=1)}
    arms |= {f"random-1-{number}": f"random {number}" for number in range(1, settings.trial.num_random + 1)}
    losses: dict[str, list[float]] = {}
    for path in sorted((KEPT / "trial" / "runs").glob("*.json")):
        found = read_document(path, TrialRun)
        round, _, key = path.stem.partition("-")
        expected = (arms[key], int(round), settings.seed + int(round) - 1, found.content_sha256())
        assert (found.arm, found.round, found.seed, found.sha256) == expected
        losses.setdefault(key, []).append(found.heldout_loss)
    assert losses.keys() == arms.keys()
    table = (KEPT / "tables.md").read_text()
    for number, method in enumerate(methods, start=1):
        mine = losses[f"subset-{number}"]
        assert re.search(rf"\| {CHOICES[method].label} \| {sum(mine) / len(mine):.4f} \|.*\| {len(mine)} \|", table)


def test_other_settings_are_refused(study: Study[Settings]) -> None:
    other = study.settings.model_copy(update={"seed": 4})
    with pytest.raises(ResumeMismatch, match="never mixed"):
        run(Study(other, study.data, study.out, study.model, 1))
