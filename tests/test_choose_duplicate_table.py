"""The table of duplicates: grouped anew at will, and read again whoever wrote it."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace_store.base.documents import METADATA_KEY
from grace_store.base.errors import DataError, SettingError
from grace_store.choose.duplicate_table import SCHEMA, read_duplicates
from grace_store.choose.duplicates import duplicates
from grace_store.pool.pool import Pool
from grace_store.scoring.score import score
from grace_store.store.opened import Store
from tests.duplicated_stores import duplicated_store


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return duplicated_store(tmp_path_factory.mktemp("d"))


@pytest.fixture(scope="module")
def found(store):
    return duplicates(Pool.of(store, threads=1), floor=0.85)


def test_a_threshold_below_the_floor_is_refused(found):
    with pytest.raises(SettingError, match=r"threshold 0.8 is below 0.85, where the search stopped.*--floor 0.8"):
        found.regrouped(0.8)
    with pytest.raises(SettingError, match=r"threshold 0\.5 is below 0\.85"):
        found.counts([0.5])
    assert [count.threshold for count in found.counts()][:3] == [0.85, 0.9, 0.92]


def test_groups_only_come_apart_as_the_threshold_rises(found):
    dropped = [count.num_dropped for count in found.counts()]
    assert dropped == sorted(dropped, reverse=True)
    assert dropped[0] == 25
    assert dropped[-1] == 5


def test_how_many_could_go_is_told_with_the_tables_numbers(store, found):
    for count in found.counts():
        told = found.regrouped(count.threshold).conclusion
        share = f"{count.num_dropped} of 90 samples ({100 * count.num_dropped / 90:.0f} %) could go"
        groups = f"{count.num_groups} group{'s' if count.num_groups > 1 else ''} of samples that are alike"
        assert told.startswith(f"{share}: there {'are' if count.num_groups > 1 else 'is'} {groups}"), told
        assert told.endswith("one of each is kept. No two have the same record.")
    some = duplicates(store, subset=np.arange(10, 60))
    assert some.conclusion == "None of 50 samples could go: no two have the same text, or a cosine of 0.95 or more."
    most = duplicates(Pool.of(store, threads=1), subset=np.array([0, 20, 60, 80, 81]))
    assert most.conclusion.startswith("3 of 5 samples (60 %) could go: there are 2 groups")
    assert most.conclusion.endswith("That is more than half, perhaps too many: from 0.98 up, 2 would go.")


def test_a_file_that_is_no_table_of_duplicates_is_refused(store, found, tmp_path):
    with pytest.raises(DataError, match=r"does not exist; `grace-store duplicates` makes"):
        read_duplicates(tmp_path / "no.parquet")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(DataError, match="is not a Parquet file"):
        read_duplicates(tmp_path / "text.parquet")
    score(store, out=tmp_path / "scores.parquet")
    with pytest.raises(DataError, match="is not a table of duplicates: its note is of the kind 'scores'"):
        read_duplicates(tmp_path / "scores.parquet")
    pq.write_table(found.table.slice(0, 50), tmp_path / "half.parquet")
    with pytest.raises(DataError, match="does not hold the 90 samples it was written with"):
        read_duplicates(tmp_path / "half.parquet")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spec": {}}, "spec.threshold is missing"),
        ({"spec": {"threshold": "x", "floor": 0.9, "keep": "value"}}, "a number is wanted"),
        ({"spec": {"threshold": 0.9, "floor": 0.9, "keep": "all"}}, "spec.keep 'all'"),
        ({"spec": {"threshold": 0.8, "floor": 0.9, "keep": "value"}}, "floor 0.9 is not between"),
        ({"search": None}, "search"),
        ({"kind": "scores"}, "is not a table of duplicates: its note is of the kind 'scores'"),
        ({"num_samples": None}, "num_samples"),
    ],
)
def test_a_table_with_a_strangers_note_is_refused(found, tmp_path, change, words):
    note = json.dumps(found.note.to_json() | change).encode()
    pq.write_table(found.table.replace_schema_metadata({METADATA_KEY: note}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=rf"d\.parquet .*{words}.*`grace-store duplicates`"):
        read_duplicates(tmp_path / "d.parquet")


@pytest.mark.parametrize("note", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_table_with_a_damaged_note_is_refused(found, tmp_path, note):
    pq.write_table(found.table.replace_schema_metadata({METADATA_KEY: note}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"d\.parquet has a .*note.*`grace-store duplicates`"):
        read_duplicates(tmp_path / "d.parquet")


@pytest.mark.parametrize("name", SCHEMA.names)
def test_a_table_without_a_column_is_refused(found, tmp_path, name):
    pq.write_table(found.table.drop_columns([name]), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=f"no column {name}"):
        read_duplicates(tmp_path / "d.parquet")


def test_a_table_is_read_as_it_was_written(found, tmp_path):
    found.write(tmp_path / "d.parquet")
    again = read_duplicates(tmp_path / "d.parquet")
    assert again.table.equals(found.table)
    assert again.note == found.note
    assert repr(again) == "<DuplicateTable: 90 samples, 11 groups from 0.95 up>"


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("link", lambda n: pa.array([10**6] * n), "names samples that are not in the table"),
        ("nearest", lambda n: pa.array(["nobody"] * n), "names samples that are not in the table"),
        ("row", lambda n: pa.array(["one"] * n), "is not a table that `grace-store duplicates` made"),
    ],
)
def test_columns_that_cannot_be_are_refused(found, tmp_path, name, column, words):
    place = found.table.column_names.index(name)
    pq.write_table(found.table.set_column(place, name, column(len(found))), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=words):
        read_duplicates(tmp_path / "d.parquet")
