"""A store of several traces to a question, on the fake model: what is compared within questions is tested on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grace_store.base.settings import DataSpec, ExtractSpec
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.store.opened import Store
from tests.fake_model import make_fake_model

NUM_QUESTIONS = 9
TRACES = (5, 1, 4, 2, 3, 4, 1, 2, 6)
"""Of each question."""


def trace(question: int, number: int) -> dict[str, Any]:
    """Return one trace of a question; the same question has the same prompt, and a name."""
    steps = [f"Step {j + 1}: {question} and {number} make {question * 3 + j * number}." for j in range(2 + number % 3)]
    return {
        "id": f"q{question}-{number}",
        "problem": {"name": f"p{question}"},
        "half": question % 2,
        "prompt": f"What is question {question}?",
        "steps": steps,
        "answer": f"It is {question * 7 + number % 2}.",
    }


def grouped_records() -> list[dict[str, Any]]:
    """Return all traces: one of every question, then another of every question, and so on."""
    return [trace(q, n) for n in range(max(TRACES)) for q in range(NUM_QUESTIONS) if n < TRACES[q]]


def grouped_job(folder: Path, name: str = "store", copies: int = 0, **wishes: Any) -> ExtractJob:
    """Return a job that extracts the traces, in units of four, and copies of the first under other ids after them."""
    records = grouped_records()
    records += [{**record, "id": f"copy-{record['id']}"} for record in records[:copies]]
    lines = [json.dumps(record) for record in records]
    (folder / "traces.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ExtractJob(
        store=str(folder / f"{name}.zarr"),
        model=make_fake_model(folder / "model"),
        data=(str(folder / "traces.jsonl"),),
        data_request=DataSpec(format="explicit", min_steps=1, **wishes),
        request=ExtractSpec(storage="float32"),
        samples_per_unit=4,
        door="tests.fake_model",
    )


def grouped_store(folder: Path) -> Store:
    """Extract the traces to store.zarr, in units that hold traces of many questions."""
    return extract(grouped_job(folder)).store
