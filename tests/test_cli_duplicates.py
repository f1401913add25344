"""grace-store duplicates and inspect --neighbours, as users type them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from click.testing import CliRunner

from grace_store.base.errors import how_to_install
from grace_store.choose.duplicate_table import read_duplicates
from grace_store.choose.duplicates import duplicates
from grace_store.cli import main
from grace_store.pool.pool import Pool
from grace_store.scoring.score import score
from grace_store.store.opened import Store
from tests.duplicated_stores import duplicated_store


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return duplicated_store(tmp_path_factory.mktemp("d"))


@pytest.fixture(scope="module")
def found(store):
    return duplicates(Pool.of(store, threads=1), floor=0.85)


def run(*arguments: object, exit_code: int = 0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + result.stderr
    return result


def test_the_commands_as_users_type_them(store, tmp_path):
    out = tmp_path / "d.parquet"
    result = run("duplicates", store.location, "--out", out, "--floor", 0.85, "--threads", 1)
    assert (
        "90 samples, 26 of them in 11 groups from 0.95 up; 15 dropped, the earliest of each group kept."
        in result.output
    )
    assert result.stdout.startswith(
        "15 of 90 samples (17 %) could go: there are 11 groups of samples that are alike (cosine 0.95 or more), and "
        "one of each is kept. No two have the same record.\n"
    )
    assert "every sample was compared with every other" in result.output
    assert "0.9      21         46       25" in result.output
    assert "Whole records are compared" in result.stderr
    again = run("duplicates", "--from", out, "--threshold", 0.9, "--out", tmp_path / "e.parquet", "--json")
    said = json.loads(again.stdout)
    assert (said["num_groups"], said["num_dropped"], said["spec"]["threshold"]) == (21, 25, 0.9)
    assert read_duplicates(tmp_path / "e.parquet").num_groups == 21
    assert said["conclusion"].startswith("25 of 90 samples (28 %) could go: there are 21 groups")
    both = json.loads(run("inspect", store.location, "s0", "--neighbours", 1, "--json").stdout)
    assert (both["sample_id"], both["signal"]) == ("s0", "base")
    near = both["neighbours"]
    assert near["tables"]["neighbours"]["rows"][0]["sample_id"] == "s60"
    assert near["conclusion"].startswith("The nearest trace, s60 (0.9700), is nearly the same: ")
    shown = run("inspect", store.location, "#0", "--neighbours", 2, "--least").stdout
    assert shown.startswith("s0  row 0")
    told, rows = shown[shown.index("All 2 shown") :].split("\n\n")
    assert rows.startswith("Least aligned, by steps of base\n")
    first = rows.splitlines()[2].split()
    assert told.startswith(f"All 2 shown pull the other way, {first[2]} ({first[0]}) the most.")
    assert "Texts are not shown: " in rows


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("duplicates {store} --scores {scores} --scores {scores} --out {out}", "--scores is given 2 times"),
        ("duplicates --out {out}", "Missing argument 'STORE'"),
        ("duplicates {store} --from {table} --out {out}", "does not search again: leave STORE out"),
        (
            "duplicates --from {table} --floor 0.5 --descriptor steps --out {out}",
            "leave --floor, --descriptor out",
        ),
        ("duplicates --from {table} --threshold 0.5 --out {out}", "Search again with --floor 0.5"),
        ("duplicates --from {table} --out {table}", "which is read for it; choose another --out"),
        ("duplicates {store} --out {store}/d.parquet", "the store; choose another --out"),
        ("inspect {store}", "Give a SAMPLE or --vectors"),
        ("inspect {store} s0 --vectors {out}", "Give a SAMPLE or --vectors"),
        ("inspect {store} nobody --neighbours 1", "has no sample 'nobody'"),
        ("inspect {store} s0 --neighbours 1 --seed 1", "only --descriptor projected uses a seed"),
        ("inspect {store} s0 --least --where row", "--least, --where needs --neighbours"),
        ("neighbours {store} s0", "no command 'neighbours' any more: `grace-store inspect STORE SAMPLE --neighbours"),
    ],
)
def test_wrong_commands_are_told_what_is_wrong(store, found, tmp_path, arguments, words):
    found.write(tmp_path / "d.parquet")
    score(store, out=tmp_path / "scores.parquet")
    places = {"store": store.location, "table": tmp_path / "d.parquet", "out": tmp_path / "out.parquet"}
    places |= {"scores": tmp_path / "scores.parquet"}
    result = CliRunner().invoke(main, arguments.format(**places).split())
    assert result.exit_code != 0
    assert words in " ".join(result.stderr.split())
    assert not (tmp_path / "out.parquet").exists()


def test_it_all_runs_without_torch_and_regrouping_without_faiss(store, tmp_path):
    """On a machine with the core install and faiss."""
    code = textwrap.dedent("""
        import importlib.abc, sys

        class Missing(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {missing!r}.split():
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Missing())
        from grace_store.cli import main
        main({arguments!r})
    """)
    core = "torch transformers peft safetensors PIL ray plotly"
    search = ["duplicates", store.location, "--out", str(tmp_path / "d.parquet"), "--threads", "1"]
    again = [
        "duplicates",
        "--from",
        str(tmp_path / "d.parquet"),
        "--threshold",
        "0.97",
        "--out",
        str(tmp_path / "e.parquet"),
    ]
    done = [
        subprocess.run(
            [sys.executable, "-c", code.format(missing=missing, arguments=arguments)], capture_output=True, text=True
        )
        for missing, arguments in ((core, search), (f"{core} faiss", again), (f"{core} faiss", search))
    ]
    assert [each.returncode for each in done] == [0, 0, 1], [each.stderr for each in done]
    assert how_to_install("faiss") in done[2].stderr
