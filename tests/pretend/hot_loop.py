"""What extraction asks of a device between batches, counted: `python -m tests.pretend.hot_loop [NAME...]`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace_store.base.settings import ExtractSpec, GradientSpec, RunOptions
from grace_store.model.open_model import open_extractor, resolve_spec
from tests.gradients import make_adapter
from tests.tiny_models import tiny_text_model
from tests.tiny_vision_models import tiny_vision_model
from tests.traces import TEXTS, WITH_PICTURES

DEVICE = 3
"""Not the first: what forgets the number lands elsewhere."""
OPTIONS = RunOptions(device=f"pretend:{DEVICE}", threads=1)


@dataclass(frozen=True)
class Workload:
    """A model, how it is extracted, and the samples of a unit."""

    family: str
    request: dict[str, Any]
    with_images: bool = False

    def extractor(self, folder: Path, options: RunOptions = OPTIONS) -> Any:
        make = tiny_vision_model if self.with_images else tiny_text_model
        model = folder / self.family
        if not model.exists():
            make(self.family, model)
        # Each unit has every sample twice: with shared prompts they would be another workload.
        plain = {"dtype": "float32", "batch_tokens": 150, "share_prompts": False}
        request = ExtractSpec(**{**plain, **self.request})
        adapter = None
        if request.kind == "gradient":
            adapter = str(folder / "adapter")
            if not Path(adapter).exists():
                make_adapter(model, Path(adapter))
        spec = resolve_spec(str(model), request, options, adapter=adapter)
        return open_extractor(str(model), spec, options, adapter=adapter)

    @property
    def samples(self) -> list[Any]:
        return 2 * (WITH_PICTURES if self.with_images else TEXTS)


WORKLOADS = {
    "text": Workload("qwen3", {}),
    "text, shared prompts": Workload("qwen3", {"share_prompts": True, "batch_tokens": 40}),
    "text, packed": Workload("qwen3", {"packing": True}),
    "text, bfloat16": Workload("llama", {"dtype": "bfloat16"}),
    "Qwen3-VL": Workload("qwen3_vl", {}, with_images=True),
    "Qwen3-VL, shared prompts": Workload("qwen3_vl", {"share_prompts": True}, with_images=True),
    "LLaVA": Workload("llava", {}, with_images=True),
    "one batch": Workload("qwen3", {"batch_tokens": 100_000}),
    "gradients": Workload("qwen2", {"kind": "gradient", "gradient": GradientSpec(dimension=64)}),
    "gradients per segment": Workload(
        "qwen2", {"kind": "gradient", "gradient": GradientSpec(dimension=64, per="segment")}
    ),
}


def count(workload: Workload, folder: Path) -> dict[str, Any]:
    """Return what two units ask of the device, the second one prepared before; it must be loaded in this process."""
    import pretend_accelerator  # type: ignore[import-not-found]

    extractor = workload.extractor(folder)
    with ThreadPoolExecutor(1) as loader:  # as the pipeline does
        units = list(loader.map(extractor.prepare, [workload.samples] * 2))
    num_batches = sum(len(unit.batches) for unit in units)
    extractor.compute(units[0]).result()  # what is made once is made
    opened = contexts()
    pretend_accelerator.reset_counters(DEVICE)
    pending = [extractor.compute(unit) for unit in units]
    between = pretend_accelerator.counters(DEVICE)
    for unit in pending:
        unit.result()
    after = pretend_accelerator.counters(DEVICE)
    last = {name: after["waits"][name] - between["waits"].get(name, 0) for name in after["waits"]}
    return {
        "units": len(units),
        "response tokens": int(sum(each.tokens_per_segment().sum() for unit in units for each in unit.tokens.values())),
        "batches": num_batches,
        "launches": sum(between["launches"].values()),
        "waits": between["waits"],
        "waits for units": {name: number for name, number in last.items() if number},
        "copies": between["copies"],
        "bytes": between["copied bytes"],
        "run at once": between["run at once"],
        "contexts": opened,
    }


def contexts() -> dict[int, Any]:
    """Return the devices that this process opened a context on since they were counted anew, and who did."""
    import pretend_accelerator

    made = {device: pretend_accelerator.counters(device)["contexts"] for device in range(8)}
    return {device: who for device, who in made.items() if who}


def main(names: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {name: count(WORKLOADS[name], Path(folder)) for name in names or WORKLOADS}
    sys.stdout.write(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
