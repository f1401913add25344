"""A store of traces whose records have fields of their own, on the fake model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grace_store.base.settings import DataSpec
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.store.opened import Store
from tests.fake_model import make_fake_model

NUM_RECORDS = 48
SOURCES = ("math", "code", 'it\'s "odd"')


def field_record(i: int) -> dict[str, Any]:
    """Return a trace with an answer to every question that a filter may ask."""
    known = {
        "is_correct": [True, False, None][i % 3] if i % 7 else True,
        "source": SOURCES[i % 3],
        "meta": {"level": i % 5, "by": {"name": f"writer {i % 2}"}},
        "tags": ["even"] if i % 2 == 0 else ["odd", "late"],
        'say "hi"': i,
        "dotted.name": i % 4,
        "value": -i,
    }
    if i % 6 == 0:
        known["rare"] = i
    steps = [f"Step {j + 1}: take part {j * i % 7} of number {i}." for j in range(2 + i % 4)]
    return known | {"id": f"t{i}", "prompt": f"What about {i}?", "steps": steps, "answer": f"It is {3 * i}."}


RECORDS = [field_record(i) for i in range(NUM_RECORDS)]


def make_field_store(folder: Path, records: list[dict[str, Any]] = RECORDS) -> Store:
    """Extract a store from a dataset in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    job = ExtractJob(
        store=str(folder / "traces.zarr"),
        model=make_fake_model(folder / "model"),
        data=(str(data),),
        data_request=DataSpec(format="explicit", min_steps=2),
        samples_per_unit=16,
        door="tests.fake_model",
    )
    return extract(job).store
