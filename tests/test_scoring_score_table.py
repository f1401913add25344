"""A table of scores on disk: what is in it, and what is not one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace_store.base.documents import METADATA_KEY, document_metadata
from grace_store.base.errors import DataError
from grace_store.base.states import Flag
from grace_store.scoring.notes import (
    NamedSignal,
    ScoredSignal,
    ScoresNote,
    Subtask,
    TargetsNote,
)
from grace_store.scoring.score_table import (
    COLUMNS,
    ScoreRows,
    read_scores,
    read_scores_note,
    write_scores,
)
from grace_store.values.methods.method import METHODS, InfluenceSpec, ScoreSpec

SIGNAL = ScoredSignal(sha256="1", num_units=2, weight=1.0)
NOTE = ScoresNote(
    spec=ScoreSpec(), store="s.zarr", plan_sha256="0", num_units=2, signals={"base": SIGNAL}, partial=False
)
TARGETS = TargetsNote(
    store="t.zarr",
    plan_sha256="2",
    signals={"base": NamedSignal(name="plain", sha256="3", num_units=1)},
    subtasks=(Subtask(name="sums", num_samples=4), Subtask(name="signs", num_samples=3)),
    num_set_aside=0,
    num_zero=0,
)
INFLUENCE = NOTE.model_copy(
    update={
        "spec": InfluenceSpec(method="cadc"),
        "checkpoints": ("base",),
        "weights_from": "equal",
        "targets": TARGETS,
        "influence_of": ("sums", "signs"),
    }
)


def rows(num: int = 2, flags=(0, 0)) -> ScoreRows:
    return ScoreRows(
        sample_id=np.array([f"s{i}" for i in range(num)], dtype=np.dtypes.StringDType()),
        row=np.arange(num) * 10,
        num_steps=np.array([2, 1]),
        num_tokens=np.array([9, 4]),
        value=np.array([0.5, np.nan]),
        steps=(np.array([0.1, 0.9, np.nan]), np.array([0.1, 0.8, 0.3]), np.array([np.nan, 1.0, np.nan])),
        step_tokens=np.array([3, 4, 2], dtype=np.int32),
        flags=np.array(flags, dtype=np.uint8),
        text_flags=np.zeros(num, np.uint32),
    )


def influence_rows() -> ScoreRows:
    return ScoreRows(
        sample_id=np.array(["s0", "s1"], dtype=np.dtypes.StringDType()),
        row=np.array([0, 10]),
        num_steps=np.array([2, 1]),
        num_tokens=np.array([9, 4]),
        value=np.array([0.5, np.nan]),
        flags=np.zeros(2, np.uint8),
        text_flags=np.zeros(2, np.uint32),
        more={
            "influence": np.array([[0.5, 0.25], [np.nan, np.nan]], np.float32),
            "capability": np.array([1, 0]),
            "stage": np.array([np.nan, np.nan]),
        },
    )


def written(path: Path, table: pa.Table, note: ScoresNote = NOTE) -> Path:
    with write_scores(path, note) as writer:
        writer.write_table(table)
    return path


def rewritten(path: Path, table: pa.Table) -> Path:
    """Write a table as another program would: with the note, but other columns than ours."""
    pq.write_table(table.replace_schema_metadata(document_metadata(NOTE)), path)
    return path


# ---------------------------------------------------------------- there and back


def test_what_is_written_is_read(tmp_path):
    flagged = rows(flags=(Flag.ZERO_VECTOR, Flag.NO_VALUE)).to_table(NOTE)
    table = read_scores(written(tmp_path / "s.parquet", flagged))
    assert table.note == NOTE
    assert read_scores_note(tmp_path / "s.parquet") == NOTE
    first, second = table.table.to_pylist()
    assert first == {
        "sample_id": "s0",
        "row": 0,
        "num_steps": 2,
        "num_tokens": 9,
        "value": 0.5,
        "step_score": [0.1, 0.9],
        "answer_alignment": [0.1, 0.8],
        "history_alignment": [None, 1.0],
        "step_num_tokens": [3, 4],
        "flags": ["zero_vector"],
        "question": 0,
    }
    assert second == {
        "sample_id": "s1",
        "row": 10,
        "num_steps": 1,
        "num_tokens": 4,
        "value": None,
        "step_score": [None],
        "answer_alignment": [0.3],
        "history_alignment": [None],
        "step_num_tokens": [2],
        "flags": ["no_value"],
        "question": 10,
    }
    np.testing.assert_array_equal(table.value, [0.5, np.nan])
    np.testing.assert_array_equal(table.flat("step_score"), [0.1, 0.9, np.nan])
    assert table.offsets.tolist() == [0, 2, 3]
    assert {name: each.tolist() for name, each in table.lengths.items()} == {
        "step_length": [3.5, 2.0],
        "response_length": [9.0, 4.0],
        "num_steps": [2.0, 1.0],
    }
    assert read_scores(tmp_path / "s.parquet", steps=False).has_step_scores is False


def test_the_columns_of_a_method_are_written_and_read(tmp_path):
    path = written(tmp_path / "s.parquet", influence_rows().to_table(INFLUENCE), INFLUENCE)
    table = read_scores(path)
    assert table.method == "cadc (reconstruction)"
    assert table.capability.tolist() == [1, -1]  # a sample without a value is counted nowhere
    np.testing.assert_array_equal(table.influence, [[0.5, 0.25], [np.nan, np.nan]])
    assert not table.has_step_scores
    assert set(table.lengths) == {"response_length", "num_steps"}
    assert "influence" not in read_scores(path, steps=False).table.column_names


def test_values_are_found_by_row(tmp_path):
    table = read_scores(written(tmp_path / "s.parquet", rows().to_table(NOTE).take([1, 0])))
    np.testing.assert_array_equal(table.values_of(np.array([5, 0, 99, 10, 0])), [np.nan, 0.5, np.nan, np.nan, 0.5])
    none = read_scores(written(tmp_path / "none.parquet", rows().to_table(NOTE).slice(0, 0)))
    np.testing.assert_array_equal(none.values_of(np.array([0])), [np.nan])


def test_without_flags_the_lists_are_empty():
    assert rows().to_table(NOTE)["flags"].to_pylist() == [[], []]


def test_a_table_says_in_one_line_what_it_is(tmp_path):
    path = written(tmp_path / "s.parquet", rows().to_table(NOTE))
    assert repr(read_scores(path)) == f"<ScoreTable: 2 samples by grace, {path}>"


def test_a_table_that_is_not_finished_is_not_there(tmp_path):
    with pytest.raises(KeyError, match="half"), write_scores(tmp_path / "s.parquet", NOTE):
        raise KeyError("half")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- tables of other programs


@pytest.mark.parametrize("name", METHODS["cadc"].columns)
def test_a_table_without_a_column_of_its_method_is_refused(tmp_path, name):
    full = influence_rows().to_table(INFLUENCE)
    pq.write_table(
        full.drop_columns([name]).replace_schema_metadata(document_metadata(INFLUENCE)), tmp_path / "less.parquet"
    )
    with pytest.raises(DataError, match=f"has no column {name}"):
        read_scores(tmp_path / "less.parquet")


def test_more_columns_another_order_and_wider_types_do_no_harm(tmp_path):
    ours = rows().to_table(NOTE)
    strange = ours.append_column("mine", pa.array([1, 2])).select([*reversed(ours.column_names), "mine"])
    strange = strange.set_column(
        strange.column_names.index("num_steps"), "num_steps", strange["num_steps"].cast(pa.int64())
    )
    found = read_scores(rewritten(tmp_path / "strange.parquet", strange))
    assert found.table.equals(read_scores(written(tmp_path / "ours.parquet", ours)).table)


# ---------------------------------------------------------------- what is no table of scores


@pytest.mark.parametrize("name", COLUMNS)
def test_without_what_makes_it_a_table_of_scores_it_is_none(tmp_path, name):
    path = rewritten(tmp_path / "s.parquet", rows().to_table(NOTE).drop_columns([name]))
    with pytest.raises(DataError, match=rf"s\.parquet is not a table .*no column {name}"):
        read_scores(path)


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("row", pa.array([None, 1], pa.int64()), "row is empty in some rows"),
        ("row", pa.array([-1, 1], pa.int64()), "row is negative"),
        ("num_steps", pa.array([2, -1], pa.int32()), "num_steps is negative"),
        ("num_steps", pa.array([2, 7], pa.int32()), "step_score has lists without exactly one entry for each step"),
        (
            "step_num_tokens",
            pa.array([[1], [1]], pa.list_(pa.int32())),
            "step_num_tokens has lists without exactly one entry for each step",
        ),
        ("value", pa.array(["high", "low"]), "is not a table that `grace-store score` made"),
        ("flags", pa.array([1, 2]), "is not a table that `grace-store score` made"),
    ],
)
def test_rows_that_cannot_be_samples_are_refused(tmp_path, name, column, message):
    ours = rows().to_table(NOTE)
    with pytest.raises(DataError, match=message):
        read_scores(rewritten(tmp_path / "s.parquet", ours.set_column(ours.column_names.index(name), name, column)))


def test_what_is_no_table_says_so(tmp_path):
    with pytest.raises(DataError, match=r"does not exist. `grace-store score`"):
        read_scores(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(DataError, match="is not a Parquet file"):
        read_scores(tmp_path / "text.parquet")
    pq.write_table(pa.table({"value": [1.0]}), tmp_path / "other.parquet")
    for read in (read_scores, read_scores_note):
        with pytest.raises(DataError, match=r"is not a table of scores: .*no note.*`grace-store score`"):
            read(tmp_path / "other.parquet")


# ---------------------------------------------------------------- notes


@pytest.mark.parametrize("name", ["checkpoints", "weights_from", "targets", "influence_of"])
def test_a_note_of_an_influence_method_is_whole(tmp_path, name):
    note = INFLUENCE.to_json()
    del note[name]
    table = influence_rows().to_table(INFLUENCE).replace_schema_metadata({METADATA_KEY: json.dumps(note).encode()})
    pq.write_table(table, tmp_path / "s.parquet")
    with pytest.raises(DataError, match=rf"{name} is missing"):
        read_scores(tmp_path / "s.parquet")


def test_influences_on_other_things_than_the_note_names_are_refused(tmp_path):
    ours = influence_rows().to_table(INFLUENCE)
    wrong = ours.set_column(ours.column_names.index("influence"), "influence", pa.array([[0.5], [0.5]]))
    pq.write_table(wrong.replace_schema_metadata(document_metadata(INFLUENCE)), tmp_path / "s.parquet")
    with pytest.raises(DataError, match="influence has lists without exactly one entry for each name in influence_of"):
        read_scores(tmp_path / "s.parquet")


def test_a_note_whose_checkpoints_are_no_signals_is_refused(tmp_path):
    note = INFLUENCE.to_json() | {"checkpoints": ["base", "late"]}
    table = influence_rows().to_table(INFLUENCE).replace_schema_metadata({METADATA_KEY: json.dumps(note).encode()})
    pq.write_table(table, tmp_path / "s.parquet")
    with pytest.raises(DataError, match="'late' is not among the signals"):
        read_scores(tmp_path / "s.parquet")
