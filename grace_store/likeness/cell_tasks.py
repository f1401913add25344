"""The tasks of a search by cells: a task compares some points with all points of the cells that they probe.

Vectors are rounded to whole numbers that are small enough for float32 to hold every sum of products exactly. So a
product of matrices, and the result of a task, has the same bits on every machine, with every library and number of
threads. NumPy alone.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.likeness.forest import ForestBuilder, Pairs
from grace_store.likeness.recall import TruePairs

Int16Array = npt.NDArray[np.int16]
Range = tuple[int, int]
"""A half-open range of places in the order of cells."""

EXACT_LENGTH = 1 << 12
"""Largest length of a rounded vector: sums of products stay below 2**24, where float32 is exact."""
ROUNDING = 1e-3
"""Largest error of the cosine of rounded vectors: ten times its standard deviation."""
TASK_BYTES = 1 << 26
"""Size of the vectors of a task, as float32."""
ROWS_AT_ONCE, PRODUCTS_AT_ONCE = 1024, 1 << 20


def whole_length(size: int) -> int:
    """Return the length to which vectors of this size are scaled before rounding, which may add 0.5 to each number.

    >>> whole_length(2048)
    4072
    """
    return EXACT_LENGTH - 1 - math.ceil(math.sqrt(size) / 2)


def rounded(vector: Float32Array) -> Int16Array:
    """Return vectors of length 1 as whole numbers."""
    return np.asarray(np.rint(vector * np.float32(whole_length(vector.shape[1]))), dtype=np.int16)


def reorder(row: Int16Array, order: IntArray) -> None:
    """Put rows in an order, in place, one cycle of the permutation after the other."""
    comes_from: list[int] = order.tolist()
    for start in range(len(comes_from)):
        if (source := comes_from[start]) == start:
            continue
        first, place = row[start].copy(), start
        while source != start:
            row[place] = row[source]
            comes_from[place], place = place, source
            source = comes_from[place]
        row[place] = first
        comes_from[place] = place


def points_per_task(size: int) -> int:
    return max(1, TASK_BYTES // (4 * size))


def cell_of(centre: Float32Array, vector: Int16Array) -> IntArray:
    """Return the cell of every vector: the cell with the nearest centre, ties to the first.

    Centres, (cells, m), are whole numbers, as the vectors are.
    """
    return np.concatenate([np.zeros(0, np.int64), *(near.argmax(axis=1) for near in _nearness(centre, vector))])


def cells_probed(centre: Float32Array, vector: Int16Array | Float32Array, count: int) -> IntArray:
    """Return the cells of the nearest centres of every vector, (n, count), in any order."""
    # All keys differ, so that the nearest cells are unique.
    keys = (np.arange(len(centre)) - near.astype(np.float64) * len(centre) for near in _nearness(centre, vector))
    nearest = (np.argpartition(key, count - 1, axis=1)[:, :count] for key in keys)
    return np.concatenate([np.zeros((0, count), np.int64), *nearest])


def _nearness(centre: Float32Array, vector: Int16Array | Float32Array) -> Iterator[Float32Array]:
    for start in range(0, len(vector), ROWS_AT_ONCE):
        yield vector[start : start + ROWS_AT_ONCE].astype(np.float32, copy=False) @ centre.T


@dataclass(frozen=True, slots=True)
class Shelves:
    """Vectors in the order of their cells, in shelves of equal size. A shelf may be fetched from elsewhere."""

    shelf: Sequence[Callable[[], Int16Array]]
    per_shelf: int

    def rows(self, start: int, stop: int) -> Int16Array:
        numbers = range(start // self.per_shelf, (stop - 1) // self.per_shelf + 1)
        begins = ((number, number * self.per_shelf) for number in numbers)
        parts = [self.shelf[number]()[max(0, start - begin) : stop - begin] for number, begin in begins]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class TaskResult:
    forest: Pairs
    num_pairs: int
    """Number of similar pairs before the reduction to a forest."""
    nearest: IntArray
    """The number of the most similar point of each point, ties to the lower; -1 if there is none."""
    similarity: Float32Array
    true_pairs: IntArray
    """Places of the true pairs that were found, which recall is measured by."""
    largest_error: float


@dataclass(frozen=True, slots=True)
class CellTask:
    """A function that compares a range of points with the cells that they probe. Can be sent to another machine."""

    shelves: Shelves
    centre: Float32Array
    """Centres of the cells, whole numbers."""
    cell_start: IntArray
    """The first place of each cell in the order, by the number of the cell."""
    cell_stop: IntArray
    number: IntArray
    """Numbers of the points in the order; ascending within a cell."""
    num_probed: int
    floor: float
    """Pairs above this cosine are kept."""
    truth: TruePairs

    def __call__(self, task: Range) -> TaskResult:
        start, stop = task
        query = self.shelves.rows(start, stop).astype(np.float32)
        found = _Finding(self, start, query)
        cell = cells_probed(self.centre, query, self.num_probed).ravel()
        by_cell = np.argsort(cell, kind="stable")
        probed, first = np.unique(cell[by_cell], return_index=True)
        for each, rows in zip(probed.tolist(), np.split(by_cell // self.num_probed, first[1:]), strict=True):
            found.compare(rows, int(self.cell_start[each]), int(self.cell_stop[each]))
        return found.result()


class _Finding:
    """The pairs and nearest points found so far for the points of one task."""

    def __init__(self, search: CellTask, start: int, query: Float32Array) -> None:
        self.search, self.start, self.query = search, start, query
        self.best = np.full(len(query), -np.inf, dtype=np.float32)
        self.nearest = np.full(len(query), -1)
        self.forest = ForestBuilder()
        self.true_pairs = [np.zeros(0, np.int64)]
        self.num_pairs, self.largest_error = 0, 0.0
        self.unit = whole_length(query.shape[1]) ** 2
        """The inner product of two equal vectors."""

    def compare(self, rows: IntArray, begin: int, end: int) -> None:
        """Compare the points in these rows with the points from begin to end in the order."""
        for first in range(begin, end, ROWS_AT_ONCE):
            other = self.search.shelves.rows(first, min(first + ROWS_AT_ONCE, end)).astype(np.float32)
            at_once = max(1, min(ROWS_AT_ONCE, PRODUCTS_AT_ONCE // len(other)))
            for some in range(0, len(rows), at_once):
                self._take(rows[some : some + at_once], first, other)

    def _take(self, rows: IntArray, first: int, other: Float32Array) -> None:
        product = self.query[rows] @ other.T
        itself = self.start + rows - first
        is_here = np.flatnonzero((itself >= 0) & (itself < len(other)))
        product[is_here, itself[is_here]] = -np.inf
        place = product.argmax(axis=1)
        top, number = product[np.arange(len(rows)), place], self.search.number[first + place]
        better = (top > self.best[rows]) | ((top == self.best[rows]) & (number < self.nearest[rows]))
        self.best[rows[better]], self.nearest[rows[better]] = top[better], number[better]
        least = self.search.floor * self.unit
        if len(hot := np.flatnonzero(top > least)):
            row, column = np.nonzero(product[hot] > least)
            ends = self.search.number[self.start + rows[hot[row]]], self.search.number[first + column]
            pairs = Pairs(*ends, self._cosine(product[hot[row], column]))
            self.num_pairs += len(pairs)
            self.forest.add(pairs)
            seen, error = self.search.truth.seen_in(pairs)
            self.true_pairs.append(seen)
            self.largest_error = max(self.largest_error, error)

    def _cosine(self, product: Float32Array) -> Float32Array:
        return (product.astype(np.float64) / self.unit).clip(-1, 1).astype(np.float32)

    def result(self) -> TaskResult:
        is_none = self.nearest < 0
        similarity = np.where(is_none, np.float32(np.nan), self._cosine(np.where(is_none, 0, self.best)))
        seen = np.unique(np.concatenate(self.true_pairs))
        return TaskResult(self.forest.finish(), self.num_pairs, self.nearest, similarity, seen, self.largest_error)
