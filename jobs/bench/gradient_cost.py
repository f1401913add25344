"""Measure what projected gradients cost against the proxy: time and storage, the same model, samples and machine.

    grace-store warmup --data traces.jsonl --model ./model --out warmup
    python jobs/bench/gradient_cost.py --model ./model --adapter warmup/checkpoint-100 --data traces.jsonl

Every kind of signal is extracted in a process of its own into a store of its own. Loading and trying the model are not
counted; reading, tokenising, the model, projecting, compressing and writing are. Nothing here is asserted anywhere:
numbers belong to the machine they were measured on.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from grace_store.base.settings import DataSpec, ExtractSpec, GradientSpec, RunOptions
from grace_store.pool.records import UnitLoader, image_folder, open_dataset
from grace_store.run.extractor_protocol import model_door
from grace_store.run.open_signal import open_signal
from grace_store.run.plan import plan
from grace_store.run.status import status
from grace_store.store.opened import Store
from grace_store.store.unit_writer import UnitWriter, complete_signal

KINDS: dict[str, dict[str, Any]] = {
    "proxy": {},
    "gradient per sample, sparse": {"projection": "sparse"},
    "gradient per sample": {"projection": "rademacher"},
    "gradient per sample, Adam": {"projection": "rademacher", "preconditioner": "adam"},
    "gradient per segment, sparse": {"projection": "sparse", "per": "segment"},
}


def request_of(kind: str, dimension: int, storage: str) -> ExtractSpec:
    """Return what is asked for of one kind of signal."""
    if kind == "proxy":
        return ExtractSpec(storage=storage)
    return ExtractSpec(kind="gradient", gradient=GradientSpec(dimension=dimension, **KINDS[kind]), storage=storage)


def measure(kind: str, location: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Extract one kind of signal and return what it took."""
    options = RunOptions(device=arguments.device, threads=arguments.threads)
    store, door = Store.open(location), model_door()
    request = request_of(kind, arguments.dimension, arguments.storage)
    if arguments.batch_tokens is not None:
        request = request.model_copy(update={"batch_tokens": arguments.batch_tokens})
    view, model, adapter = open_signal(store, "cost", arguments.model, request, options, door, arguments.adapter)
    with open_dataset(store) as dataset:
        images = image_folder(arguments.images, view, dataset)
        extractor = door.open_extractor(model, view.signal.spec, options, adapter=adapter, images=images)
        loader, writer = UnitLoader(store, dataset), UnitWriter(view)
        extractor.compute(extractor.prepare(loader.read(0, 1))).result()
        wall, cpu = time.perf_counter(), time.process_time()
        for unit in range(store.plan.num_units):
            samples, spans = loader.load(unit)
            writer.write(unit, extractor.compute(extractor.prepare(samples)).result(), spans)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    complete_signal(view)
    counts = status(store, "cost").signals["cost"]
    return {
        "kind": kind,
        "num_samples": counts.num_done,
        "num_tokens": counts.num_tokens,
        "seconds": wall / counts.num_done,
        "cpu_seconds": cpu / counts.num_done,
        "bytes": counts.num_bytes / counts.num_done,
        "vector_size": view.vector_size,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure_apart(kind: str, folder: Path, arguments: list[str], data: Path, min_steps: int) -> dict[str, Any]:
    """Plan a store and measure in another process."""
    location = str(folder / f"{kind.replace(' ', '-')}.zarr")
    plan([data], location, DataSpec(min_steps=min_steps), samples_per_unit=8)
    command = [sys.executable, __file__, *arguments, "--only", kind, "--store", location]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the measurements for people, each against the proxy."""
    first = rows[0]
    lines = [f"{'signal':<30}{'s/sample':>10}{'CPU s':>9}{'x proxy':>9}{'B/sample':>11}{'x proxy':>9}{'peak MB':>9}"]
    for row in rows:
        slower, larger = row["cpu_seconds"] / first["cpu_seconds"], row["bytes"] / first["bytes"]
        lines.append(
            f"{row['kind']:<30}{row['seconds']:>10.3f}{row['cpu_seconds']:>9.3f}{slower:>9.2f}"
            f"{row['bytes']:>11.0f}{larger:>9.2f}{row['peak_memory_bytes'] / 1e6:>9.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter", required=True, help="a checkpoint of `grace-store warmup`")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--images")
    parser.add_argument("--samples", type=int, default=32, help="how many records of the data, from its beginning")
    parser.add_argument("--min-steps", type=int, default=2)
    parser.add_argument("--dimension", type=int, default=8192)
    parser.add_argument("--storage", default="int8")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        sys.stdout.write(json.dumps(measure(arguments.only, arguments.store, arguments)) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, arguments.data.name)
        with arguments.data.open("rb") as lines:
            data.write_bytes(b"".join(line for line, _ in zip(lines, range(arguments.samples), strict=False)))
        rows = [
            measure_apart(kind, Path(folder), sys.argv[1:], data, arguments.min_steps)
            for kind in dict.fromkeys(["proxy", *arguments.kinds])
        ]
    sys.stdout.write((json.dumps(rows) if arguments.json else table(rows)) + "\n")


if __name__ == "__main__":
    main()
