"""The values of a sweep as tidy Parquet: a row for each setting and sample, and a table of the samples.

A row group holds one setting of a run of samples, so one setting is read without the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace_store.artifacts.score_table import METADATA_KEY, metadata_of
from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import DataError

VALUES_SCHEMA = pa.schema(
    [
        ("setting", pa.dictionary(pa.int32(), pa.string())),
        ("row", pa.int64()),
        ("value", pa.float64()),
    ]
)
SAMPLES_SCHEMA = pa.schema(
    [("sample_id", pa.string()), ("row", pa.int64()), ("num_steps", pa.int32()), ("num_tokens", pa.int64())]
)
GROUP_ROWS = 1 << 16

VALUES = "values.parquet"
SAMPLES = "samples.parquet"


class SweepWriter:
    """Writes blocks of values; runs of samples are gathered until they fill a row group."""

    def __init__(self, values: pq.ParquetWriter, samples: pq.ParquetWriter, settings: Sequence[str]) -> None:
        self._values = values
        self._samples = samples
        self._settings = settings
        self._waiting: list[tuple[IntArray, FloatArray]] = []
        self._num_waiting = 0

    def add(self, samples: pa.Table, row: IntArray, values: FloatArray) -> None:
        """Add a block: its samples, their rows (n,) and values (settings, n)."""
        self._samples.write_table(samples)
        self._waiting.append((row, values))
        self._num_waiting += len(row)
        if self._num_waiting >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        if not self._num_waiting:
            return
        rows = pa.array(np.concatenate([row for row, _ in self._waiting]), pa.int64())
        for index, setting in enumerate(self._settings):
            values = np.concatenate([values[index] for _, values in self._waiting])
            columns = [_constant(setting, len(rows)), rows, pa.array(values, pa.float64(), from_pandas=True)]
            self._values.write_table(pa.table(columns, schema=VALUES_SCHEMA), row_group_size=len(rows))
        self._waiting.clear()
        self._num_waiting = 0


def _constant(text: str, length: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(length, np.int32)), pa.array([text], pa.string()))


@contextmanager
def write_sweep(folder: Path, settings: Sequence[str], made_by: dict[str, Any]) -> Iterator[SweepWriter]:
    """Open a sweep's two tables for writing in a folder."""
    with (
        pq.ParquetWriter(
            folder / VALUES,
            VALUES_SCHEMA.with_metadata(metadata_of(made_by)),
            compression="none",  # hardly two values are equal, and rows are packed already
            use_dictionary=["setting"],
            column_encoding={"row": "DELTA_BINARY_PACKED", "value": "PLAIN"},
            write_statistics=["setting"],
        ) as values,
        pq.ParquetWriter(
            folder / SAMPLES,
            SAMPLES_SCHEMA.with_metadata(metadata_of(made_by)),
            compression="zstd",
            use_dictionary=False,
        ) as samples,
    ):
        writer = SweepWriter(values, samples, settings)
        yield writer
        writer.flush()


class SweepValues:
    """The values of a sweep on disk, read one setting at a time. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / VALUES
        try:
            self._metadata = pq.read_metadata(self._path)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{folder} is not what `grace-store sweep` makes ({error}).") from None
        self.made_by: dict[str, Any] = json.loads(self._metadata.metadata[METADATA_KEY])
        self.settings: list[str] = self.made_by["settings"]

    def read(self, index: int) -> FloatArray:
        """Return the values of one setting in the order of the samples."""
        groups = list(range(index, self._metadata.num_row_groups, len(self.settings)))
        if not groups:
            return np.zeros(0)
        with pq.ParquetFile(self._path, metadata=self._metadata) as file:
            column = file.read_row_groups(groups, columns=["value"], use_threads=False)["value"]
        return np.asarray(column.to_numpy(), dtype=np.float64)
