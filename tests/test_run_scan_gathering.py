"""A plan that brings the traces of a question together: in what order, from what, and that all else stays the same."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace_store.base.errors import DatasetChanged, ResumeMismatch, SettingError, StorageError
from grace_store.base.events import Event, Note, Warned
from grace_store.base.settings import DataSpec
from grace_store.cli.plan import preview_lines
from grace_store.pool.records import SampleRecords, UnitLoader, locators_at, open_dataset, rows_at
from grace_store.run.extract import extract
from grace_store.run.plan import plan, preview
from grace_store.run.scan import SampleOrder, gathered_order
from grace_store.run.verify import repair, verify
from grace_store.store.layout import PlannedSample
from grace_store.store.opened import Store
from grace_store.store.unit_writer import withdraw_units
from tests.grouped_stores import NUM_QUESTIONS, TRACES, grouped_job, grouped_records
from tests.jobs import content

EXPLICIT = {"format": "explicit", "min_steps": 1}


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def gathered(keys_of_records: list[Any]) -> list[int]:
    """Return the rows as they should come, by a dictionary; None is alone."""
    groups: dict[Any, list[int]] = {}
    for row, key in enumerate(keys_of_records):
        groups.setdefault(("alone", row) if key is None else key, []).append(row)
    return [row for rows in groups.values() for row in rows]


def rows_of(store: Store) -> list[int]:
    return store.column("sample_row").tolist()


@pytest.mark.parametrize("num_groups", [1, 7, 400])
def test_the_order_is_that_of_a_dictionary(num_groups: int) -> None:
    rng = random.Random(num_groups)
    group = [rng.randrange(num_groups) for _ in range(400)]
    assert gathered_order(np.array(group, dtype=np.uint64)).tolist() == gathered(group)
    assert gathered_order(np.zeros(0, dtype=np.uint64)).tolist() == []


def test_traces_of_a_prompt_come_together_and_nothing_else_changes(tmp_path: Path) -> None:
    records = grouped_records()
    records.insert(3, {"prompt": "no steps"})
    data = write(tmp_path / "traces.jsonl", records)
    heard: list[Event] = []
    plain = plan([data], tmp_path / "plain.zarr", DataSpec(**EXPLICIT))
    request = DataSpec(**EXPLICIT, gather=True)
    store = plan([data], tmp_path / "gathered.zarr", request, listener=heard.append)
    prompts = [record.get("prompt") if "steps" in record else None for record in records]
    assert rows_of(store) == [row for row in gathered(prompts) if row != 3]
    assert store.plan.set_aside == plain.plan.set_aside
    assert list(store.records_set_aside()) == list(plain.records_set_aside())
    assert (store.plan.spec.gather, plain.plan.spec.gather) == (True, False)
    assert Note("Gathered 28 samples of 9 questions.") in heard
    sizes = [store.plan.num_samples, store.plan.num_units, store.plan.samples_per_unit, store.plan.flagged]
    assert sizes == [plain.plan.num_samples, plain.plan.num_units, plain.plan.samples_per_unit, plain.plan.flagged]
    for row in rows_of(store):
        mine, theirs = (next(rows_at(each, each.positions_of(np.array([row])))) for each in (store, plain))
        assert (mine.sample_id, mine.offset, mine.length) == (theirs.sample_id, theirs.offset, theirs.length)
        assert (mine.digest == theirs.digest).all()
        assert mine.num_steps == theirs.num_steps


def test_a_field_says_what_belongs_together_and_a_record_without_it_is_alone(tmp_path: Path) -> None:
    records = grouped_records()
    for row in (2, 5, 20):
        del records[row]["problem"]
    data = write(tmp_path / "traces.jsonl", records)
    store = plan([data], tmp_path / "s.zarr", DataSpec(**EXPLICIT, gather=True, group_by="problem.name"))
    names = [record.get("problem", {}).get("name") for record in records]
    assert rows_of(store) == gathered(names)
    plain = plan([data], tmp_path / "plain.zarr", DataSpec(**EXPLICIT))
    groups = SampleRecords(plain).questions("problem.name").tolist()
    is_same = [[one == other for other in groups] for one in groups]
    keys = [row if name is None else name for row, name in enumerate(names)]
    assert is_same == [[one == other for other in keys] for one in keys]


@pytest.mark.parametrize("workers", [1, 2])
def test_ids_of_any_letters_survive_and_processes_change_nothing(tmp_path: Path, workers: int) -> None:
    records = [{**record, "id": f"{record['id']}·é漢{'x' * row}"} for row, record in enumerate(grouped_records())]
    data = write(tmp_path / "traces.jsonl", records)
    store = plan([data], tmp_path / "s.zarr", DataSpec(**EXPLICIT, gather=True), workers=workers)
    assert store.column("sample_id").tolist() == [records[row]["id"] for row in rows_of(store)]


def test_a_field_that_no_record_has_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    data = write(tmp_path / "traces.jsonl", grouped_records())
    with pytest.raises(SettingError, match=r"No usable record has the field 'qid'.*prompts and images"):
        plan([data], tmp_path / "s.zarr", DataSpec(**EXPLICIT, gather=True, group_by="qid"))
    assert not (tmp_path / "s.zarr" / "zarr.json").exists()


def test_a_dry_run_counts_questions_and_checks_the_field(tmp_path: Path) -> None:
    data = write(tmp_path / "traces.jsonl", grouped_records())
    found = preview([data], DataSpec(**EXPLICIT, gather=True))
    assert found.num_questions == NUM_QUESTIONS
    assert "Samples of 9 questions would be gathered." in list(preview_lines(found))
    assert preview([data], DataSpec(**EXPLICIT)).num_questions is None
    with pytest.raises(SettingError, match="has the field 'qid'"):
        preview([data], DataSpec(**EXPLICIT, gather=True, group_by="qid"))


def test_a_field_without_gathering_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "traces.jsonl", grouped_records())
    with pytest.raises(SettingError, match="--group-by works only with --gather: add --gather"):
        plan([data], tmp_path / "s.zarr", DataSpec(**EXPLICIT, group_by="problem.name"))


def test_a_plan_keeps_its_order_unless_it_is_made_anew(tmp_path: Path) -> None:
    data, place = write(tmp_path / "traces.jsonl", grouped_records()), tmp_path / "s.zarr"
    by_field = DataSpec(**EXPLICIT, gather=True, group_by="half")
    first = rows_of(plan([data], place, by_field))
    assert rows_of(plan([data], place)) == first
    with pytest.raises(ResumeMismatch, match="gather: planned True, now False"):
        plan([data], place, DataSpec(gather=False))
    assert rows_of(plan([data], place, DataSpec(min_steps=2), anew=True)) == first
    with pytest.raises(ResumeMismatch, match="group-by: planned 'half', now none"):
        plan([data], place, DataSpec(gather=True))
    by_prompt = plan([data], place, DataSpec(gather=True), anew=True)
    assert rows_of(by_prompt) == gathered([record["prompt"] for record in grouped_records()])
    assert rows_of(plan([data], place, DataSpec(group_by="half"), anew=True)) == first
    plain = plan([data], place, DataSpec(gather=False), anew=True)
    assert rows_of(plain) == sorted(first)
    assert plain.plan.spec.group_by is None


def test_files_that_are_read_forwards_are_warned_of_and_read_all_the_same(tmp_path: Path) -> None:
    data = tmp_path / "traces.jsonl.gz"
    data.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in grouped_records()).encode()))
    heard: list[Event] = []
    store = plan([data], tmp_path / "s.zarr", DataSpec(**EXPLICIT, gather=True), listener=heard.append)
    said = [event.text for event in heard if isinstance(event, Warned)]
    assert len(said) == 1
    assert said[0].startswith("traces.jsonl.gz: files of this kind can only be read from the beginning.")
    with open_dataset(store) as dataset:
        loader = UnitLoader(store, dataset)
        found = [sample.sample_id for unit in store.plan.units for sample in loader.load(unit)[0]]
    assert found == store.column("sample_id").tolist()


def test_samples_are_found_at_positions_in_any_order(tmp_path: Path) -> None:
    data = write(tmp_path / "traces.jsonl", grouped_records())
    store = plan([data], tmp_path / "s.zarr", DataSpec(**EXPLICIT, gather=True))
    rows = np.random.default_rng(0).permutation(sum(TRACES))
    positions = store.positions_of(rows)
    assert [row for some in rows_at(store, positions) for row in some.row.tolist()] == rows.tolist()
    lines = data.read_bytes().splitlines(keepends=True)
    offsets = np.cumsum([0, *map(len, lines)])
    assert [offset for _, offset, _ in locators_at(store, positions)] == offsets[rows].tolist()
    assert list(locators_at(store, [])) == []


def test_a_killed_extraction_ends_with_the_bytes_of_one_that_was_not(tmp_path: Path) -> None:
    whole = extract(grouped_job(tmp_path, "whole", gather=True)).store
    job = grouped_job(tmp_path, "parts", gather=True)
    for unit in (5, 2):
        part = extract(job).store
        withdraw_units(part.signal(), [unit])
        assert content(part.location) != content(whole.location)
    store = extract(job).store
    assert content(store.location) == content(whole.location)
    assert list(verify(store, deep=True)) == []


def test_damaged_columns_are_put_back_in_the_same_order(tmp_path: Path) -> None:
    job = grouped_job(tmp_path, gather=True)
    store = extract(job).store
    before = content(store.location)
    (tmp_path / "store.zarr/samples/sample_row/c/0").write_bytes(b"")
    repair(job)
    assert content(store.location) == before


def test_what_changed_in_the_data_is_named_by_its_row(tmp_path: Path) -> None:
    data = write(tmp_path / "traces.jsonl", records := grouped_records())
    plan([data], tmp_path / "s.zarr", DataSpec(**EXPLICIT, gather=True))
    records[11]["answer"] += "!"
    records[17]["answer"] += "!"
    write(data, records)
    with pytest.raises(DatasetChanged, match=r"changed records: row 11, 17"):
        plan([data], tmp_path / "s.zarr")


def test_a_full_temporary_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open("/dev/full", "wb") as full:
        order = SampleOrder(None, full.fileno())
        order.add(PlannedSample("a", 0, 0, 0, 1, bytes(16), 1, 0), b"question")
        with pytest.raises(StorageError, match=rf"{tmp_path} cannot be written to: No space left.*set TMPDIR"):
            order.find_order(DataSpec(gather=True))
