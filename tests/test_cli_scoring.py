"""score, audit, sweep, select and compare as users type them, also on a machine with the core install alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from grace_store.artifacts.score_table import read_scores
from grace_store.cli import main
from grace_store.cli.main import COMMANDS
from grace_store.run.extract import extract
from grace_store.store.opened import Store
from grace_store.values.score_spec import ScoreSpec
from tests.brute_force import brute_force
from tests.gradient_stores import DIMENSION, add_gradients
from tests.jobs import NUM_USABLE, make_job
from tests.scored_stores import known_store

COMMAND_NAMES = ["score", "audit", "sweep", "select", "compare"]


def run(*arguments: object, exit_code: int = 0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + result.stderr
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished store of the fake model and a table of its scores."""
    folder = tmp_path_factory.mktemp("cli")
    extract(make_job(folder))
    run("score", folder / "store.zarr", "--out", folder / "scores.parquet")
    return folder


# ---------------------------------------------------------------- the paper's rows are single commands


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


@pytest.mark.parametrize("method", ["random", "longest", "stepmax", "loss", "perplexity"])
def test_heuristics_are_the_same_command(folder, tmp_path, method):
    run("score", folder / "store.zarr", "--out", tmp_path / "s.parquet", "--method", method)
    assert read_scores(tmp_path / "s.parquet").made_by["spec"]["method"] == method
    run("select", tmp_path / "s.parquet", "--out", tmp_path / "subset.jsonl")
    assert len((tmp_path / "subset.jsonl").read_text().splitlines()) == 5


def test_a_table_is_replayed(folder, tmp_path):
    run("score", "--replay", folder / "scores.parquet", "--out", tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == (folder / "scores.parquet").read_bytes()


# ---------------------------------------------------------------- one clear sentence


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
        ("score {store} --out {out} --history last", 1, "history 'last' is none of uniform, window:W, ema:B"),
        ("score {store} --out {out} --target question", 2, "'question' is not one of"),
        ("score {store} --out {out} --without-answer --alpha 0.3", 1, "alpha 0.3 would be ignored"),
        ("score {store} --out {out} --aggregation median", 1, "aggregation 'median' is none of"),
        ("score {store} --out {out} --method longest --alpha 0.3", 1, "--method longest has no use for --alpha"),
        ("score {store} --out {out} --seed 3", 1, "--seed is for --method random"),
        ("score {store} --out {out} --method loss --seed 3", 1, "has nothing random in it"),
        ("score --out {out}", 2, "Missing argument 'STORE'"),
        ("score {store} --out {folder}", 2, "is a directory"),
        ("score --replay {scores} --out {out} --alpha 0.3", 1, "leave the other settings out"),
        ("score --replay {data} --out {out}", 1, "is not a Parquet file"),
        ("audit {data}", 1, "is not a Parquet file"),
        ("audit {scores} --ratio 2", 1, "ratio 2 is not a number above 0 and at most 1"),
        ("select {scores} --out {out} --ratio 0", 1, "ratio 0 is not a number above 0 and at most 1"),
        ("select {scores} --out {out} --ratio 2", 1, "ratio 2 is not a number above 0 and at most 1"),
        ("select {scores} --out {out} --ratio 0.1 --ratio 0.1", 1, "given twice"),
        ("select {scores} --out {out} --ratio 0.1 --count 3", 1, "give one of --ratio, --count and --threshold"),
        ("select {scores} --out {out} --count 99", 1, "count 99 is not between 1 and 24"),
        ("select {nothing} --out {out}", 1, "does not exist; `grace-store score` makes such a table"),
        ("select {scores} --out {out} --control width", 2, "'width' is not one of"),
        ("sweep {store} --out {out} --alpha 0.1:2:0.1", 1, "alpha 1.1 is not between 0"),
        ("sweep {store} --out {out} --alpha some", 1, "'some' is not a number"),
        ("sweep {store} --out {out} --history window:0", 1, "a window is a whole number of steps"),
        ("sweep {store} --out {out} --signal late", 1, "has no signal 'late'"),
        ("sweep {store} --out {out} --ratio 2", 1, "ratio 2 is not"),
        ("sweep {store} --out {out} --grid {data} --alpha 0.3", 1, "--grid says it all: leave out --alpha"),
        ("select {scores} --out {out} --threshold 99", 1, "no sample reaches threshold 99: the largest value is"),
        ("sweep {store} --out {out} --grid {data}", 1, "cannot be read as TOML"),
        ("compare {scores} {nothing}", 1, "does not exist"),
        ("compare {scores} {data}", 1, "has no traces.jsonl.spec.json beside it"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(folder, tmp_path, arguments, code, message):
    places = {
        "store": folder / "store.zarr", "folder": tmp_path, "scores": folder / "scores.parquet",
        "data": folder / "traces.jsonl", "nothing": tmp_path / "nothing", "out": tmp_path / "out",
    }  # fmt: skip
    result = run(*(word.format(**places) for word in arguments.split()), exit_code=code)
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not list(tmp_path.glob("out*"))


def test_an_unfinished_store_is_scored_with_partial_and_says_so(tmp_path):
    store = known_store(tmp_path, units={"base": [0, 3]}).store.location
    result = run("score", store, "--out", tmp_path / "s.parquet", exit_code=1)
    assert "has 2 of 4 units" in result.stderr
    assert "--partial" in result.stderr
    result = run("score", store, "--out", tmp_path / "s.parquet", "--partial")
    assert "5 samples scored" in result.stdout
    assert "partial: of 4 units there are base 2" in result.stdout
    assert read_scores(tmp_path / "s.parquet").made_by["partial"] is True
    run("sweep", store, "--out", tmp_path / "sweep", exit_code=1)
    assert "partial" in run("sweep", store, "--out", tmp_path / "sweep", "--partial").stdout


def test_flags_are_counted(tmp_path):
    store = known_store(tmp_path).store.location
    result = run("score", store, "--out", tmp_path / "s.parquet", "--without-answer")
    assert "13 samples scored, 2 of them without a value." in result.stdout
    assert "2 flagged no_value" in result.stdout


# ---------------------------------------------------------------- select, compare, sweep, audit


def test_several_ratios_are_several_files_each_within_the_next(folder, tmp_path):
    ratios = [word for ratio in ("0.07", "0.2", "1") for word in ("--ratio", ratio)]
    result = run("select", folder / "scores.parquet", "--out", tmp_path / "subset.jsonl", "--json", *ratios)
    said = json.loads(result.output)
    assert [each["num_samples"] for each in said] == [2, 5, 24]
    subsets = [set((tmp_path / f"subset-{ratio}.jsonl").read_text().splitlines()) for ratio in ("0.07", "0.2", "1")]
    assert subsets[0] < subsets[1] < subsets[2]
    run("select", folder / "scores.parquet", "--out", tmp_path / "n{ratio}.txt", "--count", 3, "--as", "ids")
    assert len((tmp_path / "n3.txt").read_text().splitlines()) == 3
    run("select", folder / "scores.parquet", "--out", tmp_path / "t.txt", "--threshold", 0, "--as", "ids")
    positive = (read_scores(folder / "scores.parquet").value >= 0).sum()
    assert len((tmp_path / "t.txt").read_text().splitlines()) == positive


@pytest.mark.parametrize("as_format", ["source", "ms-swift", "llama-factory", "datasets", "steps", "ids"])
def test_every_format_is_written(folder, tmp_path, as_format):
    result = run("select", folder / "scores.parquet", "--out", tmp_path / "x", "--as", as_format, "--json")
    said = json.loads(result.output)
    assert said["num_samples"] == 5
    assert (tmp_path / "x").exists()
    assert (tmp_path / "x.spec.json").exists()


def test_compare_lists_what_changed(folder, tmp_path):
    run("score", folder / "store.zarr", "--out", tmp_path / "b.parquet", "--alpha", 0)
    arguments = ("compare", folder / "scores.parquet", tmp_path / "b.parquet", "--out", tmp_path / "changes.jsonl")
    said = json.loads(run(*arguments, "--json").output)
    assert said["num_a"] == said["num_b"] == 5
    assert said["num_entered"] == said["num_left"] == 5 - said["num_both"] > 0
    changes = [json.loads(line) for line in (tmp_path / "changes.jsonl").read_text().splitlines()]
    assert len(changes) == 2 * said["num_entered"]
    shown = run(*arguments).stdout
    assert f"both: {said['num_both']}" in shown
    assert said["entered"][0]["sample_id"] in shown


def test_compare_writes_over_neither_side_and_shows_ids_as_they_stand(folder, tmp_path):
    table = pq.read_table(folder / "scores.parquet")
    ids = pa.array([f"[bold]{text}[/nothing]\x1b[2J" for text in table["sample_id"].to_pylist()])
    pq.write_table(table.set_column(0, "sample_id", ids), tmp_path / "a.parquet")
    run("score", folder / "store.zarr", "--out", tmp_path / "b.parquet", "--alpha", 0)
    before = (tmp_path / "b.parquet").read_bytes()
    told = run("compare", tmp_path / "a.parquet", tmp_path / "b.parquet", "--out", tmp_path / "b.parquet", exit_code=1)
    assert "Nothing was written." in told.stderr
    assert (tmp_path / "b.parquet").read_bytes() == before
    shown = "".join(run("compare", tmp_path / "a.parquet", tmp_path / "b.parquet").stdout.split())
    assert "[bold]" in shown
    assert "\x1b" not in shown


def test_signals_for_a_grid_and_only_those_with_steps(tmp_path):
    store = known_store(tmp_path, ("early", "late")).store
    add_gradients(store, "gradients", np.ones((store.plan.num_samples, DIMENSION)))
    (tmp_path / "grid.toml").write_text('[[grid]]\nalpha = "0.3,0.7"\n')
    arguments = ("sweep", store.location, "--out", tmp_path / "sweep", "--grid", tmp_path / "grid.toml")
    found = run(*arguments, "--signal", "each")
    assert "4 settings over 13 samples" in found.stdout
    assert "replaced" not in found.stdout
    assert "--signal each leaves out gradients: one vector a sample, no steps to score." in found.stderr
    assert "the earlier sweep there is replaced" in run(*arguments, "--signal", "late").stdout.replace("\n", " ")
    (tmp_path / "grid.toml").write_text('[[grid]]\nsignal = "late"\n')
    assert "names signals itself: leave out --signal" in run(*arguments, "--signal", "late", exit_code=1).stderr
    shown = run("stability", store.location, "--signal", "early", "--draws", 2).stdout
    assert "Left out, with one vector a sample and no steps: gradients." in shown


def test_an_audit_of_few_samples_says_that_it_can_tell_nothing(tmp_path):
    store = known_store(tmp_path, num_steps=(2, 3, 4)).store.location
    run("score", store, "--out", tmp_path / "s.parquet")
    shown = run("audit", tmp_path / "s.parquet").stdout
    assert "3 samples with a value" in shown
    assert "With fewer than 8 nothing can be told" in shown
    assert "Pearson" not in shown
    assert json.loads(run("audit", tmp_path / "s.parquet", "--json").stdout)["enough_samples"] is False


def test_a_file_of_another_store_is_named_with_its_kind(folder, tmp_path):
    other = known_store(tmp_path).store.location
    wrong = run("select", folder / "scores.parquet", "--store", other, "--out", tmp_path / "x.jsonl", exit_code=1)
    said = " ".join(wrong.stderr.split())
    assert f"The table of scores {folder / 'scores.parquet'} was made from another plan" in said
    assert f"It belongs to {folder / 'store.zarr'}" in said
    run("select", folder / "scores.parquet", "--out", tmp_path / "s.jsonl")
    wrong = run("diversity", other, "--subset", tmp_path / "s.jsonl", exit_code=1)
    assert f"The subset {tmp_path / 's.jsonl'} was made from another plan" in " ".join(wrong.stderr.split())


def test_a_store_that_moved_is_asked_for(tmp_path):
    known_store(tmp_path)
    run("score", tmp_path / "known.zarr", "--out", tmp_path / "s.parquet")
    (tmp_path / "known.zarr").rename(tmp_path / "moved.zarr")
    said = run("select", tmp_path / "s.parquet", "--out", tmp_path / "x.jsonl", exit_code=1).stderr
    assert "If it moved, give its new place with --store." in " ".join(said.split())


def test_sweep_prints_a_table_or_json(folder, tmp_path):
    arguments = ("sweep", folder / "store.zarr", "--out", tmp_path / "sweep", "--alpha", "0.1:0.9:0.4")
    shown = run(*arguments, "--history", "uniform,ema:0.8").stdout
    assert "6 settings over 24 samples" in shown
    assert "alpha=0.5 history=ema:0.8" in shown
    said = json.loads(run(*arguments, "--ratio", "0.1", "--ratio", "0.3", "--json").output)
    assert said["ratios"] == ["0.1", "0.3"]
    assert [row["alpha"] for row in said["summary"]] == [0.1, 0.5, 0.9]
    assert pq.read_table(tmp_path / "sweep/values.parquet").num_rows == 3 * NUM_USABLE
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == [
        "overlap-0.1.svg", "overlap-0.3.svg", "overlap.parquet", "rank_correlation.svg", "samples.parquet",
        "summary.parquet", "sweep.json", "values.parquet",
    ]  # fmt: skip


def test_audit_prints_correlations_or_json(folder):
    shown = run("audit", folder / "scores.parquet").stdout
    assert "24 samples with a value" in shown
    assert "response_length" in shown
    assert "nan" not in shown
    said = json.loads(run("audit", folder / "scores.parquet", "--json").output)
    assert said["lengths"]["step_length"]["pearson"] is None  # every step of the fake data has eight words
    assert -1 <= said["lengths"]["num_steps"]["spearman"] <= 1


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_help_has_an_example(name):
    assert name in COMMANDS
    shown = run(name, "--help").stdout
    assert f"grace-store {name}" in shown
    assert "--json" in shown


# ---------------------------------------------------------------- a machine with the core install alone

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


def test_the_core_install_scores_sweeps_selects_compares_and_exports(folder, tmp_path):
    commands = textwrap.dedent(
        """
        score|{store}|--out|a.parquet
        score|{store}|--out|b.parquet|--alpha|0.2|--history|ema:0.8
        score|--replay|a.parquet|--out|c.parquet
        score|{store}|--out|d.parquet|--method|perplexity
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
        input=commands.format(store=folder / "store.zarr"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "27 settings over 24 samples" in done.stdout
    assert len((tmp_path / "source.jsonl").read_text().splitlines()) == 5


def test_a_store_that_moved_is_found_where_it_is_said_to_be(folder, tmp_path):
    shutil.copytree(folder / "store.zarr", tmp_path / "moved.zarr")
    run("score", tmp_path / "moved.zarr", "--replay", folder / "scores.parquet", "--out", tmp_path / "a.parquet")
    assert read_scores(tmp_path / "a.parquet").made_by["store"] == Store.open(tmp_path / "moved.zarr").location
