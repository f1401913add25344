"""The study of ways of choosing: its settings, and all of it in miniature with a random model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from jobs.study.choosing import ARMS, CONTROL, SETTINGS, TEACHER, Settings, power_table, run
from jobs.study.corruptions import CLEAN, CORRUPTIONS
from jobs.study.real_pool import short_records
from jobs.study.training import Study, read_settings
from jobs.study.tuning import read_records
from tests.test_jobs_real_training import problem
from tests.tiny_models import tiny_text_model

NUM_PROBLEMS, NUM_TEACHING = 4, 21
SMALL = {
    "seed": 3,
    "data": {
        "num_problems": NUM_PROBLEMS,
        "num_teaching": NUM_TEACHING,
        "most_characters": 400,
        "num_heldout": 8,
        "other_than": 5,
    },
    "trial": {
        "num_updates": 8,
        "batch_size": 2,
        "learning_rate": 1e-2,
        "num_seeds": 1,
        "num_random": 2,
        "dtype": "float32",
        "max_new_tokens": 2,
    },
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study[Settings]:
    home = tmp_path_factory.mktemp("choosing")
    (home / "gsm8k").mkdir()
    for name, numbers in (("train", range(10, 60)), ("test", range(70, 84))):
        lines = [json.dumps(problem(number)) for number in numbers]
        (home / "gsm8k" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    tiny_text_model("llama", home / "model", num_hidden_layers=1)
    study = Study(Settings.model_validate(SMALL), home, home / "out", home / "model", 1)
    run(study)
    return study


def test_the_problems_are_none_of_the_earlier_study(study: Study[Settings]) -> None:
    earlier = list(short_records(study.data / "gsm8k" / "train.jsonl", 400))
    Random(5).shuffle(earlier)
    known = {str(row) for row, _ in earlier[:NUM_PROBLEMS]}
    pool = read_records(study.work / "pool.jsonl")
    assert len(pool) == (NUM_PROBLEMS + NUM_TEACHING) * (1 + len(CORRUPTIONS))
    assert not known & {record["id"].partition("-")[0] for record in pool}
    labelled = {line.partition(",")[0] for line in (study.work / "labels.csv").read_text().splitlines()[1:]}
    assert labelled == {record["id"] for record in pool if record["role"] == TEACHER}


def test_every_arm_takes_one_trace_of_each_problem_to_choose_from(study: Study[Settings]) -> None:
    teaching = {each["id"] for each in read_records(study.work / "pool.jsonl") if each["role"] == TEACHER}
    for arm in ARMS:
        ids = study.ids(arm).read_text().split()
        assert len(ids) == len({each.partition("-")[0] for each in ids}) == NUM_PROBLEMS
        assert not teaching & set(ids)
    assert {each.partition("-")[2] for each in study.ids(CONTROL).read_text().split()} == {CLEAN}


def test_the_tables_have_every_arm_and_can_be_made_again_from_what_is_kept(
    study: Study[Settings], tmp_path: Path
) -> None:
    tables = (study.out / "tables.md").read_text()
    for arm in ARMS.values():
        assert tables.count(f"| {arm.label} |") == 2
    elsewhere = replace(study, out=tmp_path / "elsewhere")
    for name in ("settings.json", "subsets", "any/trial.json", "unflagged/trial.json"):
        source, copy = study.out / name, elsewhere.out / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy2(source, copy)
    run(elsewhere)
    assert (elsewhere.out / "tables.md").read_text() == tables
    assert not elsewhere.store.exists()


def test_the_settings_are_those_that_were_fixed() -> None:
    settings = read_settings(SETTINGS, Settings)
    assert (settings.data.num_problems, settings.data.num_teaching, settings.data.other_than) == (200, 50, 20261)
    assert (settings.trial.num_seeds, settings.trial.num_random) == (1, 13)
    assert settings.seed != settings.data.other_than
    half_widths = [float(row[2]) for row in power_table(settings).rows]
    assert all(0.005 < each < 0.015 for each in half_widths)
