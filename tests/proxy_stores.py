"""A store of proxies of a tiny real model."""

from __future__ import annotations

import json
from pathlib import Path

from grace_store.base.settings import DataSpec, RunOptions
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.store.opened import Store
from tests.tiny_models import tiny_text_model


def proxy_store(folder: Path) -> Store:
    """Extract sixteen short traces with a tiny Llama."""
    lines = [
        {
            "prompt": f"{i} + {j}?",
            "steps": [f"Take {i}.", f"Add {j} to it.", "Done."][: 2 + i % 2],
            "answer": str(i + j),
        }
        for i in range(4)
        for j in range(4)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return extract(
        ExtractJob(
            store=str(folder / "s.zarr"),
            model=str(tiny_text_model("llama", folder / "llama")),
            data=(str(folder / "data.jsonl"),),
            data_request=DataSpec(min_steps=1),
            options=RunOptions(device="cpu", threads=1),
        )
    ).store
