"""Files of labels: joined to samples by their ids, against a loop over the rows."""

from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace_store.base.errors import DataError, ResumeMismatch, SettingError
from grace_store.pool.label_columns import join_labels
from grace_store.pool.pool import Pool
from grace_store.store.opened import Store
from tests.field_stores import NUM_RECORDS, RECORDS
from tests.test_pool_kept_samples import planned

IDS = [str(record["id"]) for record in RECORDS]
ROWS: list[dict[str, Any]] = [
    {
        "id": each,
        "verdict": ["good", "bad", None][number % 3],
        "grade": number / 4 if number % 5 else None,
        "ok": [True, False, None, True][number % 4],
        "turn": number,
    }
    for number, each in list(enumerate(IDS))[::-1]
    if number % 8
] + [{"id": f"other-{number}", "verdict": "good", "grade": 1.0, "ok": True, "turn": -1} for number in range(3)]
BY_ID = {row["id"]: row for row in ROWS}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return planned(tmp_path_factory.mktemp("labels"), RECORDS)


def write_labels(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    """Write rows in the format that the name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            words = {True: "true", False: "false", None: ""}
            for row in rows:
                writer.writerow(
                    {name: words.get(v, v) if v is None or v is True or v is False else v for name, v in row.items()}
                )
    return path


def labels_of(pool: Pool, name: str) -> list[object]:
    return pool.records().fields([name])[name]


@pytest.mark.parametrize("name", ["labels.csv", "labels.tsv", "labels.jsonl", "labels.parquet"])
def test_every_format_gives_each_sample_the_values_of_its_row(store: Store, tmp_path: Path, name: str) -> None:
    pool = Pool.of(store, labels=write_labels(tmp_path / name))
    for column in ("verdict", "grade", "ok", "turn"):
        assert labels_of(pool, column) == [BY_ID.get(each, {}).get(column) for each in IDS]
    some = np.array([40, 3, 8])
    assert pool.records(some).fields(["turn", "source"]) == {
        "turn": [None, 3, None],
        "source": [RECORDS[place]["source"] for place in some.tolist()],
    }
    note = pool.note().labels
    assert note is not None
    assert (note.num_rows, note.num_samples, note.num_matched) == (len(ROWS), NUM_RECORDS, len(ROWS) - 3)
    assert (note.unknown_id, note.unlabelled_id) == ("other-0", "t0")
    assert str(note).endswith(
        f"42 of 45 rows matched to a sample (no sample has the id 'other-0', for example); 6 of {NUM_RECORDS} samples "
        "without a row ('t0', for example)"
    )


def test_conditions_groups_and_questions_use_labels_and_fields_together(store: Store, tmp_path: Path) -> None:
    pool = Pool.of(store, labels=write_labels(tmp_path / "labels.csv"), where="verdict = 'good' and source = 'math'")
    wanted = [
        place
        for place, record in enumerate(RECORDS)
        if BY_ID.get(record["id"], {}).get("verdict") == "good" and record["source"] == "math"
    ]
    assert pool.positions.tolist() == wanted
    verdicts = [BY_ID.get(each, {}).get("verdict") for each in IDS]
    assert pool.fields().groups("verdict,source") == [
        (verdict, record["source"]) for verdict, record in zip(verdicts, RECORDS, strict=True)
    ]
    questions = Pool.of(pool, where=None, group_by="verdict").questions().tolist()
    names = [verdict or f"alone {place}" for place, verdict in enumerate(verdicts)]
    assert questions == [list(dict.fromkeys(names)).index(name) for name in names]


@pytest.mark.parametrize("condition", ["ok", "grade >= 3", "verdict = 'good'", "verdict = 'good' or is_correct"])
def test_right_has_three_answers(store: Store, tmp_path: Path, condition: str) -> None:
    """A condition is true, false, or NULL for a sample without a label."""
    pool = Pool.of(store, labels=write_labels(tmp_path / "labels.jsonl"))

    def truth(place: int) -> bool | None:
        row, correct = BY_ID.get(IDS[place], {}), RECORDS[place]["is_correct"]
        good = None if row.get("verdict") is None else row["verdict"] == "good"
        either = True if good or correct else None if good is None or correct is None else False
        grade = None if row.get("grade") is None else row["grade"] >= 3
        return {"ok": row.get("ok"), "grade >= 3": grade, "verdict = 'good'": good}.get(condition, either)

    for positions in (None, np.array([2, 3, 5, 7, 11, 13, 17, 19, 23, 29])):
        wanted = range(NUM_RECORDS) if positions is None else positions.tolist()
        is_right, is_wrong = pool.fields(positions).right(condition)
        assert is_right.tolist() == [truth(place) is True for place in wanted]
        assert is_wrong.tolist() == [truth(place) is False for place in wanted]


def test_labels_alone_need_no_dataset(tmp_path: Path) -> None:
    store = planned(tmp_path, RECORDS)
    Path(store.plan.files[0].path).unlink()
    pool = Pool.of(store, labels=write_labels(tmp_path / "labels.csv"), where="verdict = 'good' and num_steps > 2")
    assert pool.positions.tolist() == [
        place for place, each in enumerate(IDS)
        if BY_ID.get(each, {}).get("verdict") == "good" and len(RECORDS[place]["steps"]) > 2
    ]  # fmt: skip


def test_the_same_content_may_move_and_other_content_is_refused(store: Store, tmp_path: Path) -> None:
    note = Pool.of(store, labels=write_labels(tmp_path / "labels.csv")).note().labels
    assert note is not None
    moved = (tmp_path / "labels.csv").rename(tmp_path / "moved.csv")
    with pytest.raises(SettingError, match=r"no file of labels .*labels.csv. If the file moved, give its new path"):
        Pool.of(store, labels=note).note()
    there = note.model_copy(update={"path": str(moved)})
    assert Pool.of(store, labels=there).note().labels == there
    write_labels(moved, ROWS[:-1])
    with pytest.raises(ResumeMismatch, match=r"moved.csv is not the file of labels that was used: its content differs"):
        Pool.of(store, labels=there).note()


NAN = float("nan")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"sample": "t1", "ok": 1}], "has no column id with the ids of samples. Its columns are: sample, ok"),
        ([*ROWS, ROWS[0]], "has several rows with the same id: 1 id, such as 't47' in 2 rows. Give each"),
        ([{"id": "x1", "ok": 1}], "No row of .* its ids are like 'x1', those of samples like 't0'"),
        ([{"id": "t1", "value": 1}], "has a column 'value', and that is the name of a column that every sample has"),
        ([{"id": "t1", "Flags": 1}], "has a column 'Flags', and that is the name of a column that every sample has"),
        ([{"id": "t1", "ok": 1, "OK": 1}], "'OK', and that is the name of another column, 'ok': conditions"),
    ],
)
def test_a_file_that_cannot_be_joined_is_refused(
    store: Store, tmp_path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Pool.of(store, labels=write_labels(tmp_path / "labels.parquet", rows)).note()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("labels.xlsx", b"", r"labels.xlsx does not say the format of the labels. Give CSV, TSV, JSON lines, Parquet"),
        ("labels.parquet", b"PAR1", "cannot be read as a table"),
        (
            "labels.csv",
            b"id,ok\nt1,1,2\n",
            "Expected 2 columns, got 3: t1,1,2. Give each row as many cells as the first row has",
        ),
        (
            "labels.csv",
            b"id,ok,ok\nt1,1,2\n",
            "has a column 'ok', and that is the name of another column, 'ok'.*Rename the column",
        ),
        ("labels.csv", b"id,ok\n", "labels.csv has no rows. Give it a row for each sample that has a label"),
        ("labels.csv", b"id,ok\nt1,1\nt2,M\xfcller\n", "labels.csv .*: line 3 is not UTF-8. Save the file as UTF-8"),
        ("labels.tsv", b"id\tm\xfc\nt1\t1\n", "labels.tsv .*: line 1 is not UTF-8. Save the file as UTF-8"),
        (
            "labels.jsonl",
            b'{"id": "t1", "ok": "\xfc"}\n',
            "labels.jsonl .*: line 1 is not UTF-8. Save the file as UTF-8",
        ),
        ("labels.csv", b"", "cannot be read as a table: Empty CSV file"),
        ("labels.jsonl", b'{"id": "t1", "ok": 1}\n{"id"', "cannot be read as a table"),
        (
            "labels.jsonl",
            b'{"id": "t1", "ok": 1}\n{"id": "t2", "ok": "x"}\n',
            "column 'ok' mixes the types number and string.*each column values of one type",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    store: Store, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        Pool.of(store, labels=tmp_path / name).note()


def test_a_column_with_the_name_of_a_field_is_refused_where_it_is_used(store: Store, tmp_path: Path) -> None:
    rows = [{"id": each, "Source": "math", "meta": 1, "ok": True} for each in IDS]
    pool = Pool.of(store, labels=write_labels(tmp_path / "labels.csv", rows))
    assert Pool.of(pool, where="ok").kept.num_kept == NUM_RECORDS
    for name in ("Source", "meta"):  # conditions ignore upper and lower case
        with pytest.raises(SettingError, match=f"'{name}' is a column of .*labels.csv, and .* a field of the records"):
            Pool.of(pool, where=f"{name} = 'math'").kept  # noqa: B018
        with pytest.raises(SettingError, match=f"'{name}' is a column of"):
            pool.fields().groups(name)
        with pytest.raises(SettingError, match=f"'{name}' is a column of"):
            Pool.of(pool, group_by=name).questions()
    with pytest.raises(SettingError, match=r"has a field 'okk'. Did you mean ok"):
        pool.fields().groups("okk")


def test_odd_values_become_texts_numbers_or_nothing(tmp_path: Path) -> None:
    ids = np.array(["1", "2", "3"], dtype=object)
    rows = [
        {
            "id": 3,
            "list": [1, 2],
            "object": {"a": 1},
            "number": NAN,
            "bytes": b"\xff",
            "text": "ü".encode(),
            "cost": Decimal("2.50"),
            "kind": "b",
        },
        {
            "id": 1,
            "list": None,
            "object": {"a": None},
            "number": 2.5,
            "bytes": None,
            "text": None,
            "cost": None,
            "kind": "a",
        },
    ]
    table = pa.Table.from_pylist(rows)
    kind = table.column_names.index("kind")
    table = table.set_column(kind, "kind", table["kind"].dictionary_encode())
    pq.write_table(table, tmp_path / "labels.parquet")
    found = join_labels(tmp_path / "labels.parquet", ids)
    values = {name: found.column(name, list).to_pylist() for name in found.names}
    assert values == {
        "list": [None, None, "[1, 2]"],
        "object": ['{"a": null}', None, '{"a": 1}'],
        "number": [2.5, None, None],
        "bytes": [None, None, '{"bytes_base64": "/w=="}'],
        "text": [None, None, "ü"],
        "cost": [None, None, "2.50"],
        "kind": ["a", None, "b"],
    }


def test_ids_are_texts_whatever_they_look_like(tmp_path: Path) -> None:
    ids = np.array(["007", "2020-01-01T00:00:00", "true", "1e3"], dtype=object)
    write_labels(tmp_path / "labels.csv", [{"id": each, "ok": place} for place, each in enumerate(ids)])
    write_labels(tmp_path / "labels.jsonl", [{"id": ids[1], "ok": 1}])
    assert join_labels(tmp_path / "labels.csv", ids).column("ok", list).to_pylist() == [0, 1, 2, 3]
    assert join_labels(tmp_path / "labels.jsonl", ids).column("ok", list).to_pylist() == [None, 1, None, None]


@pytest.mark.parametrize("name", ["labels.csv", "labels.jsonl"])
def test_texts_that_look_like_times_stay_as_they_are(tmp_path: Path, name: str) -> None:
    ids = np.array(["a", "b"], dtype=object)
    rows = [{"id": each, "day": "2020-01-02", "time": "2020-01-02T03:04:05", "hour": "03:04"} for each in ids]
    found = join_labels(write_labels(tmp_path / name, rows), ids)
    for column in ("day", "time", "hour"):
        assert found.column(column, list).to_pylist() == [rows[0][column]] * 2


LONG = [str(10**25 + 20 + number) for number in range(3)]


@pytest.mark.parametrize("name", ["labels.csv", "labels.tsv", "labels.jsonl"])
def test_whole_numbers_beyond_64_bits_stay_exact(store: Store, tmp_path: Path, name: str) -> None:
    rows = [{"id": each, "big": int(LONG[i % 3]), "wide": 1e300, "part": i / 4} for i, each in enumerate(IDS)]
    pool = Pool.of(store, labels=write_labels(tmp_path / name, rows))
    assert labels_of(pool, "big") == [LONG[place % 3] for place in range(NUM_RECORDS)]
    assert labels_of(pool, "wide") == [1e300] * NUM_RECORDS
    assert labels_of(pool, "part") == [place / 4 for place in range(NUM_RECORDS)]
    assert len(set(Pool.of(pool, group_by="big").questions().tolist())) == 3
    assert Pool.of(pool, where=f"big = '{LONG[1]}'").positions.tolist() == list(range(1, NUM_RECORDS, 3))
    assert len(Pool.of(pool, where="big > 5").positions) == NUM_RECORDS
    for condition in (f"big = {LONG[1]}", f"big in (1, {LONG[1]})", f"{LONG[1]} <> big"):
        with pytest.raises(SettingError, match=f"compares big with {LONG[1]}, but SQL rounds .* write '{LONG[1]}'"):
            Pool.of(pool, where=condition).kept  # noqa: B018


def test_a_column_with_a_missing_value_is_of_its_kind(tmp_path: Path) -> None:
    """R and pandas write words for missing values; an id may be such a word."""
    ids = ["NA", "N/A", "NaN", "nan", "null", "NULL", "a", "b"]
    rows = [{"id": e, "ok": e, "grade": f" {e} ", "true": e, "word": e} for e in ids[:-2]]
    rows += [{"id": "a", "ok": 1, "grade": " 0.5 ", "true": "TRUE", "word": "good"}]
    rows += [{"id": "b", "ok": 0, "grade": "2", "true": "false", "word": " na"}]
    for name in ("labels.csv", "labels.tsv"):
        found = join_labels(write_labels(tmp_path / name, rows), np.array(ids, dtype=object))
        assert found.note.num_matched == len(ids)
        wanted = {"ok": [1, 0], "grade": [0.5, 2.0], "true": [True, False], "word": ["good", " na"]}
        for column, values in wanted.items():
            assert found.column(column, list).to_pylist() == [None] * 6 + values


def test_whole_ids_that_were_written_as_floats_match(tmp_path: Path) -> None:
    ids = np.array(["12345678901", "7", "none"], dtype=object)
    table = pa.table({"id": pa.array([12345678901.0, NAN, 7.0]), "ok": [1, 2, 3]})
    pq.write_table(table, tmp_path / "labels.parquet")
    assert join_labels(tmp_path / "labels.parquet", ids).column("ok", list).to_pylist() == [1, 3, None]


def test_a_wide_file_is_no_burden_to_a_condition(store: Store, tmp_path: Path) -> None:
    rows = [{"id": each} | {f"column {number}": number for number in range(3000)} for each in IDS]
    pool = Pool.of(store, labels=write_labels(tmp_path / "labels.csv", rows), where='"column 2999" = 2999')
    assert len(pool.positions) == NUM_RECORDS


def test_a_million_rows_are_joined(tmp_path: Path) -> None:
    """The rows lie in another order than the samples; a seventh of the samples has none."""
    num = 1_000_000
    number = np.random.default_rng(0).permutation(num)
    number = number[number % 7 > 0]
    ids = pa.array(np.char.add("data.jsonl#", number.astype(str)))
    pq.write_table(pa.table({"id": ids, "turn": number, "word": ids.dictionary_encode()}), tmp_path / "labels.parquet")
    found = join_labels(tmp_path / "labels.parquet", np.char.add("data.jsonl#", np.arange(num).astype(str)))
    turn = found.column("turn", list)
    assert found.note.num_matched == len(number)
    has_row = np.arange(num) % 7 > 0
    assert (np.asarray(turn.is_valid()) == has_row).all()
    assert (turn.drop_null().to_numpy() == np.flatnonzero(has_row)).all()
