"""Load: memory, open files and units in memory stay bounded however long the run, however slow disk or device.

Bounds are asserted on counts and on peak memory against ten times fewer samples; times are printed, never asserted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace_store.base.events import Event, UnitCommitted
from grace_store.base.settings import DataSpec, RunOptions
from grace_store.data.sample import Sample
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.engines.worker import QUEUE_UNITS, ListFeed, run_pipeline
from grace_store.run.extract import extract
from grace_store.run.status import status
from grace_store.store.backend import LocalBackend
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import UnitWriter
from tests.fake_model import FakeExtractor, make_fake_model
from tests.jobs import record
from tests.torture.runs import fake_model_door
from tests.torture.tally import Tally, main

TIMES = 10
"""How many times more samples the long run has."""
MEMORY_RATIO = 1.15
SAMPLES_OF_FAKE, SAMPLES_OF_TORCH, SAMPLES_TO_SCORE = 3_000, 150, 20_000
MAX_OPEN_FILES = 64
RUN_CLI = "import sys; from tests.torture.runs import command; sys.exit(command(sys.argv[1:]))"


def write_traces(path: Path, count: int) -> Path:
    with path.open("w") as file:
        for i in range(count):
            file.write(json.dumps(record(i, num_steps=4)) + "\n")
    return path


def peak_memory(words: Sequence[str], *, real_model: bool = False) -> tuple[int, int]:
    """Run a command in a process of its own; return its exit code and its peak memory in bytes."""
    start = [sys.executable, "-m", "grace_store"] if real_model else [sys.executable, "-c", RUN_CLI]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    process = subprocess.Popen([*start, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, status_, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status_)
    return process.returncode, usage.ru_maxrss << 10


def extract_words(store: Path, data: Path, model: str) -> list[str]:
    return ["extract", str(store), "--data", str(data), "--model", model, "--min-steps", "2",
            "--unit-samples", "64", "--device", "cpu", "--threads", "1"]  # fmt: skip


def memory_of_extraction(tally: Tally, folder: Path, samples: int, *, real_model: bool) -> None:
    name = "tiny torch model" if real_model else "fake model"
    if real_model:
        from tests.tiny_models import tiny_text_model

        model = str(tiny_text_model("qwen3", folder / "tiny"))
    else:
        model = make_fake_model(folder / "model")
    peaks = []
    for count in (samples, samples * TIMES):
        data = write_traces(folder / f"{count}.jsonl", count)
        code, peak = peak_memory(extract_words(folder / f"{name}-{count}.zarr", data, model), real_model=real_model)
        peaks.append(peak)
        if code:
            tally.failures.append(f"extraction of {count} samples with the {name} ended with {code}")
    judge(tally, f"extraction with the {name}", samples, peaks)


def memory_of_scoring(tally: Tally, folder: Path, samples: int) -> None:
    peaks = []
    maker = Path(__file__).parents[2] / "jobs/bench/synthetic_store.py"
    for count in (samples, samples * TIMES):
        store = folder / f"synthetic-{count}.zarr"
        subprocess.run([sys.executable, maker, store, "--samples", str(count)], check=True, stdout=subprocess.DEVNULL)
        code, peak = peak_memory(["score", str(store), "--out", str(folder / "scores.parquet")])
        peaks.append(peak)
        if code:
            tally.failures.append(f"scoring {count} samples ended with {code}")
    judge(tally, "scoring", samples, peaks)


def judge(tally: Tally, what: str, samples: int, peaks: list[int]) -> None:
    tally.tried += 1
    tally.became["peak memory flat"] += 1
    tally.figures |= {f"{what}, MB of {samples}": peaks[0] >> 20, f"{what}, MB of {samples * TIMES}": peaks[1] >> 20}
    if peaks[1] > peaks[0] * MEMORY_RATIO:
        tally.failures.append(f"{what}: {peaks[0]} bytes for {samples} samples, {peaks[1]} for {TIMES} times as many")


class Counted(FakeExtractor):
    """Counts the units between reading, computing and committing, and is slow if told to."""

    def __init__(self, view: SignalView, seconds: float) -> None:
        super().__init__(view.signal.spec)
        self.read = self.computed = self.committed = 0
        self.most_read = self.most_computed = self.most_files = 0
        self._seconds = seconds
        self._lock = threading.Lock()

    def prepare(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        with self._lock:
            self.read += 1
            self.most_read = max(self.most_read, self.read - self.computed)
        return super().prepare(samples)

    def compute(self, prepared: Sequence[Sample]) -> Any:
        time.sleep(self._seconds)
        with self._lock:
            self.computed += 1
            self.most_computed = max(self.most_computed, self.computed - self.committed)
            self.most_files = max(self.most_files, len(os.listdir("/proc/self/fd")))  # noqa: PTH208
        return super().compute(prepared)

    def tell(self, event: Event) -> None:
        if isinstance(event, UnitCommitted):
            with self._lock:
                self.committed += 1


class SlowBackend(LocalBackend):
    """A disk that takes its time."""

    def write(self, key: str, value: bytes) -> None:
        time.sleep(0.001)
        super().write(key, value)


def back_pressure(tally: Tally, folder: Path, count: int, *, slow: str) -> None:
    """Run units on a slow disk or device, and look how many are in memory at a time."""
    data = write_traces(folder / f"{slow}.jsonl", count * 4)
    job = ExtractJob(
        str(folder / f"{slow}.zarr"), make_fake_model(folder / "model"), (str(data),), samples_per_unit=4,
        shard=(0, 2 * count), data_request=DataSpec(min_steps=2), door="tests.fake_model",
    )  # fmt: skip
    extract(job)  # one unit, so that the signal is there
    backend = (SlowBackend if slow == "disk" else LocalBackend)(Path(job.store))
    view = Store.open(backend).signal("base")
    options = RunOptions(loader_threads=2)
    counted = Counted(view, 0.002 if slow == "device" else 0.0)
    with open_dataset(view.store) as dataset:
        feed = ListFeed(range(1, count), threading.Event())
        run_pipeline(UnitWriter(view), feed, UnitLoader(view.store, dataset), counted, options, counted.tell)
    tally.tried += 1
    tally.became["queues bounded"] += 1
    tally.figures |= {
        f"units read ahead, slow {slow}": counted.most_read,
        f"units waiting to be written, slow {slow}": counted.most_computed,
        f"open files, slow {slow}": counted.most_files,
    }
    # Read: those waiting, and the one that is being taken. Computed: those waiting, one being written, one just done.
    if counted.most_read > QUEUE_UNITS + 2 or counted.most_computed > QUEUE_UNITS + 2:
        tally.failures.append(f"slow {slow}: {counted.most_read} units read ahead, {counted.most_computed} computed")
    if counted.most_files > MAX_OPEN_FILES:
        tally.failures.append(f"slow {slow}: {counted.most_files} files were open at once")
    if (counted.computed, counted.committed) != (count - 1, count - 1):
        tally.failures.append(f"slow {slow}: {counted.computed} units computed, {counted.committed} committed")


def many_units(tally: Tally, folder: Path, count: int) -> None:
    """Extract thousands of units, then run again, which does nothing, and ask for the status."""
    data = write_traces(folder / "many.jsonl", count)
    job = ExtractJob(
        str(folder / "many.zarr"), make_fake_model(folder / "model"), (str(data),), samples_per_unit=1,
        data_request=DataSpec(min_steps=2), door="tests.fake_model",
    )  # fmt: skip
    with fake_model_door():
        extract(job)
        began = time.monotonic()
        extract(job)
        resumed = time.monotonic()
        counts = status(Store.open(job.store))
    tally.tried += 1
    tally.became["thousands of units"] += 1
    tally.figures |= {
        "units": count,
        "s to run again": round(resumed - began, 2),
        "s for status": round(time.monotonic() - resumed, 2),
    }
    if counts.num_done != count or not counts.is_complete:
        tally.failures.append(f"{counts.num_done} of {count} samples are done")


def torture(seed: int, count: int, folder: Path) -> Tally:
    """Put a load of so many units on everything that should not mind; if they are few, without long runs."""
    tally = Tally("load")
    back_pressure(tally, folder, min(count, 200), slow="disk")
    back_pressure(tally, folder, min(count, 200), slow="device")
    many_units(tally, folder, count)
    if count >= FULL_COUNT:
        memory_of_extraction(tally, folder, SAMPLES_OF_FAKE, real_model=False)
        memory_of_extraction(tally, folder, SAMPLES_OF_TORCH, real_model=True)
        memory_of_scoring(tally, folder, SAMPLES_TO_SCORE)
    return tally


FULL_COUNT = 5000
"""From here on, the memory of long runs is measured too."""

if __name__ == "__main__":
    main(torture, count=FULL_COUNT)
