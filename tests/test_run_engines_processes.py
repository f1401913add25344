"""One process a device: the same store, whatever dies on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from grace_store.base.errors import WorkerDied
from grace_store.base.events import Event, Rated, Started, UnitCommitted, Warned
from grace_store.base.settings import RunOptions
from grace_store.cli.progress import ProgressDisplay
from grace_store.run.engines.engine import EngineOptions
from grace_store.run.extract import extract, missing_units
from grace_store.store.opened import Store
from tests.fake_model import GATE, Gate
from tests.jobs import FIRST_SAMPLES, HELD, NUM_UNITS, content, make_job, processes


@pytest.fixture
def finished(tmp_path: Path) -> dict[str, str]:
    """The content of a store that one process wrote."""
    extract(make_job(tmp_path, "whole.zarr"))
    return content(tmp_path / "whole.zarr")


@pytest.mark.usefixtures("repo_on_path")
def test_workers_make_the_same_store(tmp_path: Path, finished: dict[str, str]) -> None:
    job = make_job(tmp_path, engine=processes("cpu", "cpu"))
    events: list[Event] = []
    extract(job, events.append)
    assert content(job.store) == finished
    assert sorted(event.unit for event in events if isinstance(event, UnitCommitted)) == list(range(NUM_UNITS))
    assert len([event for event in events if isinstance(event, Rated)]) == 1  # of both workers together


@pytest.mark.usefixtures("repo_on_path")
def test_begun_here_and_finished_by_workers_is_the_same(tmp_path: Path, finished: dict[str, str]) -> None:
    job = make_job(tmp_path)
    extract(replace(job, shard=(0, 2)))
    extract(replace(job, engine=processes("cpu", "cpu", "cpu")))
    assert content(job.store) == finished


@pytest.mark.usefixtures("repo_on_path")
def test_a_unit_that_kills_workers_is_given_up_and_the_others_are_done(
    tmp_path: Path, finished: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODEL_KILLED_BY", "case-9")
    job = make_job(tmp_path, engine=processes("cpu", "cpu"))
    events: list[Event] = []
    for _ in range(2):  # the second time, the killer is the unit that the probe is taken from
        with pytest.raises(WorkerDied, match=r"they ran units \[2\]; all other units are committed"):
            extract(job, events.append)
        assert missing_units(Store.open(job.store).signal("base")) == [2]
    assert any("will be redone" in event.text for event in events if isinstance(event, Warned))
    monkeypatch.delenv("FAKE_MODEL_KILLED_BY")
    extract(job)
    assert content(job.store) == finished


@pytest.mark.usefixtures("repo_on_path")
def test_when_the_probe_kills_the_workers_the_run_goes_on_without_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that replace dead ones do not know how fast they are, and the display divides by that."""
    monkeypatch.setenv("FAKE_MODEL_KILLED_BY", "case-12")
    job = make_job(tmp_path, engine=processes("cpu"))
    with ProgressDisplay() as display, pytest.raises(WorkerDied, match=r"units \[3\]; all other units are committed"):
        extract(job, display)


@pytest.mark.usefixtures("repo_on_path")
def test_a_device_that_does_not_start_is_left_out_and_the_others_go_on(
    tmp_path: Path, finished: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path / "gate")
    gate.folder.mkdir()
    gate.hold(*HELD)  # so that there is work as long as the device is tried
    monkeypatch.setenv(GATE, str(gate.folder))
    monkeypatch.setenv("FAKE_MODEL_BAD_DEVICE", "7")
    warnings: list[str] = []

    def let_go_when_left_out(event: Event) -> None:
        if isinstance(event, Warned):
            warnings.append(event.text)
            if "does not start and is not started again" in event.text:
                gate.let_go()

    job = make_job(tmp_path, engine=processes("cpu", "7"))
    extract(job, let_go_when_left_out)
    assert content(job.store) == finished
    assert [text.partition(".")[0] for text in warnings] == [
        "Worker 1 (device 7) does not start",
        "Worker 1 (device 7) does not start and is not started again",
    ]


@pytest.mark.usefixtures("repo_on_path")
def test_without_any_device_that_starts_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MODEL_BAD_DEVICE", "7")
    with pytest.raises(WorkerDied, match="No worker is left, and 6 units must still be done"):
        extract(make_job(tmp_path, engine=processes("7")))


@pytest.mark.usefixtures("repo_on_path")
def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    extract(replace(job, shard=(0, 2)))
    changed = Path(job.data[0]).read_text().replace("case 23", "case XX")

    def change_data(event: Event) -> None:
        if isinstance(event, Started):
            Path(job.data[0]).write_text(changed)

    with pytest.raises(WorkerDied, match="is not what it was"):
        extract(replace(job, engine=processes("cpu")), change_data)


@pytest.mark.usefixtures("repo_on_path")
@pytest.mark.parametrize("engine", [EngineOptions("here"), processes("cpu")], ids=["here", "worker"])
def test_a_device_that_does_not_finish_a_unit_is_told_of_once(tmp_path, monkeypatch, engine: EngineOptions) -> None:
    (tmp_path / "gate").mkdir()
    gate = Gate(tmp_path / "gate")
    gate.hold(FIRST_SAMPLES[0])
    monkeypatch.setenv(GATE, str(gate.folder))
    warnings: list[str] = []

    def let_go_when_told(event: Event) -> None:
        if isinstance(event, Warned):
            warnings.append(event.text)
            gate.let_go()

    job = make_job(tmp_path, engine=engine, options=RunOptions(patience=1))
    view = extract(job, let_go_when_told)
    assert view.completion() is not None
    (told,) = [text for text in warnings if "has not finished unit 0 within 1 seconds (--patience)" in text]
    assert "run the same command again" in told
    assert told.startswith("Worker 0: " if engine.devices else "The device")
