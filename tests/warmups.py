"""Small datasets, models and jobs for tests of the warm-up, and what a warm-up left behind as something to compare."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from grace_store.base.settings import DataSpec
from grace_store.base.training_settings import WarmupOptions, WarmupSpec
from grace_store.train.warmup import WarmupJob
from tests.tiny_models import tiny_text_model

NUM_SAMPLES = 60
NUM_STEPS = 6
OPTIONS = WarmupOptions(device="cpu", threads=1, loader_threads=1)
REQUEST = WarmupSpec(
    ratio="0.4", batch_size=4, learning_rate=5e-3, num_heldout=8, checkpoints=("0.25", "0.5", "0.75", "1")
)


def write_traces(path: Path, num_samples: int = NUM_SAMPLES) -> Path:
    records = [
        {
            "id": f"case-{i}",
            "prompt": f"Tom has {i} apples. How many does he have now?",
            "steps": [f"Step {j}: He buys {j} more apples." for j in range(1, 3 + i % 3)],
            "answer": f"The answer is {i + 1}.",
        }
        for i in range(num_samples)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def make_inputs(folder: Path, family: str = "qwen3") -> tuple[Path, Path]:
    """Return a tiny model and a dataset in a folder, made if they are not there."""
    model, data = folder / "model", folder / "traces.jsonl"
    if not model.exists():
        tiny_text_model(family, model)
    if not data.exists():
        write_traces(data)
    return model, data


def make_job(folder: Path, out: str = "warmup", **changes: Any) -> WarmupJob:
    """A warm-up of 24 samples in 6 steps with four checkpoints."""
    model, data = make_inputs(folder)
    settings: dict[str, Any] = {
        "out": folder / out,
        "model": str(model),
        "data": (str(data),),
        "data_request": DataSpec(min_steps=2),
        "request": REQUEST,
        "options": OPTIONS,
    }
    return WarmupJob(**(settings | changes))


def content(out: Path, *, among: str = "*") -> dict[str, str]:
    """Return {file: digest} of all that a warm-up writes, without the plan and locks."""
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob(among))
        if path.is_file() and "plan.zarr" not in path.as_posix() and not path.name.startswith(".")
    }
