"""Measure scoring as DESIGN section 9 asks: the paper's 27 settings over a store, against a loop over vectors.

    python jobs/bench/synthetic_store.py /tmp/million.zarr --samples 1000000
    python jobs/bench/scoring.py /tmp/million.zarr

Every measurement runs in a process of its own, which tells its peak memory. The loop is timed on a few hundred samples
and extrapolated. Nothing here is asserted anywhere: numbers belong to the machine they were measured on.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.job.blocks import BlockReader
from grace_store.job.scoring import write_score_table
from grace_store.job.settings import SettingValues, resolve_settings
from grace_store.job.sweeping import sweep_settings
from grace_store.score import Grid, SweepSpec, history_weights
from grace_store.store import SAMPLES_PER_CHUNK, Store

HISTORIES = ("uniform", "window:3", "ema:0.8")
ALPHAS = tuple(i / 10 for i in range(1, 10))
PAPER = SweepSpec(grid=(Grid(alpha=ALPHAS, history=HISTORIES),))
HIDDEN_SIZE = 2048
NUM_STEPS = 9


def loop_over_vectors(num_samples: int) -> float:
    """Return the seconds a sample takes for all settings when its vectors are at hand, one sample at a time."""
    rng = np.random.default_rng(0)
    stored = rng.standard_normal((num_samples, NUM_STEPS + 1, HIDDEN_SIZE)).astype(np.float16)
    weights = {history: history_weights(history, NUM_STEPS).astype(np.float32) for history in HISTORIES}
    began = time.perf_counter()
    for sample in stored:
        vectors = sample.astype(np.float32)
        steps, answer = vectors[:-1], vectors[-1]
        for history in HISTORIES:
            for alpha in ALPHAS:
                norm = np.linalg.norm(steps, axis=1)
                a = steps @ answer / (norm * np.linalg.norm(answer))
                past = weights[history] @ steps
                h = (steps * past).sum(axis=1)[1:] / (norm[1:] * np.linalg.norm(past, axis=1)[1:])
                np.concatenate([a[:1], alpha * a[1:] + (1 - alpha) * h]).mean()
    return (time.perf_counter() - began) / num_samples


def values_alone(store: Store, threads: int | None) -> None:
    """Read the store and compute every value, keeping none."""
    settings = resolve_settings(store, PAPER)
    names = settings[0].weights.names
    for _ in BlockReader(store, names).map(SettingValues(settings, names), threads):
        pass


def whole_sweep(store: Store, threads: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sweep_settings(store, PAPER, Path(folder) / "sweep", threads=threads)


def one_table(store: Store, threads: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_score_table(store, None, Path(folder) / "scores.parquet", threads=threads)


TASKS: dict[str, Callable[[Store, int | None], None]] = {
    "values of 27 settings, read from the store": values_alone,
    "sweep of 27 settings, with files and comparisons": whole_sweep,
    "score, one setting, with all step scores": one_table,
}


def measured(task: str, store: str, threads: int | None) -> dict[str, float]:
    """Run a task in a process of its own and return its seconds, CPU seconds and peak memory."""
    command = [sys.executable, __file__, store, "--task", task, *(["--threads", str(threads)] if threads else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def run_task(task: str, store: str, threads: int | None) -> dict[str, float]:
    opened = Store.open(store)
    began, cpu = time.perf_counter(), time.process_time()
    TASKS[task](opened, threads)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu, "peak_mb": peak}


def bytes_read(store: Store) -> float:
    """Return how many bytes a sample scoring reads."""
    view = store.signal()
    root = Path(store.location)
    arrays = [root / view.key / name for name in ("sample_gram", "segment_num_tokens", "sample_state")]
    arrays += [root / "samples" / name for name in ("sample_num_steps", "sample_row")]
    total = sum(path.stat().st_size for array in arrays for path in array.rglob("*") if path.is_file())
    return total / store.plan.num_samples


def report(location: str, threads: int | None, num_looped: int) -> dict[str, Any]:
    store = Store.open(location)
    num = store.plan.num_samples
    per_sample = loop_over_vectors(num_looped)
    found: dict[str, Any] = {"num_samples": num, "loop_seconds_extrapolated": per_sample * num}
    say = sys.stdout.write
    say(f"{num} samples; chunks of {SAMPLES_PER_CHUNK}\n")
    say(f"loop over float16 vectors of {HIDDEN_SIZE}: {per_sample * 1e3:.2f} ms a sample, ")
    say(f"{per_sample * num:.0f} s in all\n")
    for task in TASKS:
        result = measured(task, location, threads)
        found[task] = result
        ratio = f", {per_sample * num / result['seconds']:.0f} x faster than the loop" if "27" in task else ""
        say(f"{task}: {result['seconds']:.1f} s ({result['cpu_seconds']:.1f} s CPU), ")
        say(f"peak {result['peak_mb']:.0f} MB{ratio}\n")
    share = bytes_read(store) / ((NUM_STEPS + 1) * HIDDEN_SIZE * 2)
    found["bytes_read_a_sample"] = bytes_read(store)
    say(f"scoring reads {bytes_read(store):.0f} bytes a sample, {share:.4f} of (K+1) d float16\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--looped", type=int, default=300, help="samples to time the loop on")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        sys.stdout.write(json.dumps(run_task(given.task, given.store, given.threads)))
        return
    found = report(given.store, given.threads, given.looped)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
