"""grace-store select, as a user types it."""

from __future__ import annotations

import json

import pytest

from grace_store.scoring.score_table import read_scores
from tests.commands import refuses, run
from tests.scored_stores import known_store


def test_several_ratios_are_several_files_each_within_the_next(scored, tmp_path):
    ratios = [word for ratio in ("0.07", "0.2", "1") for word in ("--ratio", ratio)]
    result = run("select", scored / "scores.parquet", "--out", tmp_path / "subset.jsonl", "--json", *ratios)
    said = json.loads(result.output)
    assert [each["num_samples"] for each in said] == [2, 5, 24]
    openings = ["2 of 24 samples are chosen", "5 of 24 samples are chosen", "All 24 samples with a value are chosen"]
    assert all(each["conclusion"].startswith(words) for each, words in zip(said, openings, strict=True))
    shown = run("select", scored / "scores.parquet", "--out", tmp_path / "again.jsonl").stdout
    assert shown.splitlines()[0] == said[1]["conclusion"]
    subsets = [set((tmp_path / f"subset-{ratio}.jsonl").read_text().splitlines()) for ratio in ("0.07", "0.2", "1")]
    assert subsets[0] < subsets[1] < subsets[2]
    run("select", scored / "scores.parquet", "--out", tmp_path / "n{ratio}.txt", "--count", 3, "--as", "ids")
    assert len((tmp_path / "n3.txt").read_text().splitlines()) == 3
    run("select", scored / "scores.parquet", "--out", tmp_path / "t.txt", "--threshold", 0, "--as", "ids")
    positive = (read_scores(scored / "scores.parquet").value >= 0).sum()
    assert len((tmp_path / "t.txt").read_text().splitlines()) == positive


@pytest.mark.parametrize("words", ["select {} --out x", "audit {}", "duplicates {} --scores {} --out x.parquet"])
def test_a_store_in_place_of_a_table_is_told_to_score_it_first(scored, words):
    store = scored / "store.zarr"
    refused = run(*words.format(store, store).split(), code=2).stderr
    assert f"{store} is not a table of scores. If {store} is a store, score it first: `grace-store score" in refused


@pytest.mark.parametrize("as_format", ["source", "ms-swift", "llama-factory", "datasets", "steps", "ids"])
def test_every_format_is_written(scored, tmp_path, as_format):
    result = run("select", scored / "scores.parquet", "--out", tmp_path / "x", "--as", as_format, "--json")
    said = json.loads(result.output)
    assert said["num_samples"] == 5
    assert (tmp_path / "x").exists()
    assert (tmp_path / "x.spec.json").exists()


def test_a_file_of_another_store_is_named_with_its_kind(scored, tmp_path):
    other = known_store(tmp_path).store.location
    wrong = run("select", scored / "scores.parquet", "--store", other, "--out", tmp_path / "x.jsonl", code=1)
    said = " ".join(wrong.stderr.split())
    assert f"The table of scores {scored / 'scores.parquet'} was made from another plan" in said
    assert f"belongs to {scored / 'store.zarr'}" in said
    run("select", scored / "scores.parquet", "--out", tmp_path / "s.jsonl")
    wrong = run("diversity", other, "--subset", tmp_path / "s.jsonl", code=1)
    assert f"The subset {tmp_path / 's.jsonl'} was made from another plan" in " ".join(wrong.stderr.split())


def test_a_store_that_moved_is_asked_for(tmp_path):
    known_store(tmp_path)
    run("score", tmp_path / "known.zarr", "--out", tmp_path / "s.parquet")
    (tmp_path / "known.zarr").rename(tmp_path / "moved.zarr")
    said = run("select", tmp_path / "s.parquet", "--out", tmp_path / "x.jsonl", code=1).stderr
    assert "If the store moved, give its new path with --store." in " ".join(said.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("select {scores} --out {out} --ratio 0", 1, "ratio 0 is not a number above 0 and at most 1"),
        ("select {scores} --out {out} --ratio 2", 1, "ratio 2 is not a number above 0 and at most 1"),
        ("select {scores} --out {out} --ratio 0.1 --ratio 0.1", 1, "given twice"),
        ("select {scores} --out {out} --ratio 0.1 --count 3", 1, "give one of --ratio, --count and --threshold"),
        ("select {scores} --out {out} --count 99", 1, "count 99 is not between 1 and 24"),
        ("select {nothing} --out {out}", 1, "does not exist; `grace-store score` makes it"),
        ("select {scores} --out {out} --control width", 2, "'width' is not one of"),
        ("select {scores} --out {out} --threshold 99", 1, "no sample reaches threshold 99: the largest value is"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(scored, tmp_path, arguments, code, message):
    refuses(scored, tmp_path, arguments, code, message)
