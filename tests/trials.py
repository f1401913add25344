"""A small pool of clean and spoilt traces, a tiny model and subsets of the pool, for tests of trials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grace_store.base.settings import DataSpec
from grace_store.base.training_settings import TrainingSpec, WarmupOptions
from grace_store.run.plan import plan
from grace_store.study import trial_plan
from grace_store.study.trial_documents import TrialRequest, TrialSpec
from tests.tiny_models import tiny_text_model

NUM_SAMPLES = 60
OPTIONS = WarmupOptions(device="cpu", threads=1, loader_threads=1, gradient_checkpointing=False)
TRAINING = TrainingSpec(learning_rate=1e-2, batch_size=4, rank=4)

trial_plan.FEWEST_UPDATES = 1  # as little as a training can be, so that tests are quick


def make_pool(folder: Path, num_samples: int = NUM_SAMPLES) -> Path:
    """Plan a pool, every other trace of which is spoilt, beside a model of one layer."""
    records = []
    for i in range(num_samples):
        steps = [f"Step {j}: He buys {j} more apples." for j in range(1, 3 + i % 3)]
        spoilt = [" ".join(reversed(step.split())) for step in steps]
        records.append(
            {
                "id": f"case-{i}",
                "prompt": f"Tom has {i} apples. How many does he have now?",
                "steps": spoilt if i % 2 else steps,
                "answer": f"The answer is {i + 1}.",
                "kind": "spoilt" if i % 2 else "clean",
                "level": i % 3,
            }
        )
        if i % 16 == 14:  # set aside by the plan, so that rows of the dataset and positions in the plan differ
            records.append({**records[-1], "id": f"short-{i}", "steps": ["He buys one."]})
    (folder / "traces.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    plan([folder / "traces.jsonl"], folder / "pool.zarr", DataSpec(min_steps=2))
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    tiny_text_model("llama", folder / "model", **small)
    return folder


def write_ids(path: Path, numbers: Any) -> Path:
    """Write a subset as a list of ids."""
    path.write_text("".join(f"case-{i}\n" for i in numbers))
    return path


def make_request(folder: Path, *subsets: Path, **changes: Any) -> TrialRequest:
    """Two seeds, two random subsets, three updates: as little as a trial can be."""
    settings: dict[str, Any] = {
        "subsets": subsets,
        "store": str(folder / "pool.zarr"),
        "model": str(folder / "model"),
        "options": OPTIONS,
    }
    asked = {"training": TRAINING, "num_updates": 3, "num_random": 2, "num_seeds": 2, "held_out": "10"}
    asked |= {name: changes.pop(name) for name in TrialSpec.model_fields if name in changes}
    return TrialRequest(spec=TrialSpec(**asked), **(settings | changes))
