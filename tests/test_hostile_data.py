"""What strangers' data may not do: hang, crash, take all memory, or end in a traceback. Each was found by attack."""

from __future__ import annotations

import contextlib
import gzip
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.base.errors import DataError, NothingUsable, SettingError, UnknownFormat
from grace_store.base.settings import DataSpec
from grace_store.base.states import Reason, Unusable
from grace_store.data import tables
from grace_store.data.answers import answer_line, boxed_answer, dagger_answer, hashes_answer, natural_answer
from grace_store.data.dataset import Dataset
from grace_store.data.formats.known_formats import FORMATS
from grace_store.data.parse_records import MAX_ID_CHARS, parse_record
from grace_store.data.record import MAX_NESTING, Record, parse_object
from grace_store.data.sample import Sample
from grace_store.data.splitters import line_starts, named_splitter, natural_starts, paragraph_starts, section_starts
from grace_store.pool.records import open_dataset
from grace_store.run.plan import plan

GOOD = {"prompt": "q", "steps": ["a", "b"], "answer": "c"}


def record(fields: Any) -> Record:
    return Record(0, 0, 0, 0, fields if isinstance(fields, bytes) else json.dumps(fields).encode())


def verdict(fields: Any, format: str = "explicit") -> Unusable:
    with pytest.raises(Unusable, match=r"^[a-z_]+: ") as caught:
        parse_record(record(fields), DataSpec(format=format, min_steps=1), "data", 0)
    return caught.value


def understood(fields: Any, format: str = "explicit") -> Sample:
    return parse_record(record(fields), DataSpec(format=format, min_steps=1), "data", 0)


def planned(path: Path, folder: Path, **wishes: Any) -> Any:
    return plan([path], folder / "store.zarr", DataSpec(min_steps=1, **wishes)).plan


# ---------------------------------------------------------------- records


def nested(depth: int) -> bytes:
    """A good record with arrays so deep in it; the record itself is the first level."""
    return json.dumps(GOOD).encode()[:-1] + b', "x": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_nesting_has_one_limit_wherever_it_is_looked_at(tmp_path):
    assert understood(nested(MAX_NESTING)).num_steps == 2
    for depth in (MAX_NESTING + 1, 950, 1000, 100_000):  # from about 1000 on, the json module itself gives up
        assert (verdict(nested(depth)).reason, verdict(nested(depth)).detail) == (
            Reason.BAD_JSON, f"nested more than {MAX_NESTING} deep",
        )  # fmt: skip
    image: Any = "a.png"
    for _ in range(MAX_NESTING):
        image = {"path": image}
    assert verdict({**GOOD, "image": image}).reason is Reason.BAD_JSON


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 5000])
def test_numbers_that_python_cannot_hold_are_no_json(number):
    assert verdict(json.dumps(GOOD).encode().replace(b'"c"', number)).reason is Reason.BAD_JSON


def test_of_equal_keys_the_last_counts():
    assert parse_object(b'{"a": 1, "a": 2}') == {"a": 2}


@pytest.mark.parametrize(
    "bad", ["two\nlines", "a\rb", "a\x00b", "a\x1b[2J", "a\u2028b", "a\x85b", "x" * (MAX_ID_CHARS + 1)]
)
def test_an_id_stands_on_one_line(bad):
    found = verdict({**GOOD, "id": bad})
    assert found.reason is Reason.BAD_TEXT
    assert "id" in found.detail
    assert len(found.detail) < 200


@pytest.mark.parametrize(
    "odd", ["../../x", "/etc/passwd", "C:\\x", "\u202eabc", "e\u0301", "a b\u00a0c", "x" * MAX_ID_CHARS]
)
def test_an_id_that_looks_like_something_else_is_only_an_id(odd):
    assert understood({**GOOD, "id": odd}).sample_id == odd


def test_a_million_parts_of_a_turn_are_joined_in_no_time():
    # Added up one by one they would be copied a million times.
    content = [{"type": "text", "text": "ab"}] * 300_000
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "a\n\nb\n\nAnswer: c"}]
    assert len(understood({"messages": turns}, "messages").turns[0].text) == 600_000


def test_a_million_steps_are_too_many():
    assert verdict({**GOOD, "steps": ["a"] * 200_000}).reason is Reason.TOO_MANY_STEPS
    assert verdict({"question": "q", "answer": "a\n" * 200_000 + "#### 5"}, "gsm8k").reason is Reason.TOO_MANY_STEPS


def test_a_placeholder_without_an_image_is_no_question():
    for images in ({}, {"images": []}, {"image": None}):
        found = verdict({**GOOD, "prompt": "<image>what?", **images})
        assert (found.reason, found.detail) == (Reason.IMAGE_COUNT, "0 images for 1 <image> in the prompt")
    assert understood({**GOOD, "steps": ["the tag <image>", "b"]}).num_steps == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
KEYS = ("id", "prompt", "steps", "answer", "messages", "conversations", "images", "image", "image_url", "instruction",
        "output", "input", "history", "system", "question", "label", "problem", "generations")  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6), st.sampled_from(sorted(FORMATS)))
def test_every_format_gives_a_sample_or_a_verdict(fields, format):
    try:
        sample = understood(fields, format)
    except Unusable:
        return
    assert sample.bounds[-1] == len(sample.response)


# ---------------------------------------------------------------- texts

PIECES = ["a", " ", "\n", "\r", "*", "#", "#### ", "Step ", "Step 1", "Step 1:\n", "\\boxed{", "{", "\\", "†Answer:",
          "<think>", "</think>\n", "<CONCLUSION>", "<REASONING>\n\n", "therefore, the final answer", "so ", "\n \n",
          "\u2028", "e\u0301"]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_no_text_takes_more_than_its_length(piece):
    """Anything worse than linear would take minutes for such a text, and the suite would not end."""
    text = piece * (300_000 // len(piece))
    for find in (dagger_answer, hashes_answer, answer_line, boxed_answer, natural_answer):
        find(text)
    for split in (line_starts, paragraph_starts, section_starts, natural_starts, named_splitter(r"marker:\d+\.")):
        split(text)


def test_an_expression_with_a_huge_count_is_refused():
    with pytest.raises(SettingError, match="not a regular expression"):
        named_splitter("marker:a{" + "9" * 5000 + "}")


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"\n \n\n", NothingUsable, "There are no records in"),
        ("caf\xe9".encode("latin-1"), UnknownFormat, "not UTF-8 at byte 3 of the record"),
        (bytes(range(1, 256)), UnknownFormat, r"no record can be read \(records tried: 2\)"),
        (b"\0" * 1000, UnknownFormat, r"no record can be read \(records tried: 1\)"),
        (b'{"a": 1}\n', UnknownFormat, "the format of the records is not clear"),
        (gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), UnknownFormat, "no record can be read"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path, content, error, message):
    path = tmp_path / "strange.jsonl"
    path.write_bytes(content)
    with pytest.raises(error, match=message) as caught:
        planned(path, tmp_path)
    assert str(path) in str(caught.value)


def test_the_data_given_is_the_data_named(tmp_path):
    path, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    path.write_text(json.dumps(GOOD) + "\n")
    other.write_text(json.dumps({**GOOD, "answer": "d"}) + "\n")
    store = plan([path], tmp_path / "store.zarr", DataSpec(min_steps=1))
    with pytest.raises(DataError, match=rf"{other} \(planned as {path}\): planned .* changed records: row 0"):
        open_dataset(store, [other])
    with pytest.raises(DataError, match=r"No such file or folder: nowhere\.jsonl"):
        open_dataset(store, ["nowhere.jsonl"])


BOMB = """
import resource, sys
from grace_store.data.dataset import Dataset
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with Dataset.open([sys.argv[1]]) as dataset:
    lengths = [record.length or len(record.raw) for record in dataset.scan()]
print(len(lengths), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def grown_mb(path: Path) -> tuple[int, int]:
    """Return the records in a file and by how much a process grew that read them all."""
    done = subprocess.run([sys.executable, "-c", BOMB, path], capture_output=True, text=True, check=True)
    count, grown = map(int, done.stdout.split())
    return count, grown


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_decompression_bomb_takes_time_but_no_memory(tmp_path, kind):
    path = tmp_path / f"bomb.jsonl.{kind}"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31) if kind == "gz" else zstandard.ZstdCompressor().compressobj()
    with path.open("wb") as stream:
        for _ in range(200):
            stream.write(packer.compress(b"\0" * 2**20))
        stream.write(packer.compress(b"\n{}\n") + packer.flush())
    assert path.stat().st_size < 2**20
    count, grown = grown_mb(path)
    assert count == 2
    assert grown < 120  # a record that is too large, twice; not 200


def test_a_window_larger_than_memory_is_refused(tmp_path):
    settings = zstandard.ZstdCompressionParameters.from_level(3, window_log=30)
    packer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    (tmp_path / "x.jsonl.zst").write_bytes(packer.compress(b"{}\n") + packer.flush())
    with pytest.raises(DataError, match=r"x\.jsonl\.zst: this file was compressed with a window of more than 128 MB"):
        Dataset.open([tmp_path / "x.jsonl.zst"])


# ---------------------------------------------------------------- tables


def rows_of(path: Path) -> list[Record]:
    with Dataset.open([path]) as dataset:
        return list(dataset.scan())


def write_arrow(table: pa.Table, path: Path) -> Path:
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


def test_a_value_repeated_by_a_dictionary_is_not_held_many_times(tmp_path, monkeypatch):
    seen: list[int] = []
    as_json = tables._batch_json
    monkeypatch.setattr(tables, "_BATCH_BYTES", 2**20)
    monkeypatch.setattr(tables, "_batch_json", lambda batch: seen.append(len(batch)) or as_json(batch))
    indices = pa.array([0] * 50 + [1] * 50, pa.int32())
    repeated = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 2**17, "y"]))
    pq.write_table(pa.table({"prompt": repeated}), tmp_path / "flat.parquet")
    pq.write_table(pa.table({"turns": pa.array([[{"text": "z" * 2**17}]] * 100)}), tmp_path / "nested.parquet")
    paths = [tmp_path / "flat.parquet", tmp_path / "nested.parquet"]
    for path in [*paths, write_arrow(pa.table({"prompt": repeated}), tmp_path / "x.arrow")]:
        seen.clear()
        assert len(rows_of(path)) == 100
        assert max(seen) <= 8  # 8 values of 128 kB make 1 MB


def test_a_table_with_more_rows_than_bytes_is_refused(tmp_path):
    batch = pa.RecordBatch.from_arrays([pa.nulls(10**7)], names=["x"])
    path = write_arrow(pa.Table.from_batches([batch]), tmp_path / "x.arrow")
    with pytest.raises(DataError, match=r"x\.arrow cannot be read as a table: the file claims 10000000 rows"):
        rows_of(path)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[2**30]], pa.list_(pa.date32())), "days="),
        (pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), "lists of values that share their bytes"),
    ],
)
def test_columns_that_have_no_json_form_are_refused(tmp_path, column, message):
    with pytest.raises(DataError, match=message):
        rows_of(write_arrow(pa.table({"x": column}), tmp_path / "x.arrow"))


def test_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DataError, match="several columns are called 'prompt'"):
        rows_of(tmp_path / "x.parquet")


def test_a_row_that_is_not_utf8_is_set_aside_alone(tmp_path):
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    pq.write_table(pa.table({"x": text}), tmp_path / "x.parquet")
    good, bad = rows_of(tmp_path / "x.parquet")
    assert good.parse() == {"x": "a"}
    with pytest.raises(Unusable, match="bad_json: not UTF-8"):
        bad.parse()


def test_offsets_that_point_outside_are_seen_before_they_are_followed(tmp_path):
    """pyarrow itself trusts them: it would read whatever lies there, or die."""
    path = write_arrow(pa.table({"x": pa.array(["abcd"])}), tmp_path / "x.arrow")
    content = path.read_bytes()
    offsets = content.rindex(b"\0\0\0\0\4\0\0\0", 0, content.index(b"abcd"))
    path.write_bytes(content[: offsets + 4] + b"\xff\xff\xff\x7f" + content[offsets + 8 :])
    with pytest.raises(DataError, match=r"x\.arrow cannot be read as a table.*out of bounds"):
        rows_of(path)


def test_metadata_of_a_column_that_is_malformed_ends_no_process(tmp_path):
    """pyarrow ends the process if asked for such a column's metadata; a histogram has one entry too many here."""
    turns = [[{"role": "user"}], [{"role": "assistant"}]]
    pq.write_table(pa.table({"m": turns}), tmp_path / "x.parquet")
    content = (tmp_path / "x.parquet").read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path = tmp_path / "y.parquet"
    for at in range(footer, len(content) - 8):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        with contextlib.suppress(DataError):
            rows_of(path)


def test_a_uuid_is_its_text(tmp_path):
    path = write_arrow(pa.table({"x": pa.array([b"0" * 16], pa.uuid())}), tmp_path / "x.arrow")
    assert rows_of(path)[0].parse() == {"x": "30303030-3030-3030-3030-303030303030"}


@pytest.mark.parametrize("name", [["a"], {"x": 1}, "x" * 5000, "../x.arrow", "a\0b", None])
def test_a_datasets_folder_names_only_files_in_it(tmp_path, name):
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(DataError, match=r"but its state.json names them|outside the folder"):
        Dataset.open([tmp_path])
