"""The table of step weights: a Parquet file with one row for each sample, and a note in its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace_store.base.arrays import Array, FloatArray, IntArray, find_rows
from grace_store.base.documents import document_metadata
from grace_store.base.text import counted
from grace_store.pool.arrow_arrays import arrow_floats, arrow_lists, arrow_numbers, arrow_texts, flag_lists
from grace_store.scoring.notes import WeightsNote
from grace_store.scoring.parquet_columns import NotedTable, not_made_by, read_columns, read_note
from grace_store.values.gram import is_step
from grace_store.values.weightings import WEIGHTINGS

if TYPE_CHECKING:
    from grace_store.pool.walk import SampleBlock
    from grace_store.values.weightings import RaggedWeights

COLUMNS = {
    "sample_id": pa.string(),
    "row": pa.int64(),
    "num_steps": pa.int32(),
    "num_tokens": pa.int64(),
    "weight": pa.list_(pa.float64()),
    "step_num_tokens": pa.list_(pa.int32()),
    "equal_cosine": pa.float64(),
    "cosine": pa.float64(),
    "flags": pa.list_(pa.string()),
}


@dataclass(frozen=True, slots=True, repr=False)
class WeightTable(NotedTable[WeightsNote]):
    """A table of weights in memory: its columns as Arrow, and its note."""

    def __repr__(self) -> str:
        place = f", {self.path}" if self.path else ""
        return f"<WeightTable: {counted(len(self), 'sample')} by {self.note.spec.method}{place}>"

    @property
    def is_mask(self) -> bool:
        """Whether all weights, also the answer's, are 0 or 1."""
        return WEIGHTINGS[self.note.spec.method].is_mask and self.note.spec.answer_weight in (0.0, 1.0)

    def segment_weights(self, rows: IntArray) -> Iterator[FloatArray | None]:
        """Yield the weights of each record's segments, the answer last; None for a record without weights."""
        column = self.table["weight"].combine_chunks()
        place, is_there = find_rows(self.row, rows)
        offsets, flat = column.offsets.to_numpy(), column.values.to_numpy(zero_copy_only=False)
        is_known = column.is_valid().to_numpy(zero_copy_only=False)
        for at, is_here in zip(place.tolist(), is_there.tolist(), strict=True):
            if is_here and is_known[at]:
                yield np.append(flat[offsets[at] : offsets[at + 1]], self.note.spec.answer_weight)
            else:
                yield None


def weight_rows(block: SampleBlock, sample_id: Array, found: RaggedWeights) -> pa.Table:
    step_tokens = block.segment_tokens[is_step(block.num_steps)]
    columns = {
        "sample_id": arrow_texts(sample_id.tolist()),
        "row": arrow_numbers(block.row, pa.int64()),
        "num_steps": arrow_numbers(block.num_steps, pa.int32()),
        "num_tokens": arrow_numbers(block.num_tokens, pa.int64()),
        "weight": arrow_lists(found.offsets, arrow_numbers(found.weight, pa.float64()), np.isnan(found.cosine)),
        "step_num_tokens": arrow_lists(found.offsets, arrow_numbers(step_tokens, pa.int32())),
        "equal_cosine": arrow_floats(found.equal_cosine, pa.float64()),
        "cosine": arrow_floats(found.cosine, pa.float64()),
        "flags": flag_lists(found.flags.astype(np.uint32)),
    }
    return pa.table(columns, schema=pa.schema(list(COLUMNS.items())))


def weights_schema(note: WeightsNote) -> pa.Schema:
    """Return the columns of a table, with its note in the metadata."""
    return pa.schema(list(COLUMNS.items()), metadata=document_metadata(note))


def read_weights(path: str | Path) -> WeightTable:
    """Read a table of weights; raise DataError if the file is not such a table."""
    path = Path(path)
    note = read_note(path, WeightsNote)
    table = read_columns(path, COLUMNS, note.maker)
    if nulls := [name for name in ("sample_id", "row", "num_steps") if table[name].null_count]:
        raise not_made_by(path, note.maker, f"{nulls[0]} is empty in some rows")
    if pc.any(pc.not_equal(pc.list_value_length(table["weight"]), table["num_steps"])).as_py():
        raise not_made_by(path, note.maker, "weight has lists without exactly one entry for each step")
    flat = pc.list_flatten(table["weight"])
    if flat.null_count or not pc.all(pc.and_(pc.is_finite(flat), pc.greater_equal(flat, 0.0)), min_count=0).as_py():
        raise not_made_by(path, note.maker, "some weights are negative or not a number")
    if len(pc.unique(table["row"])) < len(table):
        raise not_made_by(path, note.maker, "a row of the dataset is there twice")
    return WeightTable(table, note, path)


WeightsLike = WeightTable | str | Path
"""A table of weights, or its path."""
