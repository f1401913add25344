"""A table of scores on disk: what is in it, and what is not one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace_store.artifacts.score_table import SCHEMA, read_made_by, read_scores, score_rows, write_scores
from grace_store.artifacts.sweep_table import SweepValues
from grace_store.base.errors import DataError
from grace_store.values.flags import Flag

MADE_BY = {"kind": "scores", "spec": {"method": "grace"}, "store": "s.zarr", "plan_sha256": "0", "signals": {}}


def rows(num: int = 2, flags=(0, 0)) -> pa.Table:
    return score_rows(
        sample_id=np.array([f"s{i}" for i in range(num)], dtype=np.dtypes.StringDType()),
        row=np.arange(num) * 10,
        num_steps=np.array([2, 1]),
        num_tokens=np.array([9, 4]),
        value=np.array([0.5, np.nan]),
        steps=(np.array([0.1, 0.9, np.nan]), np.array([0.1, 0.8, 0.3]), np.array([np.nan, 1.0, np.nan])),
        step_tokens=np.array([3, 4, 2], dtype=np.int32),
        flags=np.array(flags, dtype=np.uint8),
    )


def written(path, table):
    with write_scores(path, MADE_BY) as writer:
        writer.write_table(table)
    return path


def test_what_is_written_is_read(tmp_path):
    table = read_scores(written(tmp_path / "s.parquet", rows(flags=(Flag.ZERO_VECTOR, Flag.NO_VALUE))))
    assert table.made_by == MADE_BY
    assert table.table.to_pylist() == [
        {"sample_id": "s0", "row": 0, "num_steps": 2, "num_tokens": 9, "value": 0.5, "step_score": [0.1, 0.9],
         "answer_alignment": [0.1, 0.8], "history_alignment": [None, 1.0], "step_num_tokens": [3, 4],
         "flags": ["zero_vector"]},
        {"sample_id": "s1", "row": 10, "num_steps": 1, "num_tokens": 4, "value": None, "step_score": [None],
         "answer_alignment": [0.3], "history_alignment": [None], "step_num_tokens": [2], "flags": ["no_value"]},
    ]  # fmt: skip
    np.testing.assert_array_equal(table.value, [0.5, np.nan])
    np.testing.assert_array_equal(table.flat("step_score"), [0.1, 0.9, np.nan])
    assert table.offsets.tolist() == [0, 2, 3]
    assert {name: each.tolist() for name, each in table.lengths.items()} == {
        "step_length": [3.5, 2.0], "response_length": [9.0, 4.0], "num_steps": [2.0, 1.0]
    }  # fmt: skip
    assert read_scores(tmp_path / "s.parquet", steps=False).has_step_scores is False


def test_values_are_found_by_row(tmp_path):
    table = read_scores(written(tmp_path / "s.parquet", rows().take([1, 0])))
    np.testing.assert_array_equal(table.values_of(np.array([5, 0, 99, 10, 0])), [np.nan, 0.5, np.nan, np.nan, 0.5])
    none = read_scores(written(tmp_path / "none.parquet", rows().slice(0, 0)))
    np.testing.assert_array_equal(none.values_of(np.array([0])), [np.nan])


def test_without_flags_the_lists_are_empty():
    assert rows()["flags"].to_pylist() == [[], []]


def test_a_table_that_is_not_finished_is_not_there(tmp_path):
    with pytest.raises(KeyError, match="half"), write_scores(tmp_path / "s.parquet", MADE_BY):
        raise KeyError("half")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_table_says_so(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_scores(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(DataError, match="is not a Parquet file"):
        read_scores(tmp_path / "text.parquet")
    pq.write_table(pa.table({"value": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"is not a table that `grace-store score` made \(no sample_id"):
        read_scores(tmp_path / "other.parquet")
    pq.write_table(SCHEMA.empty_table(), tmp_path / "bare.parquet")
    with pytest.raises(DataError, match=r"\(no spec\)"):
        read_scores(tmp_path / "bare.parquet")
    with pytest.raises(DataError, match="is not a table that"):
        read_made_by(tmp_path / "bare.parquet")
    with pytest.raises(DataError, match="is not what `grace-store sweep` makes"):
        SweepValues(tmp_path)
