"""grace-store plan, as a user types it."""

from __future__ import annotations

from pathlib import Path

from tests.commands import run, run_json
from tests.jobs import NUM_RECORDS, NUM_USABLE


def test_plan_says_what_it_found(tmp_path: Path, data: str) -> None:
    result = run("plan", data, "--store", tmp_path / "store.zarr", "--min-steps", 2)
    assert f"{NUM_USABLE} of {NUM_RECORDS} records planned" in result.stdout
    assert "1 set aside: duplicate_id" in result.stdout
    counts = run_json("plan", data, "--store", tmp_path / "store.zarr")
    assert counts["num_planned"] == NUM_USABLE
