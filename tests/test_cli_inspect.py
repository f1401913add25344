"""grace-store inspect, as a user types it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from grace_store.scoring.score_table import read_scores
from tests.commands import extract_words, run, run_json


def test_inspect_shows_a_sample_by_segment(extracted: Path) -> None:
    shown = run_json("inspect", extracted / "store.zarr", "case-7")
    assert [segment["name"] for segment in shown["segments"]] == [f"step {i}" for i in range(1, 6)] + ["answer"]
    assert shown["segments"][0]["text"] == "We look at part 0 of case 7.\n"
    assert shown["segments"][0]["step_score"] == pytest.approx(shown["segments"][0]["answer_alignment"])
    scores = [segment["step_score"] for segment in shown["segments"][:-1]]
    assert shown["value"] == pytest.approx(sum(scores) / len(scores))
    text = run("inspect", extracted / "store.zarr", "#10").stdout
    assert "case-7" in text
    assert "value" in text


@pytest.mark.parametrize("measure", ["loss:lowest", "rsr:lowest:min", "hes:highest"])
def test_scores_are_by_the_measure_that_is_named(extracted: Path, tmp_path: Path, measure: str) -> None:
    store, scores = extracted / "store.zarr", tmp_path / "scores.parquet"
    shown = run_json("inspect", store, "case-7", "--measure", measure)
    printed = run("inspect", store, "case-7", "--measure", measure).stdout
    run("score", store, "--out", scores, "--measure", measure)
    table = read_scores(scores)
    value = table.value[table.sample_id.index("case-7")]
    assert shown["value"] == value
    assert f"value {value:.4f} by {measure}\n" in printed
    first = shown["segments"][0]
    by_hand = {"loss:lowest": -first["loss"], "rsr:lowest:min": -first["rank"] / first["loss"], "hes:highest": None}
    assert first["step_score"] == (None if by_hand[measure] is None else pytest.approx(by_hand[measure]))
    told = run("inspect", store, "case-7", "--measure", measure, "--alpha", 0.2, code=1).stderr
    assert f"measure {measure} does not use --alpha" in told


def test_settings_of_the_scores_are_told(extracted: Path) -> None:
    printed = run("inspect", extracted / "store.zarr", "case-7", "--target", "trace").stdout
    assert " by grace, alpha 0.7, history uniform, target trace\n" in printed


def test_inspect_goes_without_the_text_when_the_data_is_gone(tmp_path: Path, text_model: str, data: str) -> None:
    run(*extract_words(tmp_path / "store.zarr", text_model, data))
    Path(data).unlink()
    shown = run_json("inspect", tmp_path / "store.zarr", "case-7")
    assert shown["segments"][0]["text"] is None
    assert "no longer there" in shown["missing_text"]
    assert "text not shown" in run("inspect", tmp_path / "store.zarr", "case-7").stdout


def test_inspect_shows_a_planned_trace_split_before_anything_is_extracted(tmp_path: Path, data: str) -> None:
    run("plan", tmp_path / "store.zarr", data, "--min-steps", 2)
    shown = run_json("inspect", tmp_path / "store.zarr", "case-7")
    assert (shown["signal"], shown["state"], shown["prompt"]) == (None, "planned", "What is 7 + 1?")
    assert [segment["name"] for segment in shown["segments"]] == [f"step {i}" for i in range(1, 6)] + ["answer"]
    assert set(shown["segments"][0]) == {"name", "text"}
    text = run("inspect", tmp_path / "store.zarr", "#10").stdout
    assert "case-7  row 10  no signal yet  planned" in text
    assert "We look at part 0 of case 7." in text
    assert "no signal 'other'" in run("inspect", tmp_path / "store.zarr", "#10", "--signal", "other", code=1).stderr


def test_a_terminal_is_shown_control_characters_not_given_them(tmp_path: Path, text_model: str) -> None:
    data = tmp_path / "hostile.jsonl"
    hostile = {"id": "a\u202eb", "prompt": "clear \x1b[2J", "steps": ["one \x07", "two"], "answer": "three"}
    data.write_text(2 * (json.dumps(hostile) + "\n"))  # the second uses the first one's id
    run(*extract_words(tmp_path / "store.zarr", text_model, str(data)), "--format", "explicit")
    shown = run("inspect", tmp_path / "store.zarr", "#0").stdout
    listed = run("status", tmp_path / "store.zarr", "--list").stdout
    assert "\\x1b[2J" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown + listed)


def test_tokens_are_shown_with_their_text_and_numbers(extracted: Path) -> None:
    store = extracted / "store.zarr"
    shown = run_json("inspect", store, "case-7", "--tokens")
    for segment in shown["segments"]:
        assert len(segment["tokens"]) == segment["num_tokens"]
        losses = [-token["log_probability"] for token in segment["tokens"]]
        assert losses[0] == pytest.approx(segment["first_loss"], rel=1e-6)
        assert sum(losses) / len(losses) == pytest.approx(segment["loss"], rel=1e-5)
        hits = sum(token["rank"] == 1 for token in segment["tokens"])
        assert hits / len(losses) == pytest.approx(segment["hit_rate"])
        for name in ("entropy", "error"):  # stored with eleven bits
            mean = sum(token[name] for token in segment["tokens"]) / len(losses)
            assert mean == pytest.approx(segment[name], rel=1 / 2048, abs=3e-8)
    texts = [segment["text"] for segment in shown["segments"]]
    assert "".join(token["text"] for segment in shown["segments"] for token in segment["tokens"]) == "".join(texts)
    printed = run("inspect", store, "case-7", "--tokens").stdout
    assert "log p   rank  entropy  |p - y|  token" in printed
    assert "  '8'\n" in printed
    assert "tokens" not in run_json("inspect", store, "case-7")["segments"][0]


def test_a_signal_without_a_token_table_has_no_tokens_to_show(tmp_path: Path, text_model: str, data: str) -> None:
    store = tmp_path / "store.zarr"
    run(*extract_words(store, text_model, data), "--no-token-table")
    assert run_json("inspect", store, "case-7")["segments"][0]["first_loss"] > 0
    told = run("inspect", store, "case-7", "--tokens", code=1).stderr
    assert "--tokens reads the token table of signal 'base', but the signal has none. Begin a new signal: " in told
    words = shlex.split(told.partition("`grace-store ")[2].partition("`")[0])
    run(*words)
    assert run_json("inspect", store, "case-7", "--signal", "base-tokens", "--tokens")["segments"][0]["tokens"]
    assert not list((store / "signals" / "base").glob("token_*"))
    told = run("inspect", store, "--vectors", data, "--tokens", code=2).stderr
    assert "give SAMPLE instead of --vectors" in told
