"""Datasets: every kind of file scanned in order, read again at any place, and refused clearly when it is broken."""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import json
import random
import subprocess
import sys
import threading
import tracemalloc
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from grace_store.base.errors import DataError, DatasetChanged
from grace_store.base.states import Reason, Unusable
from grace_store.data import dataset as dataset_module
from grace_store.data import tables as tables_module
from grace_store.data.byte_streams import NUM_CURSORS
from grace_store.data.dataset import Dataset
from grace_store.data.record import Record
from grace_store.data.tables import row_json

ROWS = [
    {"id": i, "text": 'é"\\\n[{' * (i % 7) + "x" * (i * 37 % 301), "n": [{"m": i, "l": [None, "]"]}]}
    for i in range(700)
]
KINDS = ["jsonl", "jsonl.gz", "jsonl.zst", "json", "json.gz", "json.zst", "parquet", "arrow"]


def as_lines(rows: list[dict], newline: str = "\n") -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + newline for row in rows).encode()


def write_arrow(path: Path, rows: list[dict], *, stream: bool = True, batch_rows: int = 100) -> Path:
    table = pa.Table.from_pylist(rows)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return path


def write_kind(folder: Path, kind: str, rows: list[dict] = ROWS, name: str = "data") -> Path:
    path = folder / f"{name}.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=300)
    elif kind == "arrow":
        write_arrow(path, rows)
    else:
        text = (
            json.dumps(rows, indent=1).encode() if kind.startswith("json") and "jsonl" not in kind else as_lines(rows)
        )
        compress = {"gz": gzip.compress, "zst": zstandard.compress}.get(kind.rpartition(".")[2], bytes)
        path.write_bytes(compress(text))
    return path


def scan(*paths: Path) -> list[Record]:
    with Dataset.open(paths) as dataset:
        return list(dataset.scan())


# ---------------------------------------------------------------- every kind


@pytest.mark.parametrize("kind", KINDS)
def test_scan_and_random_access(tmp_path, kind):
    path = write_kind(tmp_path, kind)
    with Dataset.open([path]) as dataset:
        records = list(dataset.scan())
        assert [record.parse() for record in records] == ROWS
        assert [(record.row, record.file, record.row_in_file) for record in records] == [(i, 0, i) for i in range(700)]
        order = random.Random(3).sample(range(700), 60) + list(range(0, 700, 9))
        places = [(0, records[i].offset, records[i].length) for i in order]
        assert list(dataset.read_many(places)) == [records[i].raw for i in order]
        (summary,) = dataset.summary()
    assert (summary.kind, summary.num_records, summary.path) == (kind, 700, str(path))
    assert summary.num_bytes == path.stat().st_size
    assert summary.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert records[5].digest == hashlib.sha256(records[5].raw).digest()[:16]


def test_offsets_point_into_the_decompressed_text(tmp_path):
    records = scan(write_kind(tmp_path, "jsonl.zst"))
    text = as_lines(ROWS)
    assert all(text[record.offset : record.offset + record.length] == record.raw for record in records)


def test_arrow_file_format_too(tmp_path):
    path = write_arrow(tmp_path / "x.arrow", ROWS[:250], stream=False)
    assert [record.parse() for record in scan(path)] == ROWS[:250]


def test_several_files_in_the_order_given(tmp_path):
    b = write_kind(tmp_path, "jsonl.gz", ROWS[:3], "b")
    a = write_kind(tmp_path, "parquet", ROWS[3:5], "a")
    calls: list[tuple[int, int]] = []
    with Dataset.open([b, str(a)]) as dataset:
        records = list(dataset.scan(lambda *now: calls.append(now)))
        assert dataset.num_bytes == a.stat().st_size + b.stat().st_size
        assert calls == [(5, dataset.num_bytes)]
    assert [(r.row, r.file, r.row_in_file, r.parse()["id"]) for r in records] == [
        (0, 0, 0, 0), (1, 0, 1, 1), (2, 0, 2, 2), (3, 1, 0, 3), (4, 1, 1, 4),
    ]  # fmt: skip


def test_progress_rises(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_module, "_PROGRESS_RECORDS", 100)
    path = write_kind(tmp_path, "jsonl")
    calls: list[tuple[int, int]] = []
    with Dataset.open([path]) as dataset:
        list(dataset.scan(lambda *now: calls.append(now)))
    assert [records for records, _ in calls] == [100, 200, 300, 400, 500, 600, 700, 700]
    assert [size for _, size in calls] == sorted(size for _, size in calls)


@pytest.mark.parametrize(
    ("kind", "module", "cursor", "max_opened"),
    [
        ("jsonl.gz", dataset_module, "_TextCursor", NUM_CURSORS),
        ("jsonl.zst", dataset_module, "_TextCursor", NUM_CURSORS),
        ("parquet", tables_module, "_GroupCursor", 10 + 2),  # ten row groups, two of which two readers go through
    ],
)
def test_side_by_side_readers_start_nothing_again(tmp_path, monkeypatch, kind, module, cursor, max_opened):
    rows = [{"id": i, "text": random.Random(i).randbytes(400).hex()} for i in range(3000)]
    opened = []
    original = getattr(module, cursor)
    monkeypatch.setattr(module, cursor, lambda *args: opened.append(args) or original(*args))
    with Dataset.open([write_kind(tmp_path, kind, rows)]) as dataset:
        records = list(dataset.scan())
        for i in range(1000):  # three readers, each ascending
            for record in (records[i], records[i + 1000], records[i + 2000]):
                assert dataset.read(0, record.offset, record.length) == record.raw
    assert 1 <= len(opened) <= max_opened


def test_threads_may_read_at_once(tmp_path):
    with Dataset.open([write_kind(tmp_path, "jsonl")]) as dataset:
        records = list(dataset.scan())
        wrong: list[int] = []

        def read(part: int) -> None:
            for record in records[part::4]:
                if dataset.read(0, record.offset, record.length) != record.raw:
                    wrong.append(record.row)

        threads = [threading.Thread(target=read, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


# ---------------------------------------------------------------- text: the odd cases


@pytest.mark.parametrize(
    "text", [b'{"a":1}\r\n{"a":2}\r\n', b'{"a":1}\n\n \n{"a":2}', b'\xef\xbb\xbf{"a":1}\n{"a":2}\n']
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_line_ends_blank_lines_and_byte_order_mark(tmp_path, text, compress):
    path = tmp_path / "x.jsonl"
    path.write_bytes(compress(text))
    with Dataset.open([path]) as dataset:
        records = list(dataset.scan())
        assert [record.raw for record in records] == [b'{"a":1}', b'{"a":2}']
        assert [dataset.read(0, r.offset, r.length) for r in records] == [b'{"a":1}', b'{"a":2}']


def test_byte_order_mark_before_an_array(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b'\xef\xbb\xbf[{"a":1}]')
    (record,) = scan(path)
    assert (record.raw, record.offset) == (b'{"a":1}', 4)


DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b'{"a": 1', Reason.BAD_JSON, "delimiter"),
        (b'{"a": NaN}', Reason.BAD_JSON, "NaN is not JSON"),
        (b'{"a": -Infinity}', Reason.BAD_JSON, "-Infinity is not JSON"),
        (b'{"a": "\xff"}', Reason.BAD_JSON, "not UTF-8 at byte 7"),
        (b'{"a": 1} {"b": 2}', Reason.BAD_JSON, "Extra data"),
        (b'{"a": ' + b"1" * 5000 + b"}", Reason.BAD_JSON, "digits"),
        (DEEP, Reason.BAD_JSON, "nested more than 64 deep"),
        (b'{"a": ' * 65 + b"1" + b"}" * 65, Reason.BAD_JSON, "nested more than 64 deep"),
        (b'{"a": 1e999}', Reason.BAD_JSON, "a number is too large"),
        (b"[1]", Reason.NOT_AN_OBJECT, "a JSON array"),
        (b"null", Reason.NOT_AN_OBJECT, "a JSON null"),
        (b"true", Reason.NOT_AN_OBJECT, "a JSON boolean"),
        (b'"a"', Reason.NOT_AN_OBJECT, "a JSON string"),
        (b"1.5", Reason.NOT_AN_OBJECT, "a JSON number"),
    ],
)
def test_a_bad_line_is_a_record_that_cannot_be_parsed(tmp_path, line, reason, detail):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b'\n{"a": 2}\n')
    first, bad, last = scan(path)
    assert (first.parse(), last.parse(), last.row) == ({"a": 1}, {"a": 2}, 2)
    with pytest.raises(Unusable, match=detail) as verdict:
        bad.parse()
    assert verdict.value.reason is reason


def test_a_ten_megabyte_line_is_read(tmp_path):
    path = tmp_path / "x.jsonl"
    text = "é" * 5_000_000
    path.write_bytes(as_lines([{"a": 1}, {"a": text}, {"a": 2}]))
    assert [record.parse()["a"] for record in scan(path)] == [1, text, 2]


def test_a_line_over_the_limit_is_not_held_in_memory(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(b'{"a":"')
        for _ in range(120):
            stream.write(b"x" * 2**20)
        stream.write(b'"}\n{"a":2}\n')
    tracemalloc.start()
    large, last = scan(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (large.raw, large.length, last.parse()) == (b"", 120 * 2**20 + 8, {"a": 2})
    assert large.digest != last.digest
    assert peak < 80 * 2**20
    with pytest.raises(Unusable, match="record_too_large: 125829128 bytes, at most 33554432"):
        large.parse()


def test_memory_is_flat_in_the_size_of_an_array(tmp_path):
    path = tmp_path / "x.json"
    element = json.dumps({"question": "q" * 400, "answer": 'line "one"\nline two\n' * 30}).encode()
    with open(path, "wb") as stream:
        stream.write(b"[" + element)
        for _ in range(50):
            stream.write((b",\n" + element) * (2**20 // len(element)))
        stream.write(b"]")
    tracemalloc.start()
    with Dataset.open([path]) as dataset:
        num_records = sum(1 for _ in dataset.scan())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_records == 1 + 50 * (2**20 // len(element))
    assert peak < 10 * 2**20


# ---------------------------------------------------------------- compressed: whole, joined, damaged


def test_compressed_files_may_be_several_joined_together(tmp_path):
    half = as_lines(ROWS[:300]), as_lines(ROWS[300:])
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(half[0]) + gzip.compress(half[1]) + b"\0" * 512)
    (tmp_path / "x.jsonl.zst").write_bytes(zstandard.compress(half[0]) + zstandard.compress(half[1]))
    for name in ("x.jsonl.gz", "x.jsonl.zst"):
        assert [record.parse() for record in scan(tmp_path / name)] == ROWS


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
def test_a_compressed_file_cut_short_is_named(tmp_path, kind):
    path = write_kind(tmp_path, kind)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=rf"data\.{kind}: the .* data ends too early, so the file was cut short"):
        scan(path)


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
@pytest.mark.parametrize("at", [20, -60])
def test_a_damaged_compressed_file_is_named(tmp_path, kind, at):
    path = write_kind(tmp_path, kind, [{"a": random.Random(i).randbytes(200).hex()} for i in range(500)])
    text = bytearray(path.read_bytes())
    text[at : at + 12] = b"\xff" * 12
    path.write_bytes(text)
    with pytest.raises(DataError, match=rf"data\.{kind}: (damaged|the .* ends too early)"):
        scan(path)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_a_file_shorter_than_planned_is_noticed(tmp_path, kind):
    path = write_kind(tmp_path, kind)
    last = scan(path)[-1]
    write_kind(tmp_path, kind, ROWS[:400])
    with (
        Dataset.open([path]) as dataset,
        pytest.raises(DatasetChanged, match=r"ends before the record at .* not the file that was planned"),
    ):
        dataset.read(0, last.offset, last.length)


def test_reading_a_damaged_file_again_fails_again(tmp_path):
    path = write_kind(tmp_path, "jsonl.gz")
    path.write_bytes(path.read_bytes()[:-9])
    with Dataset.open([path]) as dataset:
        for _ in range(2):
            with pytest.raises(DataError, match="cut short"):
                dataset.read(0, len(as_lines(ROWS)) - 5, 50)


def test_a_file_that_vanished_is_named(tmp_path):
    path = write_kind(tmp_path, "jsonl")
    dataset = Dataset.open([path])
    path.unlink()
    with pytest.raises(DataError, match=r"data\.jsonl: cannot be read: No such file"):
        list(dataset.scan())
    with pytest.raises(DataError, match=r"data\.jsonl: cannot be read: No such file"):
        dataset.read(0, 0, 1)


def test_no_summary_before_the_scan_ended(tmp_path):
    with Dataset.open([write_kind(tmp_path, "jsonl")]) as dataset:
        next(dataset.scan())
        with pytest.raises(DataError, match="not read to its end"):
            dataset.summary()


# ---------------------------------------------------------------- tables


def test_what_json_lacks_has_a_written_form(tmp_path):
    noon = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "blob": pa.array([b"\x00\xff"]),
            "image": pa.array([{"bytes": b"\x01", "path": "a.png"}]),
            "bad": pa.array([float("nan")]),
            "nested": pa.array([[float("inf"), 1.5]]),
            "when": pa.array([noon], pa.timestamp("ns", "Europe/Berlin")),
            "day": pa.array([datetime.date(2024, 5, 1)]),
            "span": pa.array([7], pa.duration("s")),
            "price": pa.array([Decimal("1.50")]),
            "times": pa.array([[datetime.timedelta(seconds=2)]]),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    (record,) = scan(tmp_path / "x.parquet")
    assert record.parse() == {
        "blob": {"bytes_base64": "AP8="},
        "image": {"bytes": {"bytes_base64": "AQ=="}, "path": "a.png"},
        "bad": None,
        "nested": [None, 1.5],
        "when": "2024-05-01 12:00:00.000000000",
        "day": "2024-05-01",
        "span": 7,
        "price": "1.50",
        "times": [2.0],
    }
    assert record.raw.startswith(b'{"bad":null,"blob":')


def test_a_value_without_a_json_form_is_refused():
    with pytest.raises(TypeError, match="a complex in a table has no JSON form"):
        row_json({"a": 1j})


def test_a_row_over_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_module, "MAX_RECORD_BYTES", 100)
    pq.write_table(pa.table({"a": ["x" * 200, "y"]}), tmp_path / "x.parquet")
    large, small = scan(tmp_path / "x.parquet")
    assert small.parse() == {"a": "y"}
    assert large.digest == hashlib.sha256(b'{"a":"' + b"x" * 200 + b'"}').digest()[:16]
    with pytest.raises(Unusable, match="record_too_large"):
        large.parse()


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_damaged_table_is_named(tmp_path, kind):
    path = write_kind(tmp_path, kind)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=rf"data\.{kind} cannot be read as a table"):
        scan(path)


def test_an_arrow_stream_cut_between_two_batches_is_noticed(tmp_path):
    path = write_kind(tmp_path, "arrow")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataError, match=r"data\.arrow cannot be read as a table: the stream has no end mark"):
        scan(path)


# ---------------------------------------------------------------- which files, and of what kind


def saved_dataset(folder: Path, names: list[str], **state: object) -> Path:
    folder.mkdir(parents=True)
    for i, name in enumerate(names):
        write_arrow(folder / name, ROWS[i * 10 : i * 10 + 10], batch_rows=4)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names], **state}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_a_saved_hugging_face_dataset(tmp_path):
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    folder = saved_dataset(tmp_path / "set", names)
    assert [record.parse() for record in scan(folder)] == ROWS[:20]


def test_a_saved_dataset_of_one_split_is_read(tmp_path):
    saved_dataset(tmp_path / "set" / "train", ["data-00000-of-00001.arrow"])
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert [record.parse() for record in scan(tmp_path / "set")] == ROWS[:10]


def test_a_saved_dataset_with_splits_asks_for_one(tmp_path):
    for split in ("train", "test"):
        saved_dataset(tmp_path / "set" / split, ["data-00000-of-00001.arrow"])
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(
        DataError, match=r"several splits \(test, train\)\. Give the folder of one split, such as .*/set/test"
    ):
        Dataset.open([tmp_path / "set"])
    assert len(scan(tmp_path / "set" / "train")) == 10


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ('{"_data_files": []}', "without data files"),
        ('{"_data_files": [{"filename": "gone.arrow"}]}', "has no gone.arrow, but its state.json names"),
        ('{"_data_files": [{"filename": "../up.arrow"}]}', "names a file outside the folder"),
        ('{"_data_files": [{"filename": "x"}], "_indices_data_files": [{"filename": "y"}]}', r"flatten_indices\(\)"),
        ("[]", "not a state.json of Hugging Face"),
        ("{", "not a state.json of Hugging Face"),
    ],
)
def test_a_broken_saved_dataset_is_refused(tmp_path, state, message):
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(DataError, match=message):
        Dataset.open([tmp_path])


def test_a_folder_gives_its_record_files_sorted(tmp_path):
    for name in ("b", "a"):
        write_kind(tmp_path, "jsonl", [{"from": name}], name)
    write_kind(tmp_path, "jsonl.gz", [{"from": "c"}], "c")
    for other in ("README.md", "_SUCCESS", ".hidden.jsonl", "dataset_info.json", "notes.txt"):
        (tmp_path / other).write_text("x")
    assert [record.parse()["from"] for record in scan(tmp_path)] == ["a", "b", "c"]


def test_a_hub_folder_keeps_its_parquet_below(tmp_path):
    (tmp_path / "data").mkdir()
    for i in (1, 0):
        write_kind(tmp_path / "data", "parquet", ROWS[i : i + 1], f"train-0000{i}-of-00002")
    assert [record.parse()["id"] for record in scan(tmp_path)] == [0, 1]
    write_kind(tmp_path / "data", "parquet", ROWS[:1], "test-00000-of-00001")
    with pytest.raises(DataError, match=r"files of several splits \(test, train\)\. Name .*/data/train-\*"):
        Dataset.open([tmp_path])


def test_a_folder_of_several_kinds_is_refused(tmp_path):
    write_kind(tmp_path, "jsonl")
    write_kind(tmp_path, "parquet")
    with pytest.raises(
        DataError, match=r"several kinds \(1 \.json\(l\), 1 \.parquet\)\. They may hold the same records twice"
    ):
        Dataset.open([tmp_path])


def test_names_tell_files_apart(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_kind(tmp_path / folder, "jsonl")
    other = write_kind(tmp_path, "json", name="other")
    with Dataset.open([tmp_path / "a", tmp_path / "b"]) as dataset:
        assert [file.name for file in dataset.files] == ["a/data.jsonl", "b/data.jsonl"]
    with Dataset.open([tmp_path / "a", other]) as dataset:
        assert [file.name for file in dataset.files] == ["data.jsonl", "other.json"]


def test_missing_repeated_and_empty_data_is_refused(tmp_path):
    path = write_kind(tmp_path, "jsonl")
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    with pytest.raises(DataError, match=r"No such file or folder: .*/x\.jsonl, .*/y\."):
        Dataset.open([tmp_path / "x.jsonl", path, tmp_path / "y"])
    with pytest.raises(DataError, match=r"data\.jsonl: this file is given twice\. Name each file once"):
        Dataset.open([path, path])
    with pytest.raises(DataError, match=r"link\.jsonl: this file is given twice \(also as .*/data\.jsonl\)"):
        Dataset.open([path, link])
    with pytest.raises(DataError, match="No data was given"):
        Dataset.open([])
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none has no record file"):
        Dataset.open([tmp_path / "none"])
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match=r"empty\.jsonl: empty"):
        Dataset.open([tmp_path / "empty.jsonl"])
    assert len(scan(tmp_path / "empty.jsonl", path)) == 700


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("x.jsonl", b'[{"a":1}]', "json"),
        ("x.json", b'{"a":1}\n{"a":2}', "jsonl"),
        ("x.json", b"[1, 2]", "json"),
        ("x.jsonl", b"[1]\n[2]", "jsonl"),
        ("x.jsonl", b"garbage", "jsonl"),
        ("x", b'  {"a":1}', "jsonl"),
        ("x.jsonl", gzip.compress(b'[{"a":1}]', mtime=0), "json.gz"),
        ("x.bin", zstandard.compress(b'{"a":1}'), "jsonl.zst"),
        ("x.zst", b"\x50\x2a\x4d\x18\x02\x00\x00\x00ab" + zstandard.compress(b'{"a":1}'), "jsonl.zst"),
    ],
)
def test_the_kind_is_told_by_content_and_name(tmp_path, name, content, kind):
    (tmp_path / name).write_bytes(content)
    with Dataset.open([tmp_path / name]) as dataset:
        assert dataset.files[0].kind == kind
        assert len(list(dataset.scan())) >= 1


def zipped() -> bytes:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", "b")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", zipped(), "a zip archive"),
        ("x.jsonl", '{"a":1}'.encode("utf-16"), "UTF-16 text"),
        ("x.parquet", b"version https://git-lfs.github.com/spec/v1\n", r"a Git LFS pointer.*git lfs pull"),
        ("x.parquet", b"nothing", "named .parquet, but does not begin like such a file"),
        ("x.json", b'{\n  "data": []\n}', "one JSON object over several lines"),
        ("x.csv", b"question,answer\n", "begins with 'question,answer"),
        ("x.jsonl.gz", b"\x1f\x8b\x08" + b"\xff" * 30, "damaged gzip data"),
        ("x.jsonl.zst", b"\x28\xb5\x2f\xfd" + b"\xff" * 30, "damaged zstd data"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        Dataset.open([tmp_path / name])


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    path = write_kind(tmp_path, "jsonl")

    def refuse(self: Path) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    from grace_store.data.folders import examine_file

    with pytest.raises(DataError, match=r"data\.jsonl: cannot be read: Permission denied"):
        examine_file(path, "data.jsonl")


def test_importing_data_needs_no_model_store_or_index_library():
    code = (
        "import sys, grace_store.data; print([m for m in ('torch','transformers','zarr','faiss') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
