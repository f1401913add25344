"""A store of MMathCoT records with its table of scores, for subsets of them as files."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from grace_store.choose.select import select
from grace_store.run.extract import extract
from grace_store.scoring.score import score
from tests.jobs import make_job

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def mmathcot(i: int) -> dict:
    steps = "\n".join(f"Step {j + 1}: look at part {j} of {i}." for j in range(2 + i % 3))
    return {
        "image_url": f"pics/{i}.png",
        "instruction": f"What is {i}?",
        "output": f"{steps}\n†Answer: {i}",
        "subject": "ab"[i % 2],
    }


def scored_store(folder: Path) -> Path:
    """Write MMathCoT records with odd spacing, extract them to store.zarr, and score them to scores.parquet."""
    lines = [json.dumps(mmathcot(i), ensure_ascii=i % 2 == 0, indent=None, separators=(", ", ":  ")) for i in range(15)]
    (folder / "traces.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    extract(make_job(folder))
    score(folder / "store.zarr", out=folder / "scores.parquet")
    return folder


def chosen_lines(folder, subset):
    lines = (folder / "traces.jsonl").read_bytes().splitlines()
    return [lines[row] for row in subset.row.tolist()]


def traces_with_image(folder, url):
    record = {"prompt": "<image>?", "steps": ["a b", "c"], "answer": "d", "images": [url]}
    (folder / "traces.jsonl").write_text("".join(json.dumps({"id": f"r{i}", **record}) + "\n" for i in range(3)))
    extract(make_job(folder))
    return select(score(folder / "store.zarr"), count=2)


def everything(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
