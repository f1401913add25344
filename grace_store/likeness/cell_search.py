"""Search by cells without an index: rounded vectors in the order of their cells, and tasks that compare some of them.

The result is the same whoever does the tasks, and on how many machines (``cell_tasks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.likeness.cell_tasks import (
    CellTask,
    Int16Array,
    Range,
    Shelves,
    TaskResult,
    cell_of,
    points_per_task,
    reorder,
    rounded,
)
from grace_store.likeness.clusters import cells_in_order, learn_centres
from grace_store.likeness.search_base import CELL_ITERATIONS, Searching

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Workers(Protocol):
    """What tasks are done by, if not by threads: those of a cluster."""

    def map(self, work: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        """Yield work(item) in the order of the items; work and items are sent there."""

    def share(self, value: ItemT) -> Callable[[], ItemT]:
        """Return what gives the value to any task; it is sent when first asked for, once to each machine."""


@dataclass(slots=True)
class CellSearch(Searching):
    """Rounded vectors in memory, put in the order of their cells, and tasks that search some of them each."""

    workers: Workers | None
    threads: int
    _centre: Float32Array = field(init=False)
    _row: Int16Array = field(init=False)
    _cell: list[IntArray] = field(default_factory=list, init=False)
    _num_rows: int = field(default=0, init=False)

    def prepare(self) -> None:
        vector = self.sample()
        num_cells = max(1, min(self.plan.num_cells, len(vector)))
        centre = learn_centres(vector, num_cells, self.seed, CELL_ITERATIONS) if len(vector) else vector
        centre = centre if len(vector) else np.zeros((1, self.source.size), np.float32)
        self._centre = rounded(centre).astype(np.float32)
        # np.empty reserves address space; pages fill as rows arrive.
        self._row = np.empty((self.source.num_points, self.source.size), dtype=np.int16)

    def put(self, vector: Float32Array) -> None:
        row = rounded(vector)
        self._row[self._num_rows : self._num_rows + len(row)] = row
        self._num_rows += len(row)
        self._cell.append(cell_of(self._centre, row))

    def search(self) -> None:
        if not self._num_rows:
            return
        tasks, work = self._tasks()
        if self.workers is not None:
            self._take(work.number, tasks, self.workers.map(work, tasks))
            return
        with ThreadPoolExecutor(self.threads) as pool:
            self._take(work.number, tasks, pool.map(work, tasks))

    def _take(self, number: IntArray, tasks: Sequence[Range], results: Iterator[TaskResult]) -> None:
        """Put together what tasks found, in their order."""
        assert self.truth is not None
        for (start, stop), result in zip(tasks, results, strict=True):
            mine = number[start:stop]
            self.nearest[mine], self.nearest_similarity[mine] = result.nearest, result.similarity
            self.forest.add(result.forest)
            self.truth.found(result.true_pairs, result.largest_error)
            self.count(result.num_pairs, stop - start)

    def _tasks(self) -> tuple[list[Range], CellTask]:
        """Return ranges of points, and what searches one; the vectors are handed over to it."""
        cell = np.concatenate(self._cell)
        near = cells_in_order(self._centre, self.seed)
        order = np.argsort(near[cell], kind="stable")
        row, self._row = self._row[: self._num_rows], np.zeros((0, 0), np.int16)
        reorder(row, order)
        size, share = points_per_task(self.source.size), (self.workers.share if self.workers else _held)
        tasks = [(start, min(start + size, len(row))) for start in range(0, len(row), size)]
        shelves = Shelves([share(row[start:stop]) for start, stop in tasks], size)
        counts = np.bincount(near[cell], minlength=len(near))
        stop = np.cumsum(counts)[near]
        assert self.truth is not None
        floor, probed = self.floor - self.plan.tolerance, min(self.plan.num_probed, len(near))
        ranges = stop - counts[near], stop
        number = self.number[order]
        return tasks, CellTask(shelves, self._centre, *ranges, number, probed, floor, self.truth.pairs)


def _held(value: ItemT) -> Callable[[], ItemT]:
    """Return what gives a value that is here."""
    return lambda: value
