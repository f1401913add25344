"""A pool with planted test questions, and the test set as a file and as a store; vectors by the fake model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace_store.base.settings import DataSpec
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.store.opened import Store
from tests.fake_model import make_fake_model

Record = dict[str, Any]
NUM_ITEMS, NUM_POOL = 8, 24
PLACES = ("garden", "kitchen", "harbour", "library", "station", "bakery", "museum", "stable")


def question(number: int, amount: int | str | None = None, place: str | None = None) -> str:
    place = place or PLACES[number % len(PLACES)]
    amount = 10 + number if amount is None else amount
    return (
        f"In the {place} of old town number{chr(97 + number)} there stood exactly {amount} wooden boxes near a {place} "
        f"door. After lunch somebody carried half of those away to another {place} shed. How many boxes stayed there?"
    )


def trace(number: int, prompt: str, **more: Any) -> Record:
    steps = [f"Half of {10 + number} is {(10 + number) / 2:g} boxes of {number}.", f"So the {number} others stay."]
    return {"id": f"t{number}", "prompt": prompt, "steps": steps, "answer": f"{number}", **more}


EXACT, WRAPPED, DILUTED, RENUMBERED, SAME_STEPS = 3, 6, 9, 12, 15
"""Places in the pool of what was planted, of the items 0, 1, 2, 3 and 4."""


def pool_records() -> list[Record]:
    records = [trace(number, f"Say why {number} {'and again ' * number} is.") for number in range(100, 100 + NUM_POOL)]
    records[EXACT]["prompt"] = question(0)
    records[WRAPPED]["prompt"] = question(1).upper().replace(" ", "\n").replace(".", "")
    records[DILUTED]["steps"] = ["A first step.", f"They told me this: {question(2)} It was odd."]
    records[RENUMBERED]["prompt"] = question(3, amount=77)
    records[SAME_STEPS] |= {key: item_records()[4][key] for key in ("steps", "answer")}
    return records


def item_records() -> list[Record]:
    return [trace(number, question(number)) for number in range(NUM_ITEMS)]


def write_records(path: Path, records: Sequence[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def extracted(folder: Path, records: Sequence[Record], weights: str = "weights") -> Store:
    job = ExtractJob(
        store=str(folder / "s.zarr"),
        model=make_fake_model(folder / "model", weights),
        data=(str(write_records(folder / "data.jsonl", records)),),
        data_request=DataSpec(format="explicit", min_steps=1),
        samples_per_unit=4,
        door="tests.fake_model",
    )
    return extract(job).store


def planned(folder: Path, records: Sequence[Record]) -> Store:
    data = write_records(folder / "data.jsonl", records)
    return plan([data], folder / "s.zarr", DataSpec(format="explicit", min_steps=1))
