"""grace-store score --method less, icons and cadc, as users type them."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from grace_store.cli import main
from grace_store.scoring.score_table import read_scores
from tests.gradient_stores import (
    add_gradients,
    plan_store,
    record,
)
from tests.influence_stores import (
    NUM_POOL,
    cadc_scores,
    influence_stores,
    make_pool,
    random_gradients,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return influence_stores(tmp_path_factory.mktemp("influence"))


@pytest.fixture(scope="module")
def cadc_table(tmp_path_factory):
    return cadc_scores(tmp_path_factory.mktemp("cadc"))


def run(*arguments: object, exit_code: int = 0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + result.stderr
    return result


def test_subtasks_of_one_sample_each_are_said_and_shown_on_one_line(tmp_path):
    pool = make_pool(tmp_path)
    records = [record(f"t{i}", f"line one\nof subject {i} " + "x" * 200) for i in range(14)]
    targets = plan_store(tmp_path, "targets", {"all.jsonl": records}, samples_per_unit=8)
    add_gradients(pool, "ck1", random_gradients(0, NUM_POOL))
    add_gradients(targets, "ck1", random_gradients(1, 14))
    result = run(
        "score",
        pool.location,
        "--method",
        "less",
        "--targets",
        targets.location,
        "--subtasks",
        "about.subject",
        "--out",
        tmp_path / "t.parquet",
    )
    assert "every target sample is a subtask of its own, by 'about.subject'" in result.stderr
    line = next(line for line in result.stdout.splitlines() if "subtasks:" in line)
    assert line.startswith("  subtasks: line one of subject 0 xxx")
    assert line.endswith("... (1) and 4 more")


def test_the_commands(tmp_path, cadc_table):
    note = read_scores(cadc_table).note
    pool, targets = note.store, note.targets.store
    out = tmp_path / "less.parquet"
    result = run(
        "score",
        pool,
        "--method",
        "less",
        "--targets",
        targets,
        "--signal",
        "ck1=3e-5",
        "--signal",
        "ck2=1e-5",
        "--out",
        out,
    )
    assert "checkpoints: ck1 0.75, ck2 0.25 (weights as given)" in result.output
    assert "subtasks: algebra (5), counting (2), geometry (9)" in result.output
    assert pq.read_schema(out).names[-1] == "influence"
    result = run(
        "score",
        pool,
        "--method",
        "cadc",
        "--targets",
        targets,
        "--signal",
        "ck1",
        "--signal",
        "ck2",
        "--join-cosine",
        "-1",
        "--out",
        tmp_path / "cadc.parquet",
    )
    assert "method: cadc (reconstruction)" in result.output
    assert "capability 0: algebra, counting, geometry" in result.output
    assert "joined from -1 on" in result.output
    icons = json.loads(
        run(
            "score",
            pool,
            "--method",
            "icons",
            "--targets",
            targets,
            "--signal",
            "ck1",
            "--vote-percent",
            "30",
            "--subtasks",
            "about.subject",
            "--out",
            tmp_path / "icons.parquet",
            "--json",
        ).stdout
    )
    assert icons["spec"]["vote_percent"] == 30
    assert icons["weights_from"] == "equal"
    run("score", "--replay", tmp_path / "icons.parquet", "--out", tmp_path / "again.parquet", "--targets", targets)
    assert (tmp_path / "icons.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()
    for name in ("less", "icons", "cadc"):
        table = tmp_path / f"{name}.parquet"
        result = run("select", table, "--ratio", "0.2", "--out", tmp_path / f"{name}.jsonl")
        assert ("smallest value kept" in result.output) is (name == "cadc")
        note = json.loads((tmp_path / f"{name}.jsonl.spec.json").read_text())
        assert ("threshold" not in note) is (name == "cadc")
        assert len((tmp_path / f"{name}.jsonl").read_text().splitlines()) == 8
        assert ("the scores are by cadc (reconstruction)" in result.output) is (name == "cadc")
        run("audit", table)
    run("select", tmp_path / "cadc.parquet", "--as", "ms-swift", "--out", tmp_path / "swift.jsonl")
    run("score", pool, "--measure", "tokens", "--signal", "ck1", "--out", tmp_path / "longest.parquet")
    run("audit", tmp_path / "longest.parquet")
    result = run("compare", tmp_path / "less.jsonl", tmp_path / "cadc.jsonl")
    assert "cadc.jsonl was scored by cadc (reconstruction)" in result.output


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("--method less", "give the store of the target set with --targets"),
        ("--method less --targets {t} --alpha 0.5", "--method less does not use --alpha"),
        ("--measure tokens --vote-percent 5", "a score by measures does not use --vote-percent"),
        ("--join-cosine 0.3", "a score by measures does not use --join-cosine"),
        ("--method less --subtasks x", "--subtasks needs --targets"),
        ("--measure tokens --targets {t}", "only methods less, icons, cadc use a target set"),
        ("--method less --targets {t} --signal ck1 --seed 4", "method less does not use --seed"),
        ("--signal ck1", "has one vector per sample"),
        ("--method less --targets nowhere.zarr", "is not a grace-store store"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_words(tmp_path, folder, options, match):
    pool, targets = folder / "float32/pool.zarr", folder / "float32/targets.zarr"
    out = tmp_path / "t.parquet"
    result = run("score", pool, "--out", out, *options.format(t=targets).split(), exit_code=1)
    assert match in result.stderr
    assert not out.exists()


def test_replaying_takes_no_other_settings(tmp_path, folder, cadc_table):
    refused = run(
        "score",
        "--replay",
        cadc_table,
        "--out",
        tmp_path / "x.parquet",
        "--targets",
        folder,
        "--subtasks",
        "a",
        exit_code=1,
    )
    assert "leave the other settings out" in refused.stderr
