"""grace-store weights, as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from grace_store.scoring.weight_table import read_weights
from tests.commands import refuses, run


def test_a_conclusion_comes_first_and_the_table_says_what_made_it(scored, tmp_path):
    result = run("weights", scored / "store.zarr", "--out", tmp_path / "w.parquet")
    assert result.output.startswith("Weights ")
    assert f"{tmp_path / 'w.parquet'}: weights of 24 samples, the largest " in result.output
    tried = f"grace-store trial STORE SUBSET --weighted SUBSET {tmp_path / 'w.parquet'} --out trial"
    assert result.output.splitlines()[-1] == f"Do they train better models? {tried}"
    said = json.loads(run("weights", scored / "store.zarr", "--out", tmp_path / "w.parquet", "--json").output)
    assert (said["kind"], said["study"]) == ("finding", "weights")
    assert said["numbers"]["num_weighed"] == len(read_weights(tmp_path / "w.parquet")) == 24
    assert said["settings"]["spec"]["method"] == "fit"
    gain = said["numbers"]["gain"]
    assert gain["low"] <= gain["value"] <= gain["high"]
    assert said["conclusion"] in result.output


def test_options_are_settings(scored, tmp_path):
    words = "--method drop --drop-share 0.4 --answer-weight 0 --alpha 0.3 --history ema:0.5 --target suffix"
    run("weights", scored / "store.zarr", "--out", tmp_path / "w.parquet", *words.split())
    spec = read_weights(tmp_path / "w.parquet").note.spec
    assert (spec.method, spec.drop_share, spec.answer_weight) == ("drop", 0.4, 0.0)
    assert (spec.scores.alpha, spec.scores.history, spec.scores.target) == (0.3, "ema:0.5", "suffix")


def test_a_table_of_another_kind_is_not_replaced(scored, tmp_path):
    scores = shutil.copy(scored / "scores.parquet", tmp_path / "scores.parquet")
    before = Path(scores).read_bytes()
    refused = run("weights", scored / "store.zarr", "--out", scores, code=1).stderr
    assert "has a table of the kind 'scores', and a table of weights would replace it." in refused
    assert Path(scores).read_bytes() == before
    run("weights", scored / "store.zarr", "--out", tmp_path / "weights.parquet")
    assert (
        "of the kind 'weights'"
        in run("score", scored / "store.zarr", "--out", tmp_path / "weights.parquet", code=1).stderr
    )
    assert len(read_weights(tmp_path / "weights.parquet")) == 24


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--alpha 0.3", "--method fit does not use step scores"),
        ("--drop-share 0.3", "--method fit does not drop steps"),
        ("--signal other", "has no signal 'other'"),
    ],
)
def test_what_would_be_ignored_is_refused(scored, tmp_path, words, told):
    refuses(scored, tmp_path, f"weights {{store}} --out {{out}} {words}", 1, told)
