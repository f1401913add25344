"""The tables of a sweep: values with a row for each sample and a column for each setting, samples, and the summary."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BeforeValidator, Field

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.documents import document_metadata, find_document
from grace_store.base.errors import DataError
from grace_store.base.finding import SignalNote
from grace_store.pool.arrow_arrays import arrow_floats, arrow_numbers, arrow_texts, numpy_numbers
from grace_store.scoring.notes import StoreNote
from grace_store.scoring.parquet_columns import arrow_words, read_columns, read_note
from grace_store.values.grid import SweepSpec

SAMPLES_SCHEMA = pa.schema(
    [("sample_id", pa.string()), ("row", pa.int64()), ("num_steps", pa.int32()), ("num_tokens", pa.int64())]
)
SUMMARY_SCHEMA = pa.schema(
    [
        ("setting", pa.string()),
        ("measure", pa.string()),
        ("alpha", pa.float64()),
        *((name, pa.string()) for name in ("history", "target", "aggregation", "signals")),
        *((name, pa.int64()) for name in ("num_samples", "num_with_value")),
        *((name, pa.float64()) for name in ("mean", "standard_deviation", "quantile_05", "median", "quantile_95")),
        *((f"correlation_with_{name}", pa.float64()) for name in ("length", "num_steps")),
        ("command", pa.string()),
        *((name, pa.float64()) for name in ("overlap_with_default", "overlap_low", "overlap_high")),
    ]
)
GROUP_ROWS = 1 << 17

VALUES = "values.parquet"
SAMPLES = "samples.parquet"
SUMMARY = "summary.parquet"
OVERLAP = "overlap.parquet"
SWEEP_NOTE = "sweep.json"


class SweepNote(StoreNote, words="a sweep", maker="sweep"):
    """The note of a sweep."""

    kind: Literal["sweep"] = "sweep"
    spec: Annotated[
        SweepSpec, BeforeValidator(lambda given: SweepSpec.parse(**given) if isinstance(given, dict) else given)
    ]
    settings: tuple[str, ...] = Field(min_length=1)
    signals: dict[str, SignalNote]


class SweepWriter:
    """Writes the samples block by block, and the values in row groups of many blocks.

    Columns without nulls take half the time to write, so columns have no nulls until the first value is missing. Then
    the groups that exist are written again, into columns that may have nulls.
    """

    def __init__(self, path: Path, note: SweepNote, samples: pq.ParquetWriter) -> None:
        self._path = path
        self._note = note
        self._samples = samples
        self._values = self._opened(nullable=False)
        self._waiting: list[tuple[IntArray, FloatArray]] = []

    def add(self, samples: pa.Table, row: IntArray, values: FloatArray) -> None:
        """Add a block: its samples, their rows (n,) and values (settings, n)."""
        self._samples.write_table(samples)
        self._waiting.append((row, values))
        if sum(len(row) for row, _ in self._waiting) >= GROUP_ROWS:
            self._write_group()

    def finish(self) -> None:
        """Write the last group."""
        if any(len(row) for row, _ in self._waiting):
            self._write_group()

    def close(self) -> None:
        """Close the file of values, complete or not."""
        self._values.close()

    def _write_group(self) -> None:
        columns = [
            [arrow_numbers(row, pa.int64()), *(arrow_floats(each, pa.float64()) for each in values)]
            for row, values in self._waiting
        ]
        if any(each.null_count for block in columns for each in block) and not self._values.schema[-1].nullable:
            self._begin_again()
        table = pa.concat_tables(pa.Table.from_arrays(block, schema=self._values.schema) for block in columns)
        self._values.write_table(table, row_group_size=len(table))
        self._waiting.clear()

    def _opened(self, *, nullable: bool) -> pq.ParquetWriter:
        kinds = {"row": pa.int64(), **dict.fromkeys(self._note.settings, pa.float64())}
        columns = [pa.field(name, kind, nullable and name != "row") for name, kind in kinds.items()]
        schema = pa.schema(columns, metadata=document_metadata(self._note))
        # Hardly two values are equal.
        return pq.ParquetWriter(self._path, schema, compression="none", use_dictionary=False, write_statistics=False)

    def _begin_again(self) -> None:
        self._values.close()
        before = self._path.rename(self._path.with_suffix(".before"))
        self._values = self._opened(nullable=True)
        with pq.ParquetFile(before) as file:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number)
                self._values.write_table(group.cast(self._values.schema), row_group_size=len(group))
        before.unlink()


def samples_table(ids: Sequence[str], row: IntArray, num_steps: IntArray, num_tokens: IntArray) -> pa.Table:
    """Return a block's samples as SweepWriter takes them."""
    numbers = map(arrow_numbers, (row, num_steps, num_tokens), SAMPLES_SCHEMA.types[1:])
    return pa.Table.from_arrays([arrow_texts(ids), *numbers], schema=SAMPLES_SCHEMA)


@contextmanager
def write_sweep(folder: Path, note: SweepNote) -> Iterator[SweepWriter]:
    """Open the tables of values and samples for writing in a folder."""
    how: dict[str, Any] = {"compression": "snappy", "use_dictionary": False, "write_statistics": ["row"]}
    with (
        pq.ParquetWriter(folder / SAMPLES, SAMPLES_SCHEMA.with_metadata(document_metadata(note)), **how) as samples,
        closing(SweepWriter(folder / VALUES, note, samples)) as writer,
    ):
        yield writer
        writer.finish()  # only if nothing failed: otherwise the folder is deleted


class HeldTables:
    """A sweep's values and samples in memory. Threads may share it."""

    def __init__(self, note: SweepNote) -> None:
        self._samples = [SAMPLES_SCHEMA.empty_table()]
        self._values = [np.zeros((len(note.settings), 0))]

    def add(self, samples: pa.Table, row: IntArray, values: FloatArray) -> None:
        """Add a block: its samples, their rows (n,) and values (settings, n)."""
        self._samples.append(samples)
        self._values.append(values)

    def joined(self) -> Self:
        """Join the blocks after the last one was added."""
        self._samples, self._values = [pa.concat_tables(self._samples)], [np.concatenate(self._values, axis=1)]
        return self

    def values(self, index: int) -> FloatArray:
        """Return the values of one setting in the order of the samples."""
        return np.asarray(self._values[0][index])

    def samples(self) -> pa.Table:
        """Return the samples: id, row, num_steps, num_tokens."""
        return self._samples[0]


class FolderTables:
    """A sweep's values and samples in its folder, read one setting at a time. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings = read_note(folder / VALUES, SweepNote).settings
        self._metadata = pq.read_metadata(folder / VALUES)

    def values(self, index: int) -> FloatArray:
        name = self._settings[index]
        try:
            with pq.ParquetFile(self._folder / VALUES, metadata=self._metadata, pre_buffer=False) as file:
                column = file.read(columns=[name], use_threads=False)[name]
            return numpy_numbers(column.cast(pa.float64()))
        except (pa.ArrowException, OSError, KeyError) as error:
            raise DataError(f"{self._folder / VALUES} is damaged ({arrow_words(error)}). Sweep again.") from None

    def samples(self) -> pa.Table:
        return read_sweep_table(self._folder, SAMPLES, SAMPLES_SCHEMA)


SweepTables = HeldTables | FolderTables


def read_sweep_table(folder: Path, name: str, schema: pa.Schema) -> pa.Table:
    return read_columns(folder / name, dict(zip(schema.names, schema.types, strict=True)), SweepNote.maker)


def is_sweep(folder: Path) -> bool:
    """Return whether a folder holds a sweep that grace-store wrote."""
    return find_document(folder / SWEEP_NOTE, SweepNote) is not None
