"""grace-store diversity, and select --diversity, as users type them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from grace_store.base.errors import how_to_install
from grace_store.choose.duplicates import duplicates
from grace_store.cli import main
from grace_store.scoring.score import score
from grace_store.values.diverse_orders import METHODS
from tests.clustered_scores import ANSWER, scored_clusters
from tests.planted_stores import planted_store


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return scored_clusters(tmp_path_factory.mktemp("planted"))


def run(*arguments: object, exit_code: int = 0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + result.stderr
    return result


def test_select_and_measure(planted, tmp_path):
    folder, found = planted
    common = ["--descriptor", "answer"]
    run("select", folder / "scores.parquet", "--out", tmp_path / "plain.txt", "--as", "ids")
    for method in METHODS:
        options = ["--similarity", 0.9] if method == "dedup" else []
        out = ["--out", tmp_path / f"{method}.txt", "--as", "ids"]
        shown = run("select", folder / "scores.parquet", "--diversity", method, *common, *options, *out).stdout
        assert f"{method}.txt: 48 of 240 samples" in shown
        assert f"diversity by {method}: mean value" in shown
        assert len((tmp_path / f"{method}.txt").read_text().splitlines()) == 48
    subsets = [word for name in ("plain", *METHODS) for word in ("--subset", tmp_path / f"{name}.txt")]
    shown = run("diversity", found.store.location, *subsets, *common).stdout
    assert "240 samples in 30 clusters" in shown
    assert "Random subsets of the same size" in shown
    arguments = (
        "diversity",
        found.store.location,
        "--scores",
        folder / "scores.parquet",
        *common,
        "--out",
        tmp_path / "d.json",
        "--curve",
        "--method",
        "mmr",
        "--weight",
        0.5,
    )
    assert "What diversity costs, for 48 samples" in run(*arguments).stdout
    said = json.loads(run(*arguments, "--json").stdout)
    assert said == json.loads((tmp_path / "d.json").read_text())
    assert run(*arguments).stdout.splitlines()[0] == said["conclusion"]
    assert said["conclusion"].startswith("The subset best 0.2 is less varied than random subsets of its size: ")
    assert [row["weight"] for row in said["tables"]["curve"]["rows"]] == [None, 0.5, None]
    assert said["settings"]["descriptor"] == "answer"


@pytest.mark.parametrize("num_samples", [1, 3])
def test_a_curve_over_samples_that_are_alike_has_nothing_to_trade(tmp_path, num_samples):
    found = planted_store(tmp_path, num_clusters=1, per_cluster=num_samples, noise=0)
    score(found.store, out=tmp_path / "scores.parquet")
    shown = run(
        "diversity",
        found.store.location,
        "--scores",
        tmp_path / "scores.parquet",
        "--curve",
        "--descriptor",
        "answer",
        "--clusters",
        1,
    ).stdout
    assert "What diversity costs, for 1 sample\n" in shown
    assert "there is nothing to trade value for" in shown


def test_one_table_of_scores_is_taken_and_others_are_subsets(planted):
    folder, found = planted
    table = folder / "scores.parquet"
    refused = run("diversity", found.store.location, "--scores", table, "--scores", table, exit_code=2)
    assert "--scores is given 2 times: give it once" in refused.stderr
    both = run("diversity", found.store.location, "--scores", table, "--subset", table, "--ratio", "0.1", "--json")
    assert [row["num_samples"] for row in json.loads(both.stdout)["tables"]["subsets"]["rows"]] == [240, 48, 24]


def test_a_table_of_duplicates_is_never_written_over(planted, tmp_path):
    table = tmp_path / "duplicates.parquet"
    duplicates(planted[1].store, descriptor=ANSWER).write(table)
    before = table.read_bytes()
    arguments = ("select", planted[0] / "scores.parquet", "--diversity", "dedup", "--duplicates", table, "--as", "ids")
    (tmp_path / "link").symlink_to(table)
    assert "the table of duplicates" in run(*arguments, "--out", tmp_path / "link", exit_code=1).stderr
    assert table.read_bytes() == before
    run(*arguments, "--out", tmp_path / "s.txt")


def test_several_ratios_at_once_are_nested_files(planted, tmp_path):
    ratios = ["--ratio", 0.1, "--ratio", 0.3]
    out = ["--out", tmp_path / "s.txt", "--as", "ids", "--json"]
    said = json.loads(run("select", planted[0] / "scores.parquet", "--diversity", "facility", *ratios, *out).stdout)
    assert [each["num_samples"] for each in said] == [24, 72]
    small, large = (set((tmp_path / f"s-{ratio}.txt").read_text().splitlines()) for ratio in (0.1, 0.3))
    assert small < large


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("select {scores} --out {out} --diversity best", 2, "'best' is not one of"),
        ("select {scores} --out {out} --weight 0.3", 1, "--weight needs --diversity: give --diversity"),
        ("select {scores} --out {out} --clusters 3", 1, "--clusters needs --diversity: give --diversity"),
        ("select {scores} --out {out} --diversity mmr --weight 3", 1, "weight 3 is not between 0 (value alone)"),
        ("select {scores} --out {out} --diversity mmr --clusters 3", 1, "--clusters is only for --diversity clusters"),
        ("select {scores} --out {out} --diversity mmr --by num_steps", 1, "--by and --diversity cannot be combined"),
        ("select {scores} --out {out} --diversity mmr --signal late", 1, "has no signal 'late'"),
        (
            "select {scores} --out {out} --diversity dedup --duplicates {scores}",
            1,
            "is not a table of duplicates",
        ),
        ("diversity {scores}", 2, "is a file, but the first argument must be a store"),
        ("diversity {store} --weight 0.5", 1, "--method and --weight need --curve"),
        ("diversity {store} --curve", 1, "--ratio and --curve need the values of the samples"),
        ("diversity {store} --ratio 0.2", 1, "give --scores"),
        ("diversity {store} --scores {scores} --out {link}", 1, "would replace or change"),
        ("diversity {store} --subset {out}", 1, "does not exist"),
        ("diversity {store} --clusters 0", 2, "0 is not in the range"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(planted, tmp_path, arguments, code, message):
    folder, found = planted
    places = {"scores": folder / "scores.parquet", "store": found.store.location, "out": tmp_path / "out"}
    places["link"] = tmp_path / "link"
    places["link"].symlink_to(places["scores"])
    result = run(*(word.format(**places) for word in arguments.split()), exit_code=code)
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_help_has_an_example():
    shown = run("diversity", "--help").stdout
    assert "grace-store diversity traces.zarr" in shown
    assert "--json" in shown


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from grace_store.cli import main
for line in sys.stdin.read().splitlines():
    try:
        main(line.split("|"))
    except SystemExit as end:
        print("exit", end.code, file=sys.stderr)
"""


def run_without(absent: str, *commands: tuple[object, ...]) -> str:
    """Run commands in one process that cannot import some packages, and return what it said on stderr."""
    lines = "\n".join("|".join(map(str, command)) for command in commands)
    command = [sys.executable, "-c", WITHOUT, absent]
    return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=True).stderr


def test_it_runs_without_torch_and_says_what_is_missing_without_faiss(planted, tmp_path):
    folder, found = planted
    out = ["--out", tmp_path / "s.txt", "--as", "ids"]
    select = ("select", folder / "scores.parquet", "--diversity", "facility", *out)
    measure = ("diversity", found.store.location, "--scores", folder / "scores.parquet", "--json")
    said = run_without("torch,transformers,peft,safetensors,PIL,plotly,pandas", select, measure)
    assert [line for line in said.splitlines() if line.startswith("exit")] == ["exit 0", "exit 0"], said
    plain = ("select", folder / "scores.parquet", *out)
    said = run_without("faiss", select, measure, plain)
    assert [line for line in said.splitlines() if line.startswith("exit")] == ["exit 1", "exit 1", "exit 0"]
    assert said.count(how_to_install("faiss")) == 2
