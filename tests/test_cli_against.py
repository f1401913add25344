"""grace-store contamination and select --exclude-contaminated, as users type them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from grace_store.choose.contamination_table import read_against
from grace_store.cli import main
from tests.benchmark_stores import (
    DILUTED,
    EXACT,
    WRAPPED,
    extracted,
    item_records,
    planned,
    pool_records,
    write_records,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pool in pool/s.zarr, its scores, a test set in test.jsonl, and what was found of it in a.parquet."""
    folder = tmp_path_factory.mktemp("against")
    pool = extracted(folder / "pool", pool_records())
    write_records(folder / "test.jsonl", [{"q": each["prompt"]} for each in item_records()])
    run("score", pool.location, "--out", folder / "scores.parquet")
    run("contamination", pool.location, *against(folder), "--out", folder / "a.parquet")
    return folder


def against(folder) -> list[object]:
    return ["--against", folder / "test.jsonl", "--map", "prompt=q"]


def run(*arguments: object, exit_code: int = 0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + result.stderr
    return result


def test_the_conclusion_comes_first_then_counts_and_the_worst_cases_side_by_side(folder, tmp_path):
    shown = run("contamination", folder / "pool" / "s.zarr", *against(folder), "--out", tmp_path / "a.parquet").stdout
    lines = shown.splitlines()
    assert lines[0].startswith(
        "3 of 24 samples (12 %) have items of a benchmark in the text or close to it: 3 of 8 items of test.jsonl."
    )
    assert lines[1].endswith("a.parquet: 4 rows, one for each pair of sample and item (1 exact, 2 ngram, 1 template).")
    assert lines[2] == "  a match has at least 0.3 of an item's n-grams of 5 words"
    assert lines[4].split()[1:] == ["8", "3", "3", "1", "0"]
    assert lines[3].split("  ")[-2:] == ["other numbers", "whole only"]
    assert lines[5].startswith("  found: items that samples contain. samples: samples that contain an item.")
    assert lines[7] == f"  exact 1.00: t{100 + EXACT} (row {EXACT}) has test.jsonl:0, question in its prompt"
    assert [line.split()[0] for line in lines[8:10]] == ["sample", "item"]
    assert read_against(tmp_path / "a.parquet").contaminated.tolist() == [EXACT, WRAPPED, DILUTED]


def test_json_has_the_note_and_the_worst_cases(folder, tmp_path):
    out = tmp_path / "a.parquet"
    shown = run("contamination", folder / "pool" / "s.zarr", *against(folder), "--out", out, "--share", 0.9, "--json")
    said = json.loads(shown.stdout)
    assert (said["kind"], said["num_contaminated"], said["spec"]["share"]) == ("against", 3, 0.9)
    assert said["num_matches"] == {"exact": 1, "ngram": 2, "vector": 0, "template": 0}
    assert [row["row"] for row in said["worst"][str(folder / "test.jsonl")]] == [EXACT, WRAPPED, DILUTED]


def test_what_is_contaminated_is_never_selected_and_the_note_says_so(folder, tmp_path):
    out = tmp_path / "subset.jsonl"
    result = run(
        "select", folder / "scores.parquet", "--exclude-contaminated", folder / "a.parquet", "--ratio", 1, "--out", out
    )
    assert "3 samples left out for items of test.jsonl; ratios are shares of the 21 that remain" in result.stdout
    chosen = {json.loads(line)["id"] for line in out.read_text().splitlines()}
    assert chosen == {each["id"] for each in pool_records()} - {f"t{100 + at}" for at in (EXACT, WRAPPED, DILUTED)}
    note = json.loads((tmp_path / "subset.jsonl.spec.json").read_text())
    assert note["spec"]["exclude_contaminated"]["num_contaminated"] == 3
    whole = tmp_path / "whole.jsonl"
    run("select", folder / "scores.parquet", "--ratio", 1, "--out", whole)
    assert "samples with benchmark items left out" in run("compare", whole, out).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("contamination --against {test} --out {out}", "Missing argument 'STORE'"),
        ("contamination {store} --out {out}", "Missing option '--against'"),
        (
            "duplicates {store} --against {test} --out {out}",
            "duplicates has no --against any more: `grace-store contamination STORE --against FILE` compares samples",
        ),
        (
            "contamination {store} --against {test} --signal a --out {out}",
            "--signal needs a store as benchmark",
        ),
        ("contamination {store} --against {test} --seed 3 --partial --out {out}", "--partial, --seed needs a store"),
        ("contamination {store} --against {test} --threshold 0.9 --out {out}", "--threshold needs a store"),
        (
            "contamination {store} --against {store} --map prompt=q --out {out}",
            "--map is only for files",
        ),
        ("contamination {store} --against {store} --format gsm8k --out {out}", "--format is only for files"),
        ("contamination {store} --against {test} --out {link}", "which is read for it; choose another --out"),
        ("contamination {store} --against {test} --map prompt=nowhere --out {out}", "No record of"),
        ("contamination {store} --against {out} --out {out}x", "out.parquet"),
        ("report {other} --against {found} --out {new}", "table of benchmark items {found} was made from another plan"),
        ("select {scores} --exclude-contaminated {scores} --out {new}", "not a table of benchmark items"),
        (
            "duplicates --from {found} --out {out}",
            "It compares samples with benchmarks; `grace-store duplicates` compares them with each other",
        ),
        ("select {scores} --exclude-contaminated {found} --out {linked}", "the table of benchmark items; choose"),
    ],
)
def test_wrong_commands_are_told_what_is_wrong(folder, tmp_path, arguments, words):
    places = {"store": folder / "pool" / "s.zarr", "test": folder / "test.jsonl", "out": tmp_path / "out.parquet"}
    places |= {"scores": folder / "scores.parquet", "found": folder / "a.parquet", "new": tmp_path / "new"}
    for name, source in (("link", "test"), ("linked", "found")):
        places[name] = tmp_path / name
        places[name].symlink_to(places[source])
    places["other"] = planned(tmp_path / "other", pool_records()[1:]).location if "{other}" in arguments else ""
    result = CliRunner().invoke(main, arguments.format(**places).split())
    assert result.exit_code != 0
    assert words.format(**places) in " ".join(result.stderr.split())
    assert not (tmp_path / "out.parquet").exists()
    assert not (tmp_path / "new").exists()


def test_terminals_do_not_obey_a_benchmark(folder, tmp_path):
    asked = item_records()[0]["prompt"]
    evil = write_records(tmp_path / "evil.jsonl", [{"question": f"\x1b[31m {asked}", "id": "q\u202e"}])
    shown = run("contamination", folder / "pool" / "s.zarr", "--against", evil, "--out", tmp_path / "a.parquet").stdout
    assert "\\x1b[31m" in shown
    assert "\\u202e" in shown
