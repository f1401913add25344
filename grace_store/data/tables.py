"""Rows of Parquet and Arrow files as JSON text. The only importer of pyarrow in this room; knows no formats.

A row becomes canonical JSON (sorted keys, no spaces). Values without a JSON form become
    bytes             {"bytes_base64": "..."}
    NaN, infinities   null
    dates and times   text, in UTC; a duration becomes a number, a decimal becomes text
    text not UTF-8    one byte that is not JSON instead of the row, so that only this row is set aside

Files may be hostile: structure and offsets are validated before any value is read. The size of repeated values limits
the number of rows that are converted to Python values at a time.
"""

import base64
import bisect
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from grace_store.base.errors import DataError
from grace_store.base.files import JSON_LINES, PARQUET, format_of
from grace_store.base.text import without_nan
from grace_store.data.byte_streams import CursorPool

_BATCH_ROWS = 256
_BATCH_BYTES = 2**28
"""Memory limit of a batch; with very large values, a batch has fewer rows."""
_GROUP_BYTES = 2**29
"""Size of a row group above which fewer rows are read at a time; a batch may be a whole group."""
_ROWS_PER_BYTE = 16
"""Limit of rows per byte of a file; a file that claims more rows has no records, only a false count."""
_NOT_UTF8 = b"\xff"
ID = "id"
"""The column with the ids of samples in a file of labels."""
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""Cells of CSV and TSV without a value, as R, pandas and databases write them."""
_CONVERT = "If the file was cut short, copy it again. Otherwise convert it to JSON lines."
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def open_table(path: Path, kind: str) -> "ParquetReader | ArrowReader":
    """Open a file of kind "parquet" or "arrow"."""
    with _explained(path):
        return ParquetReader(path) if kind == "parquet" else ArrowReader(path)


def row_json(row: dict[str, Any]) -> bytes:
    """Return a row's canonical JSON."""
    try:
        return _dump(row)
    except ValueError:  # the row contains NaN or an infinity
        return _dump(without_nan(row))


def _dump(value: Any) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain_value
    ).encode()


def _plain_value(value: object) -> Any:
    if isinstance(value, bytes):
        return {"bytes_base64": base64.b64encode(value).decode()}
    if isinstance(value, Decimal | UUID) or hasattr(value, "isoformat"):
        return str(value)
    if hasattr(value, "total_seconds"):
        return value.total_seconds()
    raise TypeError(f"a {type(value).__name__} in a table has no JSON form")


def _batch_json(batch: pa.RecordBatch) -> list[bytes]:
    try:
        return [row_json(row) for row in _portable(batch).to_pylist()]
    except UnicodeDecodeError:
        return [_NOT_UTF8] if len(batch) == 1 else [_batch_json(batch.slice(i, 1))[0] for i in range(len(batch))]


def _check_table(schema: pa.Schema, num_rows: int, num_bytes: int) -> None:
    """Raise ArrowInvalid if column names repeat, or if the rows could need far more memory than the file has bytes."""
    if repeated := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise pa.ArrowInvalid(f"several columns are called {repeated[0]!r}")
    if num_rows > _ROWS_PER_BYTE * num_bytes:
        raise pa.ArrowInvalid(f"the file claims {num_rows} rows in {num_bytes} bytes")
    for field in schema:
        if _repeats_values(field.type, inside_list=False) == "list":
            raise pa.ArrowInvalid(f"column {field.name!r} has lists of values that share their bytes ({field.type})")


def _repeats_values(kind: pa.DataType, *, inside_list: bool) -> str:
    """Return "list" if values inside lists may share their bytes, "row" if values of rows may, else ""."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind) or kind in (pa.string_view(), pa.binary_view()):
        return "list" if inside_list else "row"
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return "list" if inside_list else _repeats_values(kind.value_type, inside_list=True) or "row"
    inside_list = inside_list or (types.is_nested(kind) and not types.is_struct(kind))
    found = [_repeats_values(kind.field(i).type, inside_list=inside_list) for i in range(kind.num_fields)]
    return max(found, key=len, default="")


def _portable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with time columns as text; their Python values would depend on whether pandas is installed."""

    def portable(column: pa.Array) -> pa.Array:
        kind = column.type
        if pa.types.is_duration(kind):
            return column.cast(pa.int64())
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp(kind.unit))
        is_time = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
        return column.cast(pa.string()) if is_time else column

    return pa.RecordBatch.from_arrays([portable(column) for column in batch.columns], names=batch.schema.names)


@contextmanager
def _explained(path: Path, remedy: str = _CONVERT) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, TypeError, ValueError, OverflowError, KeyError) as error:
        # ValueError and OverflowError: dates outside the range of Python; KeyError: unknown extension types.
        mixed = r"JSON parse error: Column\(/(.*)\) changed from (\w+) to (\w+) in row \d+"
        why = re.sub(mixed, r"column '\1' mixes the types \2 and \3", str(error))
        if isinstance(error, UnicodeDecodeError):
            line = error.object[: error.start].count(b"\n") + 1
            why, remedy = f"line {line} is not UTF-8", "Save the file as UTF-8."
        raise DataError(f"{path} cannot be read as a table: {why}. {remedy}") from error


def read_labels_table(path: Path) -> pa.Table:
    """Read a whole file of labels: CSV, TSV, JSON lines or Parquet. The ids of CSV and TSV are texts."""
    said = format_of(path)
    if said not in (kinds := ("CSV", "TSV", JSON_LINES, PARQUET)):
        raise DataError(f"The name {path.name} does not say the format of the labels. Give {', '.join(kinds)}.")
    cells = "Give each row as many cells as the first row has. Put a cell with a separator into double quotes."
    lines = _CONVERT.replace("convert it to JSON lines", "give each line an object, and each column values of one type")
    with _explained(path, {PARQUET: _CONVERT, JSON_LINES: lines}.get(said, cells)):
        if said == PARQUET:
            with pq.ParquetFile(path) as file:
                _check_table(file.schema_arrow, file.metadata.num_rows, path.stat().st_size)
                return file.read()
        path.read_bytes().decode()  # pyarrow would keep other bytes without a word
        return _read_objects(path) if said == JSON_LINES else _read_cells(path, "," if said == "CSV" else "\t")


def _read_objects(path: Path) -> pa.Table:
    """Read JSON lines. Columns that pyarrow would write in another way, times and long whole numbers, become texts."""
    found = pa.json.read_json(path)
    for place, (name, kind) in enumerate(zip(found.column_names, found.schema.types, strict=True)):
        is_long = pa.types.is_floating(kind) and pc.any(pc.greater_equal(pc.abs(found[place]), 2.0**63)).as_py()
        if is_long or pa.types.is_temporal(kind):
            exact = pa.schema({name: pa.decimal256(76, 0) if is_long else pa.string()})
            with suppress(pa.ArrowInvalid):  # numbers with fractions, or of more than 76 digits, stay floats
                again = pa.json.read_json(path, parse_options=pa.json.ParseOptions(explicit_schema=exact))
                found = found.set_column(place, name, again[name].cast(pa.string()))
    return found


def _read_cells(path: Path, delimiter: str) -> pa.Table:
    """Read CSV or TSV, each column as the narrowest type that keeps its cells; ids stay texts."""
    cells = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with pa.csv.open_csv(path, parse_options=cells) as opened:
        types = dict.fromkeys(opened.schema.names, pa.string())
    texts = pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    found = pa.csv.read_csv(path, parse_options=cells, convert_options=texts)
    named = zip(found.column_names, map(pa.ChunkedArray.combine_chunks, found.columns), strict=True)
    return pa.table([each if name == ID else _typed(each) for name, each in named], found.column_names)


def _typed(column: pa.Array) -> pa.Array:
    """Return cells as whole numbers, truth values, floats or texts, without those that have no value."""
    coded = column.dictionary_encode()  # labels have few different cells, and each is looked at once
    cells, bare = coded.dictionary, pc.utf8_trim_whitespace(coded.dictionary)
    is_missing = pc.match_substring_regex(bare, rf"^(?:{'|'.join(MISSING)})$")
    bare, cells = (pc.if_else(is_missing, pa.nulls(len(cells), pa.string()), each) for each in (bare, cells))
    is_long = pc.any(pc.match_substring_regex(bare, r"^[-+]?\d{17,}$")).as_py()  # a float would round it
    for kind in (pa.int64(), pa.bool_(), *([] if is_long else [pa.float64()])):
        with suppress(pa.ArrowInvalid):
            return bare.cast(kind).take(coded.indices)
    return cells.take(coded.indices)


def plain_column(column: pa.ChunkedArray) -> pa.Array:
    """Return a column whose values are texts, numbers or booleans: NaN is missing; lists and objects become JSON."""
    kind = column.type
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
    elif pa.types.is_nested(kind) or pa.types.is_binary(kind):
        with suppress(pa.ArrowInvalid):  # texts are also written as bytes
            if pa.types.is_binary(kind):
                return column.cast(pa.string()).combine_chunks()
        texts = [None if value is None else json.dumps(value, default=_plain_value) for value in column.to_pylist()]
        return pa.array(texts, pa.string())
    elif pa.types.is_temporal(kind) or pa.types.is_dictionary(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    return column.combine_chunks()


class _GroupCursor:
    """A cursor in one row group, which moves forward a batch at a time."""

    def __init__(self, file: pq.ParquetFile, group: int, start: int, num_rows: int) -> None:
        self._batches = file.iter_batches(num_rows, row_groups=[group], use_threads=False)
        self._rows: list[bytes] = []
        self.position = start

    def row(self, index: int) -> bytes:
        while index >= self.position + len(self._rows):
            self.position += len(self._rows)
            self._rows = _batch_json(next(self._batches))
        return self._rows[index - self.position]

    def close(self) -> None:
        self._rows = []


class ParquetReader:
    """A Parquet file. A cursor moves forward through the row group to find a row, so ascending reads are cheap."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = pq.ParquetFile(path)
        groups = map(self._file.metadata.row_group, range(self._file.num_row_groups))
        self._starts = [0, *itertools.accumulate(group.num_rows for group in groups)]
        self.num_rows = self._starts[-1]
        _check_table(self._file.schema_arrow, self.num_rows, path.stat().st_size)
        self._batch_rows = _parquet_batch_rows(path, self._file)
        self._cursors = CursorPool(
            lambda start: _GroupCursor(self._file, bisect.bisect(self._starts, start) - 1, start, self._batch_rows)
        )

    def rows(self) -> Iterator[bytes]:
        with _explained(self._path):
            for batch in self._file.iter_batches(self._batch_rows, use_threads=False):
                yield from _batch_json(batch)

    def row(self, index: int) -> bytes:
        start = self._starts[bisect.bisect_right(self._starts, index) - 1]
        with _explained(self._path):
            return self._cursors.at(index, not_before=start).row(index)

    def close(self) -> None:
        self._cursors.close()
        self._file.close()


def _parquet_batch_rows(path: Path, file: pq.ParquetFile) -> int:
    """Return how many rows to read at a time so that no batch needs much more than _BATCH_BYTES.

    A dictionary holds a value once, and any number of rows may repeat it, so the largest value in a dictionary bounds
    the memory of a row. The dictionaries are read to find it, because pyarrow crashes on malformed chunk metadata.
    """
    schema, metadata = file.schema, file.metadata
    texts = [column.path for column in map(schema.column, range(len(schema))) if column.physical_type == "BYTE_ARRAY"]
    largest_group = max((metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)), default=1)
    largest_value = 1
    with pq.ParquetFile(path, read_dictionary=texts) as dictionaries:
        for group in range(metadata.num_row_groups):
            for batch in itertools.islice(dictionaries.iter_batches(1, row_groups=[group], use_threads=False), 1):
                largest_value = max(largest_value, *map(_largest_repeated, batch.columns), 1)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // largest_value, _BATCH_ROWS * _GROUP_BYTES // max(largest_group, 1)))


def _largest_repeated(column: pa.Array) -> int:
    """Return the size of the largest value in the dictionaries of a column, in bytes."""
    if pa.types.is_dictionary(column.type):
        kind = column.type.value_type
        is_text = any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_binary))
        return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 1) if is_text else 1
    if pa.types.is_struct(column.type):
        return max(map(_largest_repeated, (column.field(i) for i in range(column.type.num_fields))), default=1)
    return _largest_repeated(column.values) if pa.types.is_nested(column.type) else 1


class ArrowReader:
    """An Arrow IPC stream (as saved by ``datasets``) or file, memory-mapped, with direct access to any row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source = pa.memory_map(str(path))
        if self._source.read(6) == b"ARROW1":
            file = pa.ipc.open_file(self._source)
            self._batches = [file.get_batch(i) for i in range(file.num_record_batches)]
        else:
            self._source.seek(max(self._source.size() - len(_END_OF_STREAM), 0))
            if self._source.read() != _END_OF_STREAM:  # pyarrow accepts a stream that was cut between two batches
                raise pa.ArrowInvalid("the stream has no end mark")
            self._source.seek(0)
            self._batches = list(pa.ipc.open_stream(self._source))
        self._validated: set[int] = set()
        self._starts = [0, *itertools.accumulate(batch.num_rows for batch in self._batches)]
        self.num_rows = self._starts[-1]
        if self._batches:
            _check_table(self._batches[0].schema, self.num_rows, self._source.size())

    def rows(self) -> Iterator[bytes]:
        with _explained(self._path):
            for number in range(len(self._batches)):
                batch = self._batch(number)
                step = _BATCH_ROWS
                if any(_repeats_values(field.type, inside_list=False) for field in batch.schema):
                    step = int(max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(batch.nbytes, 1))))
                for start in range(0, batch.num_rows, step):
                    yield from _batch_json(batch.slice(start, step))

    def row(self, index: int) -> bytes:
        number = bisect.bisect_right(self._starts, index) - 1
        with _explained(self._path):
            return _batch_json(self._batch(number).slice(index - self._starts[number], 1))[0]

    def _batch(self, number: int) -> pa.RecordBatch:
        """Return a batch after a check that its offsets stay inside it; pyarrow does not check them."""
        if number not in self._validated:
            self._batches[number].validate(full=True)
            self._validated.add(number)
        return self._batches[number]

    def close(self) -> None:
        self._batches = []
        self._source.close()
