"""Rows of Parquet and Arrow files as JSON text. The only importer of pyarrow here; knows no formats.

A row becomes canonical JSON (sorted keys, no spaces), with what JSON lacks written as
    bytes             {"bytes_base64": "..."}
    NaN, infinities   null
    dates and times   their text, in UTC; durations and decimals likewise as number and text
"""

from __future__ import annotations

import base64
import bisect
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from grace_store.data.cursors import CursorPool
from grace_store.errors import DataError

_BATCH_ROWS = 256
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class TableReader(Protocol):
    """An open table file."""

    @property
    def num_rows(self) -> int: ...

    def rows(self) -> Iterator[bytes]:
        """Yield every row in order, in flat memory."""
        ...

    def row(self, index: int) -> bytes: ...

    def close(self) -> None: ...


def open_table(path: Path, kind: str) -> TableReader:
    """Open a file of kind "parquet" or "arrow"."""
    with _explained(path):
        return ParquetReader(path) if kind == "parquet" else ArrowReader(path)


def row_json(row: dict[str, Any]) -> bytes:
    """Return a row's canonical JSON."""
    try:
        return _dump(row)
    except ValueError:  # NaN or an infinity somewhere in it
        return _dump(_finite(row))


def _dump(value: Any) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain_value
    ).encode()


def _plain_value(value: object) -> Any:
    if isinstance(value, bytes):
        return {"bytes_base64": base64.b64encode(value).decode()}
    if isinstance(value, Decimal) or hasattr(value, "isoformat"):
        return str(value)
    if hasattr(value, "total_seconds"):
        return value.total_seconds()
    raise TypeError(f"a {type(value).__name__} in a table has no JSON form")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _batch_json(batch: pa.RecordBatch) -> list[bytes]:
    return [row_json(row) for row in _portable(batch).to_pylist()]


def _portable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with time columns as text, which as Python values would depend on pandas being there."""
    columns = []
    for column in batch.columns:
        kind = column.type
        if pa.types.is_duration(kind):
            column = column.cast(pa.int64())
        elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
            if pa.types.is_timestamp(kind):
                column = column.cast(pa.timestamp(kind.unit))
            column = column.cast(pa.string())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, TypeError) as error:
        raise DataError(
            f"{path}: cannot be read as a table: {error}. If it was cut short, copy it again; otherwise convert it to "
            "JSON lines."
        ) from error


class _GroupCursor:
    """Goes forward through one row group, a batch at a time."""

    def __init__(self, file: pq.ParquetFile, group: int, start: int) -> None:
        self._batches = file.iter_batches(_BATCH_ROWS, row_groups=[group], use_threads=False)
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
    """A Parquet file. A row is found by going forward through its row group, so ascending reads are cheap."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = pq.ParquetFile(path)
        self._starts = [0]
        for group in range(self._file.num_row_groups):
            self._starts.append(self._starts[-1] + self._file.metadata.row_group(group).num_rows)
        self._cursors = CursorPool(self._open_cursor)

    @property
    def num_rows(self) -> int:
        return self._starts[-1]

    def _open_cursor(self, start: int) -> _GroupCursor:
        group = bisect.bisect_right(self._starts, start) - 1
        return _GroupCursor(self._file, group, start)

    def rows(self) -> Iterator[bytes]:
        with _explained(self._path):
            for batch in self._file.iter_batches(_BATCH_ROWS, use_threads=False):
                yield from _batch_json(batch)

    def row(self, index: int) -> bytes:
        start = self._starts[bisect.bisect_right(self._starts, index) - 1]
        with _explained(self._path):
            return self._cursors.at(index, not_before=start).row(index)

    def close(self) -> None:
        self._cursors.close()
        self._file.close()


class ArrowReader:
    """An Arrow IPC stream (what ``datasets`` saves) or file, memory-mapped: any row is found at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source = pa.memory_map(str(path))
        if self._source.read(6) == b"ARROW1":
            file = pa.ipc.open_file(self._source)
            self._batches = [file.get_batch(i) for i in range(file.num_record_batches)]
        else:
            self._source.seek(max(self._source.size() - len(_END_OF_STREAM), 0))
            if self._source.read() != _END_OF_STREAM:  # pyarrow takes a stream cut between two batches for a whole one
                raise pa.ArrowInvalid("the stream has no end mark")
            self._source.seek(0)
            self._batches = list(pa.ipc.open_stream(self._source))
        self._starts = [0]
        for batch in self._batches:
            self._starts.append(self._starts[-1] + batch.num_rows)

    @property
    def num_rows(self) -> int:
        return self._starts[-1]

    def rows(self) -> Iterator[bytes]:
        with _explained(self._path):
            for batch in self._batches:
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    yield from _batch_json(batch.slice(start, _BATCH_ROWS))

    def row(self, index: int) -> bytes:
        number = bisect.bisect_right(self._starts, index) - 1
        with _explained(self._path):
            return _batch_json(self._batches[number].slice(index - self._starts[number], 1))[0]

    def close(self) -> None:
        self._batches = []
        self._source.close()
