"""Read the plan's columns for samples at positions in any order, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from grace_store.base.arrays import Array, ByteArray, Int32Array, IntArray
from grace_store.store.layout import SAMPLES_PER_CHUNK

if TYPE_CHECKING:
    from grace_store.store.opened import Store

GATHERED_AT_ONCE = 1 << 18
"""Number of samples to look up together if neighbours in the dataset are far apart in the plan."""

PositionsLike = IntArray | Sequence[int]
"""Positions of samples in a plan."""


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The plan's columns for some samples."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("id", "row", "file", "offset", "length", "digest", "num_steps")

    sample_id: list[str]
    row: IntArray
    file: Int32Array
    offset: IntArray
    length: IntArray
    digest: ByteArray
    num_steps: Int32Array

    def __len__(self) -> int:
        return len(self.sample_id)


def rows_at(store: Store, positions: PositionsLike) -> Iterator[SampleRows]:
    """Yield the plan's columns for samples at the given positions, in pieces."""
    names = [f"sample_{name}" for name in SampleRows.COLUMNS]
    for piece in _pieces(store, positions):
        ids, *columns = _columns_at(store, names, piece)
        yield SampleRows(ids.tolist(), *columns)


def locators_at(store: Store, positions: PositionsLike) -> Iterator[tuple[int, int, int]]:
    """Yield the file, offset and length of the record of each sample at the given positions."""
    for piece in _pieces(store, positions):
        columns = _columns_at(store, ["sample_file", "sample_offset", "sample_length"], piece)
        yield from zip(*(column.tolist() for column in columns), strict=True)


def order_of_records(store: Store, positions: IntArray) -> IntArray:
    """Return the order of the given positions by the row of their records in the dataset."""
    return np.argsort(_columns_at(store, ["sample_row"], positions)[0] if store.plan.spec.gather else positions)


def _pieces(store: Store, positions: PositionsLike) -> Iterator[IntArray]:
    # If the plan gathers samples, a piece may need every chunk; with large pieces all chunks are read only a few times.
    length = GATHERED_AT_ONCE if store.plan.spec.gather else SAMPLES_PER_CHUNK
    for start in range(0, len(positions), length):
        yield np.asarray(positions[start : start + length], dtype=np.int64)


def _columns_at(store: Store, names: Sequence[str], positions: IntArray) -> list[Array]:
    """Return arrays of the plan at the given positions; each chunk is read once."""
    chunk = positions // SAMPLES_PER_CHUNK
    order = np.argsort(chunk, kind="stable")
    parts = np.split(positions[order], np.flatnonzero(np.diff(chunk[order])) + 1)
    spans = [(int(part.min()), int(part.max()) + 1) if len(part) else (0, 0) for part in parts]
    columns = []
    for name in names:
        values = [store.column(name, *span)[part - span[0]] for part, span in zip(parts, spans, strict=True)]
        columns.append(np.concatenate(values)[np.argsort(order)])
    return columns
