"""Small datasets and jobs on the fake model, and the content of a store as something to compare."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from grace_store.base.settings import DataSpec
from grace_store.run.engines.engine import EngineOptions, ExtractJob
from tests.fake_model import make_fake_model

NUM_RECORDS = 27
NUM_USABLE = 24
NUM_UNITS = 6
FIRST_SAMPLES = tuple(f"case-{4 * unit}" for unit in range(NUM_UNITS))
"""Of the units: what a Gate knows them by."""
TRIED = NUM_UNITS // 2
"""The unit whose samples a worker is tried on."""
HELD = tuple(sample for unit, sample in enumerate(FIRST_SAMPLES) if unit != TRIED)
"""All other units, for a Gate to hold: workers get ready, and none of these is committed until it is let go."""


def record(i: int, num_steps: int | None = None) -> dict[str, Any]:
    steps = [f"We look at part {j} of case {i}." for j in range(num_steps or 2 + i % 4)]
    return {"id": f"case-{i}", "prompt": f"What is {i} + 1?", "steps": steps, "answer": f"It is {i + 1}."}


def write_dataset(path: Path) -> Path:
    """27 records: 24 usable, one with a single step, one used id, one that is no JSON."""
    lines = [json.dumps(record(i)) for i in range(NUM_USABLE)]
    lines[5:5] = [json.dumps(record(1000, num_steps=1)), json.dumps(record(0)), "{not json"]
    path.write_text("\n".join(lines) + "\n")
    return path


def make_job(folder: Path, store: str = "store.zarr", **changes: Any) -> ExtractJob:
    """A job of six units on the fake model; the dataset and model are made if they are not there."""
    data = folder / "traces.jsonl"
    if not data.exists():
        write_dataset(data)
    settings: dict[str, Any] = {
        "store": str(folder / store),
        "model": make_fake_model(folder / "model") if not (folder / "model").exists() else str(folder / "model"),
        "data": (str(data),),
        "data_request": DataSpec(min_steps=2),
        "samples_per_unit": 4,
        "door": "tests.fake_model",
    }
    return ExtractJob(**(settings | changes))


def processes(*devices: str) -> EngineOptions:
    """The engine that starts a process for each device."""
    return EngineOptions("processes", devices=devices)


def content(store: str | Path) -> dict[str, str]:
    """Return {file: digest} of everything in a store but the logs of its runs."""
    root = Path(store)
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "ledger/runs" not in path.as_posix()
    }
