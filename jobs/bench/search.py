"""Measure the search for duplicates: how long, how much memory, how much of what was planted is found.

    python jobs/bench/search.py /tmp/vectors.zarr --samples 200000

Makes the store if it is not there: int8 vectors of 2048 numbers around a few hundred centres, and in every unit some
noisy copies. Every measurement runs in a process of its own, which tells its peak memory. Nothing here is asserted
anywhere: numbers belong to the machine they were measured on.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from synthetic_store import make_plan

from grace_store.config import ExtractSpec, ModelIdentity
from grace_store.job.finding_duplicates import find_duplicates
from grace_store.job.neighbours import nearest_samples
from grace_store.metadata import Signal
from grace_store.store import SignalView, Store, UnitWriter, complete_signal, create_signal, unit_range
from grace_store.unit import UnitSignals

NUM_CENTRES = 300
COPIES_PER_UNIT = 4
COPY_COSINES = (0.99, 0.97, 0.96, 0.93)
"""Of the copies in a unit with what they are copied from; the last is below the threshold."""
THRESHOLD = 0.95
SEED = 0


def make_vectors(location: Path, num_samples: int, size: int) -> None:
    """Write a store of samples with one step and an answer each."""
    store = make_plan(location, num_samples, min_steps=1, max_steps=1)
    model = ModelIdentity(
        architecture="Synthetic", hidden_size=size, vocab_size=2, config="0", weights="0", tokenizer="0"
    )
    spec = ExtractSpec(model=model, rendering="plain", storage="int8")
    signal = Signal(name="base", spec=spec, plan_sha256=store.plan.digest(), origin={"model": "none"})
    view = create_signal(store, signal)
    writer = UnitWriter(view)
    centres = np.random.default_rng(SEED).standard_normal((NUM_CENTRES, size), dtype=np.float32)
    for unit in range(store.plan.num_units):
        answers = _answers(view, unit, centres)
        num_rows = 2 * len(answers)
        ones = np.ones(num_rows, dtype=np.float32)
        signals = UnitSignals(
            segment_vector=np.repeat(answers, 2, axis=0),
            segment_num_tokens=np.ones(num_rows, dtype=np.int32),
            segment_loss=ones, segment_entropy=ones, segment_hit_rate=ones, num_tokens=num_rows,
        )  # fmt: skip
        first = np.arange(num_rows, dtype=np.int32) % 2 * 80
        writer.write(unit, signals, np.stack([first, first + 80], axis=1))
    complete_signal(view)


def _answers(view: SignalView, unit: int, centres: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return a unit's answers; its last few are noisy copies of its first few."""
    start, stop = unit_range(view.store.plan, unit)
    rng = np.random.default_rng((SEED, unit))
    answers = rng.standard_normal((stop - start, centres.shape[1]), dtype=np.float32)
    answers += centres[rng.integers(len(centres), size=stop - start)]
    for copy, cosine in enumerate(COPY_COSINES if stop - start >= 2 * COPIES_PER_UNIT else ()):
        source = answers[copy] / np.linalg.norm(answers[copy])
        noise = rng.standard_normal(len(source), dtype=np.float32)
        noise -= (noise @ source) * source
        answers[-1 - copy] = cosine * source + np.sqrt(1 - cosine**2) * noise / np.linalg.norm(noise)
    return answers


def duplicates(store: Store, threads: int | None) -> dict[str, Any]:
    found = find_duplicates(store, descriptor="answer", threshold=THRESHOLD, threads=threads)
    planted, seen = 0, 0
    for unit in range(store.plan.num_units):
        start, stop = unit_range(store.plan, unit)
        for copy, cosine in enumerate(COPY_COSINES if stop - start >= 2 * COPIES_PER_UNIT else ()):
            if cosine >= THRESHOLD:
                planted += 1
                seen += int(
                    found.group[start + copy] >= 0 and found.group[start + copy] == found.group[stop - 1 - copy]
                )
    recall = found.made_by["search"]["recall"] or {}
    return {
        "index": found.made_by["search"]["index"], "planted": planted, "planted_found": seen,
        "dropped": int((~found.keep).sum()), "recall_pairs": recall.get("num_true"), "recall": recall.get("share"),
    }  # fmt: skip


def neighbours(store: Store, threads: int | None) -> dict[str, Any]:
    best = nearest_samples(store, "#0", descriptor="answer", threads=threads).neighbours[0]
    return {"nearest": best.sample_id, "cosine": best.cosine}


TASKS: dict[str, Callable[[Store, int | None], dict[str, Any]]] = {"duplicates": duplicates, "neighbours": neighbours}


def run_task(task: str, location: str, threads: int | None) -> dict[str, Any]:
    opened = Store.open(location)
    began, cpu = time.perf_counter(), time.process_time()
    found = TASKS[task](opened, threads)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu, "peak_mb": peak} | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=2048, help="numbers in a vector")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        sys.stdout.write(json.dumps(run_task(given.task, str(given.store), given.threads)))
        return
    if not given.store.exists():
        began = time.perf_counter()
        make_vectors(given.store, given.samples, given.size)
        sys.stdout.write(f"made {given.store} in {time.perf_counter() - began:.0f} s\n")
    plan = Store.open(given.store).plan
    sys.stdout.write(f"{plan.num_samples} samples\n{'task':<12}{'s':>8}{'CPU s':>8}{'peak MB':>9}\n")
    for task in TASKS:
        threads = ["--threads", str(given.threads)] if given.threads else []
        command = [sys.executable, __file__, str(given.store), "--task", task, *threads]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        result = json.loads(done.stdout)
        numbers = [result.pop(name) for name in ("seconds", "cpu_seconds", "peak_mb")]
        more = "  ".join(f"{name} {value}" for name, value in result.items())
        sys.stdout.write(f"{task:<12}{numbers[0]:>8.0f}{numbers[1]:>8.0f}{numbers[2]:>9.0f}  {more}\n")


if __name__ == "__main__":
    main()
