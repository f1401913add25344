"""The dataset of a planned store: found again, held against the plan, read sample by sample and field by field."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import DataError, DatasetChanged
from grace_store.base.settings import DataSpec
from grace_store.pool.records import SampleRecords, UnitLoader, columns_of_rows, open_dataset
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.store.opened import Store
from tests.jobs import NUM_UNITS, NUM_USABLE, make_job, record, write_dataset

REQUEST = DataSpec(min_steps=2)


def planned(tmp_path: Path) -> Store:
    data = write_dataset(tmp_path / "traces.jsonl")
    return plan([data], tmp_path / "store.zarr", REQUEST, samples_per_unit=4)


def test_samples_come_back_as_they_were(tmp_path: Path) -> None:
    store = planned(tmp_path)
    with open_dataset(store) as dataset:
        loader = UnitLoader(store, dataset)
        samples = [sample for unit in range(NUM_UNITS) for sample in loader.load(unit)[0]]
    assert [sample.sample_id for sample in samples] == [f"case-{i}" for i in range(NUM_USABLE)]
    assert samples[3].response == "\n".join([*record(3)["steps"], record(3)["answer"]])


def test_several_files_with_the_same_name_keep_their_records_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        entry = {key: value for key, value in record(1).items() if key != "id"}
        (tmp_path / folder / "traces.jsonl").write_text(json.dumps(entry) + "\n")
    paths = [tmp_path / "a/traces.jsonl", tmp_path / "b/traces.jsonl"]
    store = plan(paths, tmp_path / "store.zarr", REQUEST)
    assert store.plan.num_samples == 2
    with open_dataset(store) as dataset:
        assert len(UnitLoader(store, dataset).load(0)[0]) == 2


def test_moved_data_is_found_with_its_new_path(tmp_path: Path) -> None:
    store = planned(tmp_path)
    moved = (tmp_path / "traces.jsonl").rename(tmp_path / "moved.jsonl")
    with pytest.raises(DatasetChanged, match="no longer there"):
        open_dataset(store)
    with open_dataset(store, [moved]) as dataset:
        assert UnitLoader(store, dataset).load(0)[0][0].sample_id == "case-0"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("case 23", "case XX", "changed records: row 26"),
        ("What is 9 + 1?", "What is 9 + 2?", "changed records: row 12"),
        ("{not json", "{not jso", "planned 27 records, now 27"),
    ],
)
def test_a_changed_record_is_refused_and_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    store = planned(tmp_path)
    data = tmp_path / "traces.jsonl"
    data.write_text(data.read_text().replace(old, new))
    with pytest.raises(DatasetChanged, match=message):
        open_dataset(store)
    with pytest.raises(DatasetChanged, match="choose a new store"):
        plan([data], tmp_path / "store.zarr")


def test_other_bytes_of_the_same_size_and_time_are_refused_even_in_records_that_no_unit_reads(tmp_path: Path) -> None:
    store = planned(tmp_path)
    data = tmp_path / "traces.jsonl"
    times = data.stat()
    data.write_text(data.read_text().replace("{not json", "{not jsom"))
    os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (data.stat().st_size, data.stat().st_mtime_ns) == (times.st_size, times.st_mtime_ns)
    job = make_job(tmp_path)
    for check in (lambda: open_dataset(store), lambda: plan([data], store.location), lambda: extract(job)):
        with pytest.raises(DatasetChanged, match="planned 27 records, now 27"):
            check()


def test_a_record_changed_behind_our_back_is_refused_when_read(tmp_path: Path) -> None:
    store = planned(tmp_path)
    with open_dataset(store) as dataset:
        data = tmp_path / "traces.jsonl"
        data.write_text(data.read_text().replace("case 23", "case XX"))
        with pytest.raises(DatasetChanged, match="Row 26"):
            UnitLoader(store, dataset).load(NUM_UNITS - 1)


def test_without_reading_all_of_it_only_sizes_are_compared_and_records_when_they_are_read(tmp_path: Path) -> None:
    store = planned(tmp_path)
    data = tmp_path / "traces.jsonl"
    data.write_text(data.read_text().replace("case 23", "case XX"))
    with open_dataset(store, by_content=False) as dataset:
        loader = UnitLoader(store, dataset)
        assert loader.load(0)[0][0].sample_id == "case-0"
        with pytest.raises(DatasetChanged, match="Row 26"):
            loader.load(NUM_UNITS - 1)
    data.write_text(data.read_text() + "\n")
    with pytest.raises(DatasetChanged, match="changed records: row 26"):
        open_dataset(store, by_content=False)


def test_changes_are_named_in_the_file_they_are_in(tmp_path: Path) -> None:
    """Rows of the plan count over all files, those of a message in their own."""
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for number, path in enumerate(paths):
        path.write_text("".join(json.dumps(record(10 * number + i)) + "\n" for i in range(6)))
    store = plan(paths, tmp_path / "store.zarr", REQUEST)
    paths[1].write_text(paths[1].read_text().replace("case 13", "case XX"))
    with pytest.raises(DatasetChanged, match=r"b\.jsonl: .*changed records: row 3\n"):
        open_dataset(store)


def test_compressed_files_plan_to_the_same_samples(tmp_path: Path) -> None:
    store = planned(tmp_path)
    packed = tmp_path / "traces.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "traces.jsonl").read_bytes(), mtime=0))
    other = plan([packed], tmp_path / "packed.zarr", REQUEST, samples_per_unit=4)
    assert (other.column("sample_digest") == store.column("sample_digest")).all()
    with open_dataset(other) as dataset:
        assert UnitLoader(other, dataset).load(2)[0][0].sample_id == "case-8"


# ---------------------------------------------------------------- fields


FIELDS = [
    {"id": "a", "prompt": "?", "steps": ["1", "2"], "answer": "3", "about": {"subject": "maths", "level": 2}},
    {"id": "b", "prompt": "?", "steps": ["1"], "answer": "3", "about": {"subject": "too few steps"}},
    {"id": "c", "prompt": "?", "steps": ["1", "2", "4"], "answer": "5", "about": "nothing", "tags": ["x", {"y": 1}]},
]


@pytest.fixture
def with_fields(tmp_path: Path) -> Store:
    data = tmp_path / "fields.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in FIELDS))
    return plan([data], tmp_path / "fields.zarr", REQUEST)


def test_fields_come_from_inside_records_and_are_none_where_there_are_none(with_fields: Store) -> None:
    found = SampleRecords(with_fields).fields(["about.subject", "about.level", "tags", "answer"])
    assert found == {
        "about.subject": ["maths", None],
        "about.level": [2, None],
        "tags": [None, '["x", {"y": 1}]'],
        "answer": ["3", "5"],
    }
    assert list(SampleRecords(with_fields, positions=np.array([1])).each("answer")) == ["5"]


def test_columns_are_found_by_the_rows_of_a_table(with_fields: Store, tmp_path: Path) -> None:
    assert columns_of_rows(with_fields, np.array([2, 0]), ["id"]) == {"id": ["c", "a"]}
    for row in (1, 3):
        with pytest.raises(DataError, match=f"Row {row} of the dataset is not a sample of"):
            columns_of_rows(with_fields, np.array([0, row]), ["id"])
    moved = (tmp_path / "fields.jsonl").rename(tmp_path / "moved.jsonl")
    with pytest.raises(DatasetChanged, match=r"no longer there.*--data \(in Python: data="):
        columns_of_rows(with_fields, np.array([0]), ["id"])
    assert columns_of_rows(with_fields, np.array([0]), ["id"], [str(moved)]) == {"id": ["a"]}
