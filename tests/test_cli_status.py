"""grace-store status, as a user types it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from grace_store.store.backend import LOCKS
from grace_store.store.lock import clear_dead, hold
from grace_store.store.opened import Store
from tests.commands import run, run_json
from tests.jobs import NUM_RECORDS


def test_status_adds_up(extracted: Path) -> None:
    counts = run_json("status", extracted / "store.zarr", "--list")
    assert counts["num_records"] == NUM_RECORDS
    assert counts["num_records"] == counts["num_planned"] + counts["num_done"] + counts["num_set_aside"]
    assert counts["num_set_aside"] == sum(counts["set_aside"].values()) == len(counts["set_aside_records"])
    text = run("status", extracted / "store.zarr", "--list").stdout
    assert "row 6 (traces.jsonl:6): duplicate_id: id 'case-0' was used before" in text
    assert "signal base: complete" in text


def test_status_shows_what_a_store_was_made_from(extracted: Path, text_model: str) -> None:
    text = run("status", extracted / "store.zarr").stdout
    assert "traces.jsonl: 27 records" in text
    assert "Qwen3ForCausalLM" in text
    assert text_model in text
    facts = run_json("status", extracted / "store.zarr")
    assert facts["documents"]["base"]["spec"]["storage"] == "int8"
    assert facts["plan"]["files"][0]["num_records"] == 27


def test_status_of_a_plan_says_what_comes_next(tmp_path: Path, data: str) -> None:
    run("plan", tmp_path / "store.zarr", data, "--min-steps", 2)
    assert "run `grace-store extract`" in run("status", tmp_path / "store.zarr").stdout


def test_status_says_which_runs_are_under_way(extracted: Path) -> None:
    store = Store.open(extracted / "store.zarr")
    assert run_json("status", store.location)["running"] == {}
    with hold(store.backend, "base", (1, 4)), hold(store.backend, "late"):
        found = run_json("status", store.location)["running"]
        me = rf"process {os.getpid()} on {re.escape(socket.gethostname())} since \d{{4}}-\d\d-\d\dT[\d:]+\+00:00"
        assert sorted(found) == ["base.1-of-4", "late"]
        assert all(re.fullmatch(me, who) for who in found.values())
        assert f"  a run is under way: late, by {found['late']}\n" in run("status", store.location).stdout
    # The lock of a dead process is no run.
    lock = {"host": socket.gethostname(), "boot": "earlier", "pid": 1, "since": "2020-01-01T00:00:00+00:00"}
    store.backend.write(f"{LOCKS}/base.0-of-1.json", json.dumps(lock).encode())
    assert "under way" not in run("status", store.location).stdout
    clear_dead(store.backend)


def test_a_reader_that_stops_reading_is_no_error(extracted: Path) -> None:
    command = [sys.executable, "-m", "grace_store", "status", str(extracted / "store.zarr")]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.stderr == ""
