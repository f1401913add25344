"""The extraction job: does what is missing, once, whatever happened before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grace_store.base.errors import Interrupted, ResumeMismatch, SettingError, StoreBusy, WorkerDied
from grace_store.base.events import Event, Note, Rated, Started, UnitCommitted, Warned
from grace_store.base.settings import ExtractRequest, RunOptions
from grace_store.cli.progress import ProgressDisplay
from grace_store.run.extract import ExtractJob, extract, missing_units
from grace_store.run.plan import plan
from grace_store.run.status import status
from grace_store.run.verify import verify
from grace_store.store import backend, lock
from grace_store.store.opened import Store
from tests.fake_model import CALLS_FILE, make_fake_model
from tests.jobs import NUM_RECORDS, NUM_UNITS, NUM_USABLE, content, make_job


class Crash(BaseException):
    """Stands for SIGKILL: nothing may catch it and go on writing."""


class MortalBackend(backend.LocalBackend):
    """Dies at the n-th thing it does to the disk, half-way through if asked, and does nothing after that."""

    crash_at = -1
    num_operations = 0
    dead = False

    @classmethod
    def revive(cls, crash_at: int = -1) -> None:
        cls.crash_at, cls.num_operations, cls.dead = crash_at, 0, False

    @classmethod
    def step(cls) -> None:
        if cls.dead:
            raise Crash
        cls.num_operations += 1
        if cls.num_operations == cls.crash_at:
            cls.dead = True
            raise Crash

    def _write_tmp(self, value: bytes) -> Path:
        try:
            self.step()
        except Crash:
            if MortalBackend.num_operations == MortalBackend.crash_at:
                super()._write_tmp(value[: len(value) // 2])
            raise
        tmp = super()._write_tmp(value)
        self.step()
        return tmp

    def write(self, key: str, value: bytes) -> None:
        super().write(key, value)
        self.step()

    def delete(self, *keys: str) -> None:
        self.step()
        super().delete(*keys)

    def delete_tree(self, prefix: str) -> None:
        self.step()
        super().delete_tree(prefix)


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> type[MortalBackend]:
    """Every backend is mortal."""
    MortalBackend.revive()
    monkeypatch.setattr(backend, "LocalBackend", MortalBackend)
    return MortalBackend


@pytest.fixture
def finished(tmp_path: Path) -> dict[str, str]:
    """The content of an uninterrupted store."""
    extract(make_job(tmp_path, "whole.zarr"))
    return content(tmp_path / "whole.zarr")


def test_counts_add_up_and_the_store_is_sound(tmp_path: Path) -> None:
    view = extract(make_job(tmp_path))
    counts = status(view.store)
    assert counts.num_records == NUM_RECORDS == counts.num_planned + counts.num_done + counts.num_set_aside
    assert counts.num_done == NUM_USABLE
    assert counts.set_aside == {"bad_json": 1, "duplicate_id": 1, "too_few_steps": 1}
    assert list(verify(view.store, deep=True)) == []


def test_set_aside_while_extracting_is_counted_with_its_reason(tmp_path: Path) -> None:
    view = extract(make_job(tmp_path, request=ExtractRequest(max_length=140)))
    counts = status(view.store)
    assert counts.set_aside["too_long"] > 0
    assert counts.num_records == counts.num_planned + counts.num_done + counts.num_set_aside
    assert list(verify(view.store, deep=True)) == []


def test_running_again_computes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extract(make_job(tmp_path))
    before = content(tmp_path / "store.zarr")
    monkeypatch.setenv(CALLS_FILE, str(tmp_path / "calls"))
    events: list[Event] = []
    extract(ExtractJob(str(tmp_path / "store.zarr"), door="tests.fake_model"), events.append)
    assert not (tmp_path / "calls").exists()
    assert content(tmp_path / "store.zarr") == before
    started = next(event for event in events if isinstance(event, Started))
    assert (started.num_units, started.num_samples_skipped) == (0, NUM_USABLE)


def test_what_another_run_did_while_this_one_waited_for_the_lock_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path)

    def hold_after_another(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        extract(job)
        monkeypatch.setenv(CALLS_FILE, str(tmp_path / "calls"))
        return lock.hold(*arguments, **options)

    monkeypatch.setattr("grace_store.run.extract.hold", hold_after_another)
    view = extract(job)
    assert not (tmp_path / "calls").exists()
    assert status(view.store).num_done == NUM_USABLE


NUM_PARTS = 4
"""The crash points are shared out over so many tests, which may run side by side."""


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_killed_anywhere_then_resumed_is_byte_identical(
    tmp_path: Path, mortal: type[MortalBackend], monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    # Nothing here depends on the disk's cache, and thousands of syncs take minutes.
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    settings: dict[str, Any] = {"samples_per_unit": 8, "request": ExtractRequest(storage="float32")}
    num_units = 3
    extract(make_job(tmp_path, "count.zarr", **settings))
    finished = content(tmp_path / "count.zarr")
    num_operations = mortal.num_operations
    assert num_operations > 100, num_operations
    calls = tmp_path / "calls"
    monkeypatch.setenv(CALLS_FILE, str(calls))
    for crash_at in range(1 + part, num_operations + 1, NUM_PARTS):
        job = make_job(tmp_path, f"crash-{crash_at}.zarr", **settings)
        mortal.revive(crash_at)
        with pytest.raises(Crash):
            extract(job)
        mortal.revive()
        committed = _committed(job)
        calls.unlink(missing_ok=True)
        store = extract(job).store
        assert content(job.location) == finished, f"crash at operation {crash_at}"
        # A trial for the estimate comes first; then no unit that was committed is computed again.
        num_calls = len(calls.read_text().split()) - 1 if calls.exists() else 0
        assert num_calls == num_units - committed if num_calls > 0 else committed == num_units
        assert status(store).num_done == NUM_USABLE


def _committed(job: ExtractJob) -> int:
    if not (Path(job.location) / "signals/base/zarr.json").exists():
        return 0
    return len(Store.open(job.location).signal("base").committed_units())


def test_stopped_then_resumed_is_byte_identical(tmp_path: Path, finished: dict[str, str]) -> None:
    stop = threading.Event()

    def stop_at_second(event: Event) -> None:
        if isinstance(event, UnitCommitted) and event.unit >= 1:
            stop.set()

    job = make_job(tmp_path, options=RunOptions(queue_units=1))
    with pytest.raises(Interrupted, match="run the same command again"):
        extract(job, stop_at_second, stop)
    counts = status(Store.open(job.location))
    assert 0 < counts.num_planned < NUM_USABLE
    assert counts.num_records == counts.num_planned + counts.num_done + counts.num_set_aside
    extract(job)
    assert content(job.location) == finished


def test_a_run_killed_before_the_totals_leaves_nothing_after_the_next(tmp_path: Path, finished: dict[str, str]) -> None:
    job = make_job(tmp_path)
    extract(job)
    totals = Path(job.location) / "ledger/complete/base.json"
    totals.unlink()
    extract(job)
    assert content(job.location) == finished
    assert list((Path(job.location) / "ledger/tmp").iterdir()) == []


def test_shards_together_make_the_same_store(tmp_path: Path, finished: dict[str, str]) -> None:
    job = make_job(tmp_path)
    notes: list[Event] = []
    extract(replace(job, shard=(1, 3)), notes.append)
    assert any("other shards" in event.text for event in notes if isinstance(event, Note))
    extract(replace(job, shard=(0, 3)))
    extract(replace(job, shard=(2, 3)))
    assert content(job.location) == finished


def test_two_signals_live_in_one_store(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    extract(job)
    other = make_fake_model(tmp_path / "other", "other weights")
    view = extract(replace(job, model=other, signal="other", request=ExtractRequest(storage="int4")))
    counts = status(view.store)
    assert set(counts.signals) == {"base", "other"}
    assert counts.is_complete
    assert list(verify(view.store, deep=True)) == []


# ---------------------------------------------------------------- refused


def changed_weights(job: ExtractJob) -> ExtractJob:
    (Path(job.model or "") / "weights").write_text("other")
    return job


REFUSALS: dict[str, tuple[Any, str]] = {
    "weights": (changed_weights, r"model weights: begun with .*, now "),
    "dtype": (lambda job: replace(job, request=ExtractRequest(dtype="bfloat16")), "dtype: begun with float32, now bf"),
    "storage": (lambda job: replace(job, request=ExtractRequest(storage="int4")), "storage: begun with int8, now int4"),
    "min_steps": (
        lambda job: replace(job, data_request=job.data_request.model_copy(update={"min_steps": 3})),
        "min-steps: planned 2, now 3",
    ),
    "splitter": (
        lambda job: replace(job, data_request=job.data_request.model_copy(update={"splitter": "lines"})),
        "splitter: planned 'format', now 'lines'",
    ),
    "units": (lambda job: replace(job, samples_per_unit=8), "unit-samples: planned 4, now 8"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_other_settings_are_refused_with_a_difference(tmp_path: Path, name: str) -> None:
    job = make_job(tmp_path)
    extract(job)
    before = content(job.location)
    change, message = REFUSALS[name]
    with pytest.raises(ResumeMismatch, match=message) as caught:
        extract(change(job))
    assert "Leave those options out" in str(caught.value)
    assert content(job.location) == before


def test_without_plan_and_data_it_asks_for_data(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="give the dataset with --data"):
        extract(make_job(tmp_path, data=()))
    assert not (tmp_path / "store.zarr").exists()


def test_without_signal_and_model_it_asks_for_the_model(tmp_path: Path) -> None:
    job = make_job(tmp_path, model=None)
    with pytest.raises(SettingError, match=r"Say which --model to extract with\. Nothing was planned"):
        extract(job)
    assert not Path(job.location).exists()
    plan(job.data, job.location, job.data_request, samples_per_unit=4)
    with pytest.raises(SettingError, match="has no signal 'base' yet; say which --model"):
        extract(job)


def test_a_second_run_at_once_is_refused(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    extract(make_job(tmp_path, "other.zarr"))
    plan(job.data, job.location, job.data_request, samples_per_unit=4)
    store = Store.open(job.location)
    with lock.hold(store.backend, "base"), pytest.raises(StoreBusy, match="is being written by process"):
        extract(job)
    extract(job)


# ---------------------------------------------------------------- worker processes


@pytest.fixture
def repo_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes import the fake model."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))


@pytest.mark.usefixtures("repo_on_path")
def test_workers_make_the_same_store(tmp_path: Path, finished: dict[str, str]) -> None:
    job = make_job(tmp_path, devices=("cpu", "cpu"))
    events: list[Event] = []
    extract(job, events.append)
    assert content(job.location) == finished
    assert sorted(event.unit for event in events if isinstance(event, UnitCommitted)) == list(range(NUM_UNITS))
    assert len([event for event in events if isinstance(event, Rated)]) == 1  # of both workers together


@pytest.mark.usefixtures("repo_on_path")
def test_begun_here_and_finished_by_workers_is_the_same(tmp_path: Path, finished: dict[str, str]) -> None:
    job = make_job(tmp_path)
    extract(replace(job, shard=(0, 2)))
    extract(replace(job, devices=("cpu", "cpu", "cpu")))
    assert content(job.location) == finished


@pytest.mark.usefixtures("repo_on_path")
def test_a_unit_that_kills_workers_is_given_up_and_the_others_are_done(
    tmp_path: Path, finished: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODEL_KILLED_BY", "case-9")
    job = make_job(tmp_path, devices=("cpu", "cpu"), options=RunOptions(queue_units=2))
    events: list[Event] = []
    for _ in range(2):  # the second time, the killer is the unit that the trial is taken from
        with pytest.raises(WorkerDied, match=r"came to units \[2\]; all other units are committed"):
            extract(job, events.append)
        assert missing_units(Store.open(job.location).signal("base")) == [2]
    assert any("will be redone" in event.text for event in events if isinstance(event, Warned))
    monkeypatch.delenv("FAKE_MODEL_KILLED_BY")
    extract(job)
    assert content(job.location) == finished


@pytest.mark.usefixtures("repo_on_path")
def test_when_the_trial_kills_the_workers_the_run_goes_on_without_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that replace dead ones do not know how fast they are, and the display divides by that."""
    monkeypatch.setenv("FAKE_MODEL_KILLED_BY", "case-12")
    job = make_job(tmp_path, devices=("cpu",))
    with ProgressDisplay() as display, pytest.raises(WorkerDied, match=r"units \[3\]; all other units are committed"):
        extract(job, display)


@pytest.mark.usefixtures("repo_on_path")
def test_a_device_that_does_not_start_is_left_out_and_the_others_go_on(
    tmp_path: Path, finished: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODEL_BAD_DEVICE", "7")
    job = make_job(tmp_path, devices=("cpu", "7"))
    events: list[Event] = []
    extract(job, events.append)
    assert content(job.location) == finished
    assert any("does not start and is left out" in event.text for event in events if isinstance(event, Warned))


@pytest.mark.usefixtures("repo_on_path")
def test_without_any_device_that_starts_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MODEL_BAD_DEVICE", "7")
    with pytest.raises(WorkerDied, match="No worker is left, and 6 units are to do"):
        extract(make_job(tmp_path, devices=("7",)))


@pytest.mark.usefixtures("repo_on_path")
def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    extract(replace(job, shard=(0, 2)))
    changed = Path(job.data[0]).read_text().replace("case 23", "case XX")

    def change_data(event: Event) -> None:
        if isinstance(event, Started):
            Path(job.data[0]).write_text(changed)

    with pytest.raises(WorkerDied, match="is not what it was"):
        extract(replace(job, devices=("cpu",)), change_data)


RUN_JOB = """
import json, os, sys
from pathlib import Path
from grace_store.base.events import UnitCommitted
from grace_store.run.extract import extract
from tests.jobs import make_job

def say(event):
    if isinstance(event, UnitCommitted):
        print("committed", flush=True)

if __name__ == "__main__":
    extract(make_job(Path(sys.argv[1]), devices=tuple(sys.argv[2:])), say)
"""


@pytest.mark.usefixtures("repo_on_path")
@pytest.mark.parametrize("devices", [(), ("cpu", "cpu")])
def test_a_killed_parent_leaves_a_store_that_resumes(
    tmp_path: Path, finished: dict[str, str], monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_JOB, str(tmp_path), *devices], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # the first commit is there
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    job = make_job(tmp_path)
    committed = len(Store.open(job.location).signal("base").committed_units())
    assert committed >= 1
    extract(job)
    assert content(job.location) == finished


def test_environment_of_a_worker_shows_one_device() -> None:
    from grace_store.run.extract import device_environment

    assert device_environment("3") == {"CUDA_VISIBLE_DEVICES": "3"}
    assert device_environment("cpu") == {}
