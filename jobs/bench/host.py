"""What the processor's cores do for a sample beside a GPU: images, reading and tokenising, compressing and writing."""

from __future__ import annotations

import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from grace_store.store.unit_writer import UnitWriter
from jobs.bench.extraction import Extraction
from jobs.bench.findings import Findings, Ratio
from jobs.bench.measuring import in_turns
from jobs.bench.storage import new_signal, unit_of_samples
from jobs.bench.workload import RandomModel, Traces

IMAGE_SIZE = (640, 480)
PATCH_SIZE = 16


def measure(*, quick: bool, threads: int) -> dict[str, Any]:
    """Measure each by itself, CPU time for one sample."""
    torch.set_num_threads(threads)
    num_samples = 8 if quick else 64
    repeats = 1 if quick else 3
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = RandomModel(64, 2, 8_000).write(place / "model")
        traces = Traces(num_samples=num_samples, words_per_segment=35, prompt_words=100)
        with Extraction(place / "bench", model, traces, threads=threads) as bench:
            costs = in_turns(
                {
                    "image of 640 x 480: open, resize, cut into patches": lambda: _images(num_samples),
                    "read the record, render, tokenise, find segments": bench.prepare_all,
                    "Gram, int8, zstd, digests, write, sync": _Written(place / "written", num_samples, repeats),
                },
                repeats,
            )
    return Findings(
        [Ratio(name, "ms of a core, one sample", cost.cpu_seconds / num_samples * 1e3) for name, cost in costs.items()]
    ).to_json()


def _images(num_images: int) -> None:
    buffer = BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (IMAGE_SIZE[1] // 8, IMAGE_SIZE[0] // 8, 3), dtype=np.uint8)
    Image.fromarray(noise).resize(IMAGE_SIZE).save(buffer, "JPEG")
    processor = Qwen2VLImageProcessorPil(patch_size=PATCH_SIZE, merge_size=2)
    for _ in range(num_images):
        processor(images=[Image.open(BytesIO(buffer.getvalue())).convert("RGB")], return_tensors="np")


class _Written:
    """Writes the units of a new store at every call; vectors are made before."""

    def __init__(self, folder: Path, num_samples: int, num_calls: int) -> None:
        self._views = [new_signal(folder / str(number), num_samples, "int8") for number in range(num_calls)]
        plan = self._views[0].store.plan
        self._units = [unit_of_samples(*plan.unit_range(unit)) for unit in range(plan.num_units)]

    def __call__(self) -> None:
        writer = UnitWriter(self._views.pop())
        for unit, (signals, spans) in enumerate(self._units):
            writer.write(unit, signals, spans)
