"""What a plan holds of some samples, at positions in any order. Bounded in memory."""

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
"""Samples that are looked up together where neighbours in the dataset are far apart in the plan."""

PositionsLike = IntArray | Sequence[int]
"""Of samples in a plan."""


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
    """Yield the plan's columns for samples at some positions, a piece at a time."""
    names = [f"sample_{name}" for name in SampleRows.COLUMNS]
    for piece in _pieces(store, positions):
        ids, *columns = _columns_at(store, names, piece)
        yield SampleRows(ids.tolist(), *columns)


def locators_at(store: Store, positions: PositionsLike) -> Iterator[tuple[int, int, int]]:
    """Yield where the records of samples at some positions lie: file, offset and length."""
    for piece in _pieces(store, positions):
        columns = _columns_at(store, ["sample_file", "sample_offset", "sample_length"], piece)
        yield from zip(*(column.tolist() for column in columns), strict=True)


def order_of_records(store: Store, positions: IntArray) -> IntArray:
    """Return the order in which the records of samples at some positions stand in the dataset."""
    return np.argsort(_columns_at(store, ["sample_row"], positions)[0] if store.plan.spec.gather else positions)


def _pieces(store: Store, positions: PositionsLike) -> Iterator[IntArray]:
    # Of a plan that gathers, any piece may need every chunk: large pieces read all of it a few times only.
    length = GATHERED_AT_ONCE if store.plan.spec.gather else SAMPLES_PER_CHUNK
    for start in range(0, len(positions), length):
        yield np.asarray(positions[start : start + length], dtype=np.int64)


def _columns_at(store: Store, names: Sequence[str], positions: IntArray) -> list[Array]:
    """Return arrays of the plan at some positions; each of their chunks is read once."""
    chunk = positions // SAMPLES_PER_CHUNK
    order = np.argsort(chunk, kind="stable")
    parts = np.split(positions[order], np.flatnonzero(np.diff(chunk[order])) + 1)
    back = np.argsort(order)
    return [np.concatenate([_within_chunk(store, name, part) for part in parts])[back] for name in names]


def _within_chunk(store: Store, name: str, positions: IntArray) -> Array:
    first, last = (int(positions.min()), int(positions.max())) if len(positions) else (0, -1)
    return store.column(name, first, last + 1)[positions - first]
