"""grace-store extract, as a user types it: again, elsewhere, in parts, and stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import extract_words, run, run_json
from tests.jobs import NUM_USABLE, content


def test_from_traces_to_subset(tmp_path: Path, text_model: str, data: str) -> None:
    store, scores, subset = tmp_path / "store.zarr", tmp_path / "scores.parquet", tmp_path / "subset.jsonl"
    result = run(*extract_words(store, text_model, data))
    assert f"{NUM_USABLE} samples done in signal base, 3 records set aside" in result.stdout
    assert "samples in 6 units to do" in result.stderr
    assert run_json("score", store, "--out", scores)["num_samples"] == NUM_USABLE
    chosen = run_json("select", scores, "--ratio", "0.2", "--out", subset)
    assert chosen["num_samples"] == 5  # ceil(0.2 * 24)
    lines = subset.read_text().splitlines()
    assert len(lines) == 5
    assert set(lines) <= set(Path(data).read_text().splitlines())


def test_running_again_skips_everything(extracted: Path) -> None:
    result = run("extract", extracted / "store.zarr")
    assert f"{NUM_USABLE} samples in 6 units were done before" in result.stderr


def test_a_finished_store_needs_neither_data_nor_model_to_say_so(tmp_path: Path, extracted: Path) -> None:
    store = shutil.copytree(extracted / "store.zarr", tmp_path / "store.zarr")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grace_store.run.extract.open_dataset", _must_not_be_called)
        patch.setattr("grace_store.run.extract.model_door", _must_not_be_called)
        result = run("extract", store)
    assert "Signal base is already complete. There is nothing to do." in result.stderr
    assert f"{NUM_USABLE} samples done in signal base" in result.stdout


def _must_not_be_called(*_: object) -> None:
    raise AssertionError("there was nothing to do")


def test_it_goes_on_from_another_folder(
    tmp_path: Path, text_model: str, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(text_model).parent)
    words = extract_words(tmp_path / "store.zarr", Path(text_model).name, data)
    run(*words, "--shard", "0/2")
    monkeypatch.chdir("/")
    run("extract", tmp_path / "store.zarr", "--threads", 1)
    assert run_json("status", tmp_path / "store.zarr")["is_complete"]


@pytest.mark.parametrize("option", ["--model", "--images", "--adapter"])
def test_a_wrong_path_is_said_before_anything_is_planned(
    tmp_path: Path, text_model: str, data: str, option: str
) -> None:
    words = extract_words(tmp_path / "store.zarr", text_model, data)
    result = run(*words, option, tmp_path / "nothing", code=1)
    assert "nothing" in result.stderr
    assert not (tmp_path / "store.zarr").exists()


def test_a_model_that_cannot_be_used_leaves_no_plan(tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store.zarr"
    refused = run(*extract_words(store, data, data), code=1).stderr
    assert f"{data} is a file, but not a .gguf file." in refused
    assert refused.endswith("\n  Nothing was planned.\n")
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in run(*extract_words(store, str(tmp_path / "empty"), data), code=1).stderr
    monkeypatch.chdir(tmp_path)
    refused = run(*extract_words(store, "Qwen/Qwen3-VL-2B-Instruct", data), code=1).stderr
    assert "run `hf download Qwen/Qwen3-VL-2B-Instruct --local-dir DIR`, and give DIR." in refused
    assert "hf download" not in run(*extract_words(store, "./nowhere/model", data), code=1).stderr
    assert not store.exists()


def test_workers_and_shards_write_the_same_bytes(tmp_path: Path, extracted: Path, text_model: str) -> None:
    words = extract_words(tmp_path / "store.zarr", text_model, str(extracted / "traces.jsonl"))
    run(*words, "--shard", "1/2")
    run(*words, "--workers", 2)
    assert content(tmp_path / "store.zarr") == content(extracted / "store.zarr")


def test_a_full_disk_keeps_what_is_committed(
    tmp_path: Path, text_model: str, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grace_store.store.backend import LocalBackend

    real = LocalBackend.write
    monkeypatch.setattr(LocalBackend, "write", _full_after(real, "base/00000002"))
    result = run(*extract_words(tmp_path / "store.zarr", text_model, data), code=1)
    assert "Everything committed is kept and no file is half-written: make room and run the same again" in result.stderr
    monkeypatch.setattr(LocalBackend, "write", real)
    assert run_json("status", tmp_path / "store.zarr")["num_units_done"] == 2
    run(*extract_words(tmp_path / "store.zarr", text_model, data))
    assert run_json("status", tmp_path / "store.zarr")["num_done"] == NUM_USABLE


def _full_after(real: Any, part: str) -> Any:
    def write(self: Any, key: str, value: bytes) -> None:
        if part in key:
            raise OSError(28, "No space left on device", key)
        real(self, key, value)

    return write


def test_ctrl_c_stops_at_a_unit_and_says_how_to_go_on(tmp_path: Path, text_model: str, data: str) -> None:
    words = extract_words(tmp_path / "store.zarr", text_model, data)
    process = subprocess.Popen(
        [sys.executable, "-m", "grace_store", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("Loading"):
            process.send_signal(signal.SIGINT)
            break
    _, err = process.communicate()
    assert process.returncode == 130
    said = " ".join(err.split())
    assert "Stopping after the units under way" in said
    assert "Run the same command again to continue" in said
    run(*words)
    assert run_json("status", tmp_path / "store.zarr")["num_done"] == NUM_USABLE
