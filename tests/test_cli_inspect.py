"""grace-store inspect, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
