"""The extraction job: does what is missing, once, whatever happened before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grace_store.base.errors import Interrupted, NotAStore, ResumeMismatch, SettingError, StoreBusy
from grace_store.base.events import Event, Note, Started, UnitCommitted
from grace_store.base.settings import ExtractSpec
from grace_store.run.engines.engine import EngineOptions, ExtractJob
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.run.status import status
from grace_store.run.verify import verify
from grace_store.store import lock
from grace_store.store.backend import LOCKS
from grace_store.store.opened import Store
from tests.fake_model import CALLS_FILE, GATE, Gate, make_fake_model
from tests.jobs import HELD, NUM_RECORDS, NUM_USABLE, content, make_job, processes
from tests.mortal_backend import Crash, MortalBackend


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
    view = extract(make_job(tmp_path, request=ExtractSpec(max_length=140)))
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


CRASH_STRIDE = 3
"""Every third operation is a crash point, from two starts that may run side by side; torture kills anywhere."""


@pytest.mark.parametrize("first", [1, 2])
def test_killed_anywhere_then_resumed_is_byte_identical(
    tmp_path: Path, mortal: type[MortalBackend], monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    # Nothing here depends on the disk's cache, and thousands of syncs take minutes.
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    settings: dict[str, Any] = {"samples_per_unit": 8, "request": ExtractSpec(storage="float32")}
    num_units = 3
    extract(make_job(tmp_path, "count.zarr", **settings))
    finished = content(tmp_path / "count.zarr")
    num_operations = mortal.num_operations
    assert num_operations > 100, num_operations
    calls = tmp_path / "calls"
    monkeypatch.setenv(CALLS_FILE, str(calls))
    for crash_at in range(first, num_operations + 1, CRASH_STRIDE):
        job = make_job(tmp_path, f"crash-{crash_at}.zarr", **settings)
        mortal.revive(crash_at)
        with pytest.raises(Crash):
            extract(job)
        mortal.revive()
        committed = _committed(job)
        calls.unlink(missing_ok=True)
        store = extract(job).store
        assert content(job.store) == finished, f"crash at operation {crash_at}"
        # A probe for the estimate comes first; then no unit that was committed is computed again.
        num_calls = len(calls.read_text().split()) - 1 if calls.exists() else 0
        assert num_calls == num_units - committed if num_calls > 0 else committed == num_units
        assert status(store).num_done == NUM_USABLE


def _committed(job: ExtractJob) -> int:
    if not (Path(job.store) / "signals/base/zarr.json").exists():
        return 0
    return len(Store.open(job.store).signal("base").committed_units())


def test_stopped_then_resumed_is_byte_identical(tmp_path: Path, finished: dict[str, str]) -> None:
    stop = threading.Event()

    def stop_at_second(event: Event) -> None:
        if isinstance(event, UnitCommitted) and event.unit >= 1:
            stop.set()

    job = make_job(tmp_path)
    with pytest.raises(Interrupted, match="Run the same command again"):
        extract(job, stop_at_second, stop)
    counts = status(Store.open(job.store))
    assert 0 < counts.num_planned < NUM_USABLE
    assert counts.num_records == counts.num_planned + counts.num_done + counts.num_set_aside
    extract(job)
    assert content(job.store) == finished


def test_a_run_killed_before_the_totals_leaves_nothing_after_the_next(tmp_path: Path, finished: dict[str, str]) -> None:
    job = make_job(tmp_path)
    extract(job)
    totals = Path(job.store) / "ledger/complete/base.json"
    totals.unlink()
    extract(job)
    assert content(job.store) == finished
    assert list((Path(job.store) / "ledger/tmp").iterdir()) == []


def test_shards_together_make_the_same_store(tmp_path: Path, finished: dict[str, str]) -> None:
    job = make_job(tmp_path)
    notes: list[Event] = []
    extract(replace(job, shard=(1, 3)), notes.append)
    assert any("Other shards" in event.text for event in notes if isinstance(event, Note))
    extract(replace(job, shard=(0, 3)))
    extract(replace(job, shard=(2, 3)))
    assert content(job.store) == finished


def test_two_signals_live_in_one_store(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    extract(job)
    other = make_fake_model(tmp_path / "other", "other weights")
    view = extract(replace(job, model=other, signal="other", request=ExtractSpec(storage="int4")))
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
    "dtype": (lambda job: replace(job, request=ExtractSpec(dtype="bfloat16")), "dtype: begun with float32, now bf"),
    "storage": (lambda job: replace(job, request=ExtractSpec(storage="int4")), "storage: begun with int8, now int4"),
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
    before = content(job.store)
    change, message = REFUSALS[name]
    with pytest.raises(ResumeMismatch, match=message) as caught:
        extract(change(job))
    assert "Leave these options out" in str(caught.value)
    assert content(job.store) == before


def test_without_plan_and_data_it_asks_for_data(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Give the dataset with --data"):
        extract(make_job(tmp_path, data=()))
    assert not (tmp_path / "store.zarr").exists()


def test_without_signal_and_model_it_asks_for_the_model(tmp_path: Path) -> None:
    job = make_job(tmp_path, model=None)
    with pytest.raises(SettingError, match="Give the model with --model") as refused:
        extract(job)
    assert refused.value.__notes__ == ["Nothing was planned."]
    assert not Path(job.store).exists()
    plan(job.data, job.store, job.data_request, samples_per_unit=4)
    with pytest.raises(SettingError, match=r"has no signal 'base' yet\. Give the model with --model"):
        extract(job)


def test_a_second_run_at_once_is_refused(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    extract(make_job(tmp_path, "other.zarr"))
    plan(job.data, job.store, job.data_request, samples_per_unit=4)
    store = Store.open(job.store)
    with lock.hold(store.backend, "base"), pytest.raises(StoreBusy, match="is being written by process"):
        extract(job)
    extract(job)


# ---------------------------------------------------------------- fenced off


def taken_over(job: ExtractJob) -> None:
    theirs = {"host": "another-machine", "pid": 7, "since": "today"}
    (Path(job.store) / LOCKS / "base.0-of-1.json").write_text(json.dumps(theirs))


def renamed(job: ExtractJob) -> None:
    Path(job.store).rename(f"{job.store}.moved")


def deleted(job: ExtractJob) -> None:
    Path(job.store).rename(f"{job.store}.moved")  # at once, as a listing would see it
    shutil.rmtree(f"{job.store}.moved")


def part_renamed(job: ExtractJob) -> None:
    (Path(job.store) / "signals").rename(f"{job.store}/moved")


def document_deleted(job: ExtractJob) -> None:
    (Path(job.store) / "zarr.json").unlink()


def lock_deleted(job: ExtractJob) -> None:
    (Path(job.store) / LOCKS / "base.0-of-1.json").unlink()


@pytest.mark.usefixtures("repo_on_path")
@pytest.mark.parametrize("engine", [EngineOptions(), processes("cpu", "cpu")], ids=["here", "processes"])
@pytest.mark.parametrize(
    ("what_happens", "error", "words"),
    [
        (taken_over, StoreBusy, "lock .* was taken over by process 7 on another-machine"),
        (renamed, NotAStore, "store.zarr is gone: the store was deleted or renamed.*with the new name"),
        (deleted, NotAStore, "store.zarr is gone"),
        (part_renamed, NotAStore, "signals/base/zarr.json is gone: .* renamed during the run.*rename it back"),
        (document_deleted, NotAStore, "store.zarr/zarr.json is gone: .* deleted .*verify --repair"),
        (lock_deleted, StoreBusy, r"the lock of this run \(.*\) is gone\. Somebody deleted it"),
    ],
)
def test_a_run_that_may_no_longer_write_stops_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: EngineOptions,
    what_happens: Callable[[ExtractJob], None],
    error: type[Exception],
    words: str,
) -> None:
    job = make_job(tmp_path, engine=engine)
    gate = Gate(tmp_path / "gate")
    gate.folder.mkdir()
    if engine.name == "processes":
        monkeypatch.setenv(GATE, str(gate.folder))
        gate.hold(*HELD)  # so that just one unit is committed
    written: list[int] = []

    def after_the_first(event: Event) -> None:
        if isinstance(event, UnitCommitted):
            written.append(event.unit)
            what_happens(job)
            gate.let_go()

    with pytest.raises(error, match=words):
        extract(job, after_the_first)
    assert len(written) == 1
    if what_happens in (renamed, deleted):
        assert not Path(job.store).exists()
    else:
        commits = Path(job.store) / "ledger/commits/base"
        assert [int(path.stem) for path in commits.iterdir()] == written


# ---------------------------------------------------------------- killed


RUN_JOB = """
import json, os, sys
from pathlib import Path
from grace_store.base.events import UnitCommitted
from grace_store.run.extract import extract
from grace_store.run.engines.engine import EngineOptions
from tests.jobs import make_job, processes

def say(event):
    if isinstance(event, UnitCommitted):
        print("committed", flush=True)

if __name__ == "__main__":
    extract(make_job(Path(sys.argv[1]), engine=processes(*sys.argv[2:]) if sys.argv[2:] else EngineOptions()), say)
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
    committed = len(Store.open(job.store).signal("base").committed_units())
    assert committed >= 1
    extract(job)
    assert content(job.store) == finished
