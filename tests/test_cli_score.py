"""grace-store score, as a user types it, also on a machine with the core install alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from grace_store.scoring.score_table import read_scores
from grace_store.store.opened import Store
from grace_store.values.methods.method import ScoreSpec
from tests.brute_force import brute_force
from tests.commands import refuses, run
from tests.grouped_stores import grouped_store
from tests.jobs import content
from tests.scored_stores import known_store


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ("", ScoreSpec()),
        ("--alpha 1", ScoreSpec(alpha=1)),
        ("--without-answer", ScoreSpec(without_answer=True)),
        ("--target trace", ScoreSpec(target="trace")),
        ("--target suffix", ScoreSpec(target="suffix")),
        ("--history window:3", ScoreSpec(history="window:3")),
        ("--history ema:0.8 --alpha 0.3", ScoreSpec(history="ema:0.8", alpha=0.3)),
        ("--aggregation quantile:0.5", ScoreSpec(aggregation="quantile:0.5")),
    ],
)
def test_a_row_of_the_paper_is_one_command_and_equals_the_brute_force(tmp_path, options, spec):
    known = known_store(tmp_path)
    result = run("score", known.store.location, "--out", tmp_path / "s.parquet", "--json", *options.split())
    said = json.loads(result.output)
    assert said["spec"] == spec.model_dump(mode="json")
    table = read_scores(tmp_path / "s.parquet")
    expected = [brute_force(*sample, spec).value for sample in known.samples["base"]]
    np.testing.assert_allclose(table.value, expected, rtol=0, atol=1e-6)


def test_several_signals_with_weights(tmp_path):
    known = known_store(tmp_path, ("early", "late"))
    signals = ["--signal", "early", "--signal", "late=3"]
    run("score", known.store.location, "--out", tmp_path / "s.parquet", *signals)
    expected = [
        0.25 * brute_force(*early, ScoreSpec()).value + 0.75 * brute_force(*late, ScoreSpec()).value
        for early, late in zip(known.samples["early"], known.samples["late"], strict=True)
    ]
    np.testing.assert_allclose(read_scores(tmp_path / "s.parquet").value, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("measure", ["random", "tokens:highest", "steps:highest", "loss:highest", "loss:lowest:min"])
def test_every_measure_is_the_same_command(scored, tmp_path, measure):
    run("score", scored / "store.zarr", "--out", tmp_path / "s.parquet", "--measure", measure)
    assert read_scores(tmp_path / "s.parquet").method == measure
    run("select", tmp_path / "s.parquet", "--out", tmp_path / "subset.jsonl")
    assert len((tmp_path / "subset.jsonl").read_text().splitlines()) == 5


def test_a_table_is_replayed(scored, tmp_path):
    words = ("score", "--replay", scored / "scores.parquet", "--out", tmp_path / "again.parquet")
    shown = run(*words).stdout
    assert shown.startswith("24 samples have a value, too few to say how far values follow length: length explains ")
    assert json.loads(run(*words, "--json").stdout)["conclusion"] == shown.splitlines()[0]
    assert (tmp_path / "again.parquet").read_bytes() == (scored / "scores.parquet").read_bytes()


def test_a_store_that_moved_is_found_where_it_is_said_to_be(scored, tmp_path):
    shutil.copytree(scored / "store.zarr", tmp_path / "moved.zarr")
    run("score", tmp_path / "moved.zarr", "--replay", scored / "scores.parquet", "--out", tmp_path / "a.parquet")
    assert read_scores(tmp_path / "a.parquet").note.store == Store.open(tmp_path / "moved.zarr").location


def test_an_unfinished_store_is_scored_with_partial_and_says_so(tmp_path):
    store = known_store(tmp_path, units={"base": [0, 3]}).store.location
    result = run("score", store, "--out", tmp_path / "s.parquet", code=1)
    assert "has 2 of 4 units" in result.stderr
    assert "--partial" in result.stderr
    result = run("score", store, "--out", tmp_path / "s.parquet", "--partial")
    assert "5 samples scored" in result.stdout
    assert "partial: base has 2 of 4 units" in result.stdout
    assert read_scores(tmp_path / "s.parquet").note.partial is True
    run("sweep", store, "--out", tmp_path / "sweep", code=1)
    assert "partial" in run("sweep", store, "--out", tmp_path / "sweep", "--partial").stdout


def test_flags_are_counted(tmp_path):
    store = known_store(tmp_path).store.location
    result = run("score", store, "--out", tmp_path / "s.parquet", "--without-answer")
    assert "13 samples scored, 2 of them without a value." in result.stdout
    assert "2 flagged no_value" in result.stdout


CORE_ONLY = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        absent = "torch transformers safetensors peft faiss PIL pandas plotly"
        if name.partition(".")[0] in absent.split():
            raise ImportError(f"{name} is not installed")
sys.meta_path.insert(0, Absent())
from grace_store.cli import main
for line in sys.stdin.read().splitlines():
    main(line.split("|"), standalone_mode=False)
"""


def test_the_core_install_scores_sweeps_selects_compares_and_exports(scored, tmp_path):
    commands = textwrap.dedent(
        """
        score|{store}|--out|a.parquet
        score|{store}|--out|b.parquet|--alpha|0.2|--history|ema:0.8
        score|--replay|a.parquet|--out|c.parquet
        score|{store}|--out|d.parquet|--measure|entropy
        audit|a.parquet
        sweep|{store}|--out|sweep|--alpha|0.1:0.9:0.1|--history|uniform,window:3,ema:0.8
        select|a.parquet|--out|source.jsonl
        select|a.parquet|--out|swift.jsonl|--as|ms-swift
        select|a.parquet|--out|factory.jsonl|--as|llama-factory
        select|a.parquet|--out|hf|--as|datasets
        select|a.parquet|--out|steps.jsonl|--as|steps
        select|b.parquet|--out|b.jsonl|--ratio|0.3|--control|length|--by|num_steps
        compare|source.jsonl|b.jsonl
        status|{store}
        """
    ).strip()
    done = subprocess.run(
        [sys.executable, "-c", CORE_ONLY],
        input=commands.format(store=scored / "store.zarr"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "27 settings over 24 samples" in done.stdout
    assert len((tmp_path / "source.jsonl").read_text().splitlines()) == 5


def test_scoring_imports_no_pandas(tmp_path):
    """pyarrow does where numbers go through its own functions, and that takes half a second."""
    pytest.importorskip("pandas")
    store = grouped_store(tmp_path).location
    commands = [
        ["score", store, "--out", "a.parquet"],
        ["score", store, "--out", "b.parquet", "--within", "group"],
        ["sweep", store, "--out", "sweep", "--alpha", "0.3,0.7"],
        ["weights", store, "--out", "w.parquet"],
        ["audit", "a.parquet", "--json"],
        ["select", "a.parquet", "--where", "value > -2", "--ratio", "0.5", "--out", "s.txt", "--as", "ids"],
    ]
    code = (
        "import json, sys; from grace_store.cli import main\n"
        "for line in json.loads(sys.argv[1]): main(line, standalone_mode=False)\n"
        "sys.exit('pandas was imported' if 'pandas' in sys.modules else 0)"
    )
    listed = [sys.executable, "-c", code, json.dumps(commands)]
    done = subprocess.run(listed, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "w.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("score {nothing} --out {out}", 1, "is not a grace-store store: nothing is there"),
        ("score {folder} --out {out}", 1, "is not a grace-store store"),
        ("score {store} --out {out} --signal late", 1, "has no signal 'late' (there are: base)"),
        ("score {store} --out {out} --alpha 1.5", 1, "alpha 1.5 is not between 0 (history alone) and 1"),
        ("score {store} --out {out} --alpha nan", 1, "alpha nan is not between"),
        ("score {store} --out {out} --alpha much", 2, "'much' is not a valid float"),
        ("score {store} --out {out} --history window:0", 1, "a window is a whole number of steps, at least 1"),
        ("score {store} --out {out} --history ema:1", 1, "an ema's decay is at least 0 and below 1"),
        ("score {store} --out {out} --history last", 1, "value 'last' of history: use uniform, window:W or ema:B"),
        ("score {store} --out {out} --target question", 2, "'question' is not one of"),
        ("score {store} --out {out} --without-answer --alpha 0.3", 1, "leave alpha 0.3 out"),
        ("score {store} --out {out} --aggregation median", 1, "unknown value 'median' of aggregation: use"),
        ("score {store} --out {out} --measure tokens --alpha 0.3", 1, "tokens:highest does not use --alpha"),
        ("score {store} --out {out} --seed 3", 1, "does not use --seed"),
        ("score {store} --out {out} --measure loss --seed 3", 1, "does not use --seed"),
        ("score --out {out}", 2, "Missing argument 'STORE'"),
        ("score {store} --out {folder}", 2, "is a directory"),
        ("score --replay {scores} --out {out} --alpha 0.3", 1, "leave the other settings out"),
        ("score --replay {data} --out {out}", 1, "is not a Parquet file"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(scored, tmp_path, arguments, code, message):
    refuses(scored, tmp_path, arguments, code, message)


@pytest.mark.parametrize(("place", "code"), [("{store}/new.parquet", 1), ("{store}", 2), ("{data}", 1)])
def test_scores_never_replace_what_they_are_made_from(extracted: Path, tmp_path: Path, place: str, code: int) -> None:
    store, data = extracted / "store.zarr", extracted / "traces.jsonl"
    before = content(store), data.read_bytes()
    link = tmp_path / "link"  # whose name says no format
    link.symlink_to(place.format(store=store, data=data))
    run("score", store, "--out", link, code=code)
    assert (content(store), data.read_bytes()) == before
