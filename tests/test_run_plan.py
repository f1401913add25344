"""Planning: every record ends as a sample or set aside with a reason, once and for all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grace_store.base.errors import DatasetChanged, NotAStore, NothingUsable, ResumeMismatch, SettingError, StoreBusy
from grace_store.base.events import Event, Scanned
from grace_store.base.settings import DataRequest
from grace_store.run.plan import plan
from grace_store.run.status import set_aside_rows, status
from grace_store.store.backend import Backend, open_backend
from grace_store.store.opened import Store
from grace_store.store.plan_writer import check_claimable
from tests.jobs import NUM_RECORDS, NUM_UNITS, NUM_USABLE, content, record, write_dataset

REQUEST = DataRequest(min_steps=2)


def planned(tmp_path: Path, **changes: object) -> Store:
    data = write_dataset(tmp_path / "traces.jsonl")
    return plan([data], tmp_path / "store.zarr", REQUEST, samples_per_unit=4)


def test_every_record_is_a_sample_or_set_aside(tmp_path: Path) -> None:
    store = planned(tmp_path)
    assert (store.plan.num_records, store.plan.num_samples, store.plan.num_units) == (
        NUM_RECORDS,
        NUM_USABLE,
        NUM_UNITS,
    )
    rows = [entry["row"] for entry in set_aside_rows(store, None)]
    assert sorted([*rows, *store.column("sample_row").tolist()]) == list(range(NUM_RECORDS))
    reasons = {entry["row"]: entry["reason"] for entry in set_aside_rows(store, None)}
    assert reasons == {5: "too_few_steps", 6: "duplicate_id", 7: "bad_json"}


def test_the_first_record_with_an_id_keeps_it(tmp_path: Path) -> None:
    store = planned(tmp_path)
    assert store.find("case-0") == 0
    assert store.column("sample_row")[0] == 0


def test_planning_again_changes_nothing(tmp_path: Path) -> None:
    planned(tmp_path)
    before = content(tmp_path / "store.zarr")
    plan([tmp_path / "traces.jsonl"], tmp_path / "store.zarr")
    assert content(tmp_path / "store.zarr") == before


def test_a_plan_does_not_depend_on_where_the_store_lies(tmp_path: Path) -> None:
    planned(tmp_path)
    plan([tmp_path / "traces.jsonl"], tmp_path / "elsewhere.zarr", REQUEST, samples_per_unit=4)
    assert content(tmp_path / "store.zarr") == content(tmp_path / "elsewhere.zarr")


def test_another_number_of_files_is_refused(tmp_path: Path) -> None:
    planned(tmp_path)
    (tmp_path / "more.jsonl").write_text(json.dumps(record(99)) + "\n")
    with pytest.raises(DatasetChanged, match=r"planned from 1 file\(s\), 2 given"):
        plan([tmp_path / "traces.jsonl", tmp_path / "more.jsonl"], tmp_path / "store.zarr")


def test_other_settings_are_refused(tmp_path: Path) -> None:
    planned(tmp_path)
    with pytest.raises(ResumeMismatch, match="min-steps: planned 2, now 8"):
        plan([tmp_path / "traces.jsonl"], tmp_path / "store.zarr", DataRequest(min_steps=8))


def test_a_file_without_a_usable_record_shows_one_and_leaves_nothing(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "traces.jsonl")
    with pytest.raises(NothingUsable, match=r"too_few_steps 26.*\n.*at least 9 steps.*\n.*too_few_steps.*\n.*case-0"):
        plan([data], tmp_path / "store.zarr", DataRequest(min_steps=9))
    assert not (tmp_path / "store.zarr").exists()
    planned(tmp_path)  # and the place is free for another try


def test_a_run_without_a_usable_record_discards_nothing_of_one_that_took_over(tmp_path: Path) -> None:
    data = tmp_path / "traces.jsonl"
    data.write_text("".join(json.dumps(record(number)) + "\n" for number in range(100)))
    backend = open_backend(tmp_path / "store.zarr")

    def take_over(event: Event) -> None:
        if isinstance(event, Scanned):
            backend.write("ledger/locks/plan.0-of-1.json", b'{"host": "another-machine"}')
            backend.write("samples/zarr.json", b"theirs")

    with pytest.raises(StoreBusy, match=r"was taken over by process \? on another-machine"):
        plan([data], backend.location, DataRequest(min_steps=9), listener=take_over)
    assert backend.read("samples/zarr.json") == b"theirs"


def test_steps_that_cannot_be_are_refused_before_reading(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "traces.jsonl")
    with pytest.raises(SettingError, match="min"):
        plan([data], tmp_path / "store.zarr", DataRequest(min_steps=9, max_steps=3))


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store.zarr").mkdir()
    (tmp_path / "store.zarr" / "thesis.txt").write_text("years of work")
    with pytest.raises(NotAStore, match=r"not empty and not a grace-store store \(it holds thesis.txt\)"):
        planned(tmp_path)
    assert (tmp_path / "store.zarr" / "thesis.txt").read_text() == "years of work"


def test_a_folder_of_somebody_else_keeps_its_empty_folders_when_planning_fails(tmp_path: Path) -> None:
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"neither": "this nor that"}\n')
    project = tmp_path / "project"
    (project / ".git" / "refs").mkdir(parents=True)
    with pytest.raises(NotAStore, match="not empty and not a grace-store store"):
        plan([odd], project)
    assert [path.name for path in sorted(project.rglob("*"))] == [".git", "refs"]


def test_a_plan_that_another_process_finishes_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for_strangers = check_claimable

    def after_the_other(backend: Backend) -> None:
        monkeypatch.setattr("grace_store.run.plan.check_claimable", looked_for_strangers)
        planned(tmp_path)
        looked_for_strangers(backend)

    monkeypatch.setattr("grace_store.run.plan.check_claimable", after_the_other)
    assert planned(tmp_path).plan.num_samples == NUM_USABLE


def test_progress_is_told(tmp_path: Path) -> None:
    data = tmp_path / "traces.jsonl"
    data.write_text("".join(json.dumps(record(i)) + "\n" for i in range(3000)))
    events: list[Event] = []
    plan([data], tmp_path / "store.zarr", REQUEST, listener=events.append)
    scanned = [event for event in events if isinstance(event, Scanned)]
    assert scanned
    assert scanned[-1].num_records <= 3000
    assert scanned[-1].total_bytes == data.stat().st_size


def test_status_of_a_plan_without_signals(tmp_path: Path) -> None:
    counts = status(planned(tmp_path))
    assert (counts.num_planned, counts.num_done, counts.num_set_aside) == (NUM_USABLE, 0, 3)
    assert not counts.is_complete
