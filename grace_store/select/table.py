"""The table of scores: Parquet, one row a sample, with the spec that made it in the metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from grace_store.errors import DataError
from grace_store.score import RaggedScores, flag_names

METADATA_KEY = b"grace_store"

SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("row", pa.int64()),
        ("num_steps", pa.int32()),
        ("value", pa.float64()),
        ("step_score", pa.list_(pa.float64())),
        ("answer_alignment", pa.list_(pa.float64())),
        ("history_alignment", pa.list_(pa.float64())),
        ("flags", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """A scores table in memory: its columns as Arrow, and what made it."""

    table: pa.Table
    made_by: dict[str, Any]

    @property
    def value(self) -> npt.NDArray[np.float64]:
        return np.asarray(self.table["value"].to_numpy(zero_copy_only=False), dtype=np.float64)

    @property
    def row(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.table["row"].to_numpy(zero_copy_only=False), dtype=np.int64)

    @property
    def sample_id(self) -> list[str]:
        ids: list[str] = self.table["sample_id"].to_pylist()
        return ids

    def __len__(self) -> int:
        return int(self.table.num_rows)


class ScoreTableWriter:
    """Writes scores block by block."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer

    def add(
        self, sample_id: list[str], row: npt.NDArray[np.int64], num_steps: npt.NDArray[np.int64], scores: RaggedScores
    ) -> None:
        offsets = pa.array(scores.offsets, pa.int32())

        def steps(values: npt.NDArray[np.float64]) -> pa.ListArray:
            return pa.ListArray.from_arrays(offsets, pa.array(values, pa.float64(), from_pandas=True))

        self._writer.write_table(
            pa.table(
                [
                    pa.array(sample_id, pa.string()),
                    pa.array(row, pa.int64()),
                    pa.array(num_steps, pa.int32()),
                    pa.array(scores.value, pa.float64()),
                    steps(scores.step_score),
                    steps(scores.answer_alignment),
                    steps(scores.history_alignment),
                    pa.array([flag_names(int(flag)) for flag in scores.flags], pa.list_(pa.string())),
                ],
                schema=SCHEMA,
            )
        )


@contextmanager
def write_scores(path: Path, made_by: dict[str, Any]) -> Iterator[ScoreTableWriter]:
    """Open a table for writing; it appears under its name only when all of it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    schema = SCHEMA.with_metadata({METADATA_KEY: json.dumps(made_by, sort_keys=True).encode()})
    try:
        with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
            yield ScoreTableWriter(writer)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_scores(path: Path) -> ScoreTable:
    """Read a scores table, or say why the file is none."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; `grace-store score` makes such a table.") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a Parquet file ({error}).") from None
    metadata = (table.schema.metadata or {}).get(METADATA_KEY)
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if metadata is None or missing:
        raise DataError(f"{path} is not a table that `grace-store score` made (no {', '.join(missing) or 'spec'}).")
    return ScoreTable(table, json.loads(metadata))
