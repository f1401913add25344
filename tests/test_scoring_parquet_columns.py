"""Columns of Parquet files: of ours and a stranger's."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace_store.base.errors import DataError
from grace_store.scoring.parquet_columns import read_columns, read_header

KINDS = {"name": pa.string(), "count": pa.int64(), "parts": pa.list_(pa.float64())}


@pytest.fixture
def table() -> pa.Table:
    return pa.table({"name": ["a", "b"], "count": [1, 2], "parts": [[0.5], []]}, schema=pa.schema(list(KINDS.items())))


def written(table: pa.Table, tmp_path):
    pq.write_table(table, tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def test_columns_come_back_as_they_were_written(table, tmp_path):
    path = written(table, tmp_path)
    assert read_columns(path, KINDS, "make").equals(table)
    assert read_header(path, "make").names == list(KINDS)


def test_only_the_columns_asked_for_are_read_in_their_order_and_types(table, tmp_path):
    wide = table.append_column("more", pa.array([1, 2])).select(["more", "parts", "count", "name"])
    wide = wide.set_column(2, "count", wide["count"].cast(pa.int16()))
    assert read_columns(written(wide, tmp_path), KINDS, "make").equals(table)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.drop_columns(["name", "count"]), "has no column name, count"),
        (lambda table: table.set_column(1, "count", pa.array(["one", "two"])), "column count cannot be read"),
        (lambda table: table.set_column(1, "count", pa.array([2**63, 0], pa.uint64())), "column count cannot be read"),
        (lambda table: table.append_column("count", table["count"]), "column count cannot be read"),
        (lambda table: table.set_column(2, "parts", pa.array([1, 2])), "column parts cannot be read"),
    ],
)
def test_columns_that_are_missing_or_of_other_types_are_told(table, tmp_path, change, words):
    with pytest.raises(DataError, match=rf"t\.parquet is not a table that `grace-store make` made: .*{words}"):
        read_columns(written(change(table), tmp_path), KINDS, "make")


def test_files_that_are_damaged_or_none_are_told_on_one_line(table, tmp_path):
    path = written(table, tmp_path)
    start = pq.read_metadata(path).row_group(0).column(1).data_page_offset
    raw = bytearray(path.read_bytes())
    raw[start : start + 12] = bytes(12)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"t\.parquet is damaged .*`grace-store make`") as refused:
        read_columns(path, KINDS, "make")
    assert "\n" not in str(refused.value)
    path.write_bytes(b"PAR1")
    for read in (lambda: read_header(path, "make"), lambda: read_columns(path, KINDS, "make")):
        with pytest.raises(DataError, match=r"t\.parquet is not a Parquet file"):
            read()
    with pytest.raises(DataError, match=r"none\.parquet does not exist; `grace-store make` makes it"):
        read_header(tmp_path / "none.parquet", "make")
