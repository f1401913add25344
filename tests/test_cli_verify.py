"""grace-store verify, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.commands import extract_words, run, run_json
from tests.jobs import content
from tests.tiny_models import tiny_text_model


def test_verify_and_repair(tmp_path: Path, text_model: str, data: str) -> None:
    store = tmp_path / "store.zarr"
    run(*extract_words(store, text_model, data))
    result = run("verify", store, "--deep", "--model", text_model, "--units", 2, "--threads", 1)
    assert "0 problems" in result.stdout
    assert "base: extracting units " in result.stderr
    before = content(store)
    chunk = store / "signals/base/segment_vector/c/4/0"
    chunk.write_bytes(chunk.read_bytes()[:-7])
    result = run("verify", store, code=1)
    assert "base unit 4: signals/base/segment_vector/c/4/0: chunk has" in result.stdout
    result = run("verify", store, "--json", code=1)
    assert json.loads(result.stdout)["problems"][0]["unit"] == 4
    assert "1 problem repaired" in run("verify", store, "--repair", "--threads", 1).stdout
    assert content(store) == before
    assert run_json("verify", store, "--repair")["mended"] == []
    assert "nothing to repair" in run("verify", store, "--repair").stdout


def test_a_file_behind_a_link_is_not_said_to_be_repaired(tmp_path: Path, text_model: str, data: str) -> None:
    store, mine = tmp_path / "store.zarr", tmp_path / "mine"
    run(*extract_words(store, text_model, data))
    (store / "ledger/commits/base").rename(mine)
    (store / "ledger/commits/base").symlink_to(mine)
    (mine / "diary.txt").write_text("Monday")
    told = run("verify", store, "--repair", code=1).stdout
    assert "plan: ledger/commits/base/diary.txt: not part of the format; a link leads to this file" in told
    assert told.endswith("store.zarr: 1 problem not repaired.\n")
    (store / "ledger/stray").write_text("left by a run")
    again = json.loads(run("verify", store, "--repair", "--json", code=1).stdout)
    assert [each["where"] for each in again["mended"]] == ["ledger/stray"]
    assert [each["where"] for each in again["not_repaired"]] == ["ledger/commits/base/diary.txt"]


def test_a_repair_that_cannot_be_done_undoes_nothing(tmp_path: Path, text_model: str, data: str) -> None:
    store = tmp_path / "store.zarr"
    run(*extract_words(store, text_model, data))
    chunk = store / "signals/base/segment_vector/c/4/0"
    chunk.write_bytes(chunk.read_bytes()[:-7])
    before = content(store)
    other = tiny_text_model("llama", tmp_path / "other")
    result = run("verify", store, "--repair", "--model", other, code=1)
    assert "model architecture: begun with" in result.stderr
    assert content(store) == before


def test_a_repair_is_of_the_whole_store(extracted: Path) -> None:
    result = run("verify", extracted / "store.zarr", "--repair", "--signal", "base", "--units", 3, code=2)
    assert "--repair checks the whole store and cannot be used with --signal, --units." in result.stderr


def test_units_to_do_are_no_problem_of_a_store_but_lost_ones_are(tmp_path: Path, text_model: str, data: str) -> None:
    store = tmp_path / "store.zarr"
    words = extract_words(store, text_model, data)
    run(*words, "--shard", "1/3")
    result = run("verify", store)
    assert "0 problems" in result.stdout
    assert "base: 4 units not committed: 0, 2-3, 5" in result.stdout
    assert "4 units still to do: `grace-store extract` goes on." in result.stdout
    told = run_json("verify", store)
    assert told["problems"] == []
    assert [each["unit"] for each in told["units_to_do"]] == [0, 2, 3, 5]
    run(*words)
    next((store / "ledger/commits/base").iterdir()).unlink()
    lost = run("verify", store, "--json", code=1)
    assert json.loads(lost.stdout)["units_to_do"] == []
    assert "unit is not committed" in [each["text"] for each in json.loads(lost.stdout)["problems"]]
