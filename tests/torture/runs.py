"""A small job of the real command line on the fake model, in this process or a forked one, and what it must leave.

Nothing here opens a store with zarr in the process that forks: its threads would not survive in the children.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shutil
import sys
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace_store.cli import main
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extractor_protocol import PROXY
from grace_store.store import lock
from grace_store.store.backend import COMMITS, LOCKS, TMP
from tests.fake_model import CALLS_FILE, make_fake_model
from tests.jobs import content, write_dataset

# What commands import when they are called, imported once for all forked processes.
for module in ("plan", "extract", "status", "verify", "score", "select", "inspect"):
    importlib.import_module(f"grace_store.cli.{module}")
for module in ("scoring.score", "choose.select", "study.inspect", "run.verify", "run.status", "run.engines.engine"):
    importlib.import_module(f"grace_store.{module}")

SAMPLES_PER_UNIT = 8
NUM_UNITS = 3
CRASHED = 70
"""Exit code of a command that ended with a traceback."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code (negative: the signal that killed it) and all that it said."""

    code: int
    text: str

    @property
    def has_traceback(self) -> bool:
        return self.code == CRASHED or "Traceback (most recent call last)" in self.text


@contextlib.contextmanager
def fake_model_door() -> Iterator[None]:
    """Let jobs that name no door, as those of the command line, go through the one without a model."""
    init: Any = ExtractJob.__init__
    before = init.__defaults__
    init.__defaults__ = tuple("tests.fake_model" if value == PROXY else value for value in before)
    try:
        yield
    finally:
        init.__defaults__ = before


def command(words: list[str]) -> int:
    """Run the command line in this process and return its exit code."""
    try:
        with fake_model_door():
            main(words, prog_name="grace-store")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - reported as what it is, a crash
        traceback.print_exc()
        return CRASHED
    return 0


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Let what runs meanwhile look like a process of its own to the locks: afterwards, it is dead."""
    real, me, birth = lock.process_started, os.getpid(), uuid.uuid4().hex
    lock.process_started = lambda pid: birth if pid == me else real(pid)
    try:
        yield
    finally:
        lock.process_started = real


def run_here(words: list[str]) -> Outcome:
    """Run a command in this process."""
    said = io.StringIO()
    with own_process(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = command(words)
    return Outcome(code, said.getvalue())


def start_child(words: list[str], said: Path, environment: dict[str, str] | None = None) -> int:
    """Fork a process that runs a command and writes what it says to a file; return its number."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ.update(environment or {})
        with said.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            code = command(words)
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)


def end_child(pid: int, said: Path) -> Outcome:
    """Wait for a forked command."""
    _, status = os.waitpid(pid, 0)
    return Outcome(os.waitstatus_to_exitcode(status), said.read_text(errors="replace"))


@dataclass(frozen=True)
class SmallJob:
    """Plan, extract, verify and score a dataset of three units; every store of one folder has the same inputs."""

    folder: Path

    def __post_init__(self) -> None:
        if not (self.folder / "traces.jsonl").exists():
            write_dataset(self.folder / "traces.jsonl")
            make_fake_model(self.folder / "model")

    def store(self, name: str) -> Path:
        return self.folder / name

    def plan(self, name: str) -> list[str]:
        return ["plan", str(self.store(name)), str(self.folder / "traces.jsonl"), "--min-steps", "2",
                "--unit-samples", str(SAMPLES_PER_UNIT)]  # fmt: skip

    def extract(self, name: str, *more: str) -> list[str]:
        return ["extract", str(self.store(name)), "--data", str(self.folder / "traces.jsonl"),
                "--model", str(self.folder / "model"), "--min-steps", "2",
                "--unit-samples", str(SAMPLES_PER_UNIT), "--device", "cpu", *more]  # fmt: skip

    def score(self, name: str) -> list[str]:
        return ["score", str(self.store(name)), "--out", str(self.table(name))]

    def table(self, name: str) -> Path:
        return self.folder / f"{name}.parquet"

    def writing(self, name: str) -> list[list[str]]:
        return [self.plan(name), self.extract(name)]

    def reading(self, name: str) -> list[list[str]]:
        store = str(self.store(name))
        return [["status", store, "--json"], ["verify", "--deep", store], self.score(name)]

    def remove(self, name: str) -> None:
        shutil.rmtree(self.store(name), ignore_errors=True)
        self.table(name).unlink(missing_ok=True)

    def committed(self, name: str, signal: str = "base") -> list[int]:
        folder = self.store(name) / COMMITS / signal
        return sorted(int(path.stem) for path in folder.glob("*.json")) if folder.is_dir() else []

    def first_ids(self) -> dict[str, int]:
        """Return {id of a unit's first sample: the unit}."""
        return {f"case-{unit * SAMPLES_PER_UNIT}": unit for unit in range(NUM_UNITS)}


def left_behind(store: Path) -> list[str]:
    """Return what no finished run may leave: temporary files and folders, and locks."""
    return [str(path.relative_to(store)) for part in (TMP, LOCKS) for path in sorted((store / part).glob("*"))]


@contextlib.contextmanager
def computed(job: SmallJob, units: list[int]) -> Iterator[None]:
    """Yield, then put the units that were computed meanwhile into the list."""
    calls = job.folder / f"calls-{os.getpid()}"
    os.environ[CALLS_FILE] = str(calls)
    try:
        yield
        ids = calls.read_text().split() if calls.exists() else []
        units += [job.first_ids()[each] for each in ids]
    finally:
        del os.environ[CALLS_FILE]
        calls.unlink(missing_ok=True)


def differences(now: dict[str, str], whole: dict[str, str]) -> list[str]:
    """Return which files of a store are not those of an uninterrupted one, at most a few by name."""
    wrong = [f"{key} differs" for key in sorted(now.keys() | whole.keys()) if now.get(key) != whole.get(key)]
    return wrong if len(wrong) <= 3 else [*wrong[:3], f"{len(wrong) - 3} more differ"]


def wrong_after(job: SmallJob, name: str, whole: dict[str, str], before: list[int], again: list[int]) -> list[str]:
    """Return what is not as it must be after a fault and a rerun.

    before: units that were committed after the fault; again: units that the rerun computed.
    """
    wrong = differences(content(job.store(name)), whole)
    wrong += [f"{path} is left" for path in left_behind(job.store(name))]
    if repeated := sorted(set(before) & set(again)):
        wrong.append(f"units {repeated} were committed and computed again")
    return wrong
