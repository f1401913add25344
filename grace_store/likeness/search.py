"""Find all pairs of points whose cosine reaches a floor: exactly for few points, by cells for many.

Knows vectors of length 1 and their numbers, no samples. Memory holds at most the rounded vectors and a few blocks. The
result depends neither on the number of threads nor on the machines that run the tasks of a search (``cell_tasks``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from typing import Any

import faiss
import numpy as np

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.settings import Mapper, default_threads
from grace_store.likeness.cell_tasks import (
    CellTask,
    Range,
    Shelves,
    TaskResult,
    cell_of,
    points_per_task,
    reorder,
    rounded,
)
from grace_store.likeness.clusters import cells_in_order, faiss_threads, learn_centres
from grace_store.likeness.forest import PAIRS_AT_ONCE, Pairs
from grace_store.likeness.search_base import CELL_ITERATIONS, Block, Found, IndexPlan, Kind, Searching, VectorSource

BUILDS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12")
FLAT_WORK = 1e12
"""Most multiplications for a comparison of every point with every other point."""
GPU_FLAT_WORK = 2e15
LEAST_PROBED = 16
"""Fewest cells probed. Half as many found all pairs with a cosine of 0.9 in the hardest case: random vectors."""
FLOAT_BYTES = 1 << 29
"""On GPUs, vectors above this total size are stored with 8 bits for each number instead of 32."""


def plan_index(num_points: int, size: int, *, num_gpus: int = 0) -> IndexPlan:
    """Return the kind of search for this number of points and this size of vectors.

    >>> plan_index(20_000, 2048)
    IndexPlan(kind='flat', num_cells=0, num_probed=0)
    >>> plan_index(200_000, 2048)
    IndexPlan(kind='cells', num_cells=1024, num_probed=16)
    """
    if num_points**2 * size <= (GPU_FLAT_WORK if num_gpus else FLAT_WORK):
        return IndexPlan("flat")
    num_cells = 1 << round(np.log2(2 * np.sqrt(num_points)))
    on_gpus: Kind = "ivf" if num_points * size * 4 <= FLOAT_BYTES else "ivf-sq8"
    return IndexPlan(on_gpus if num_gpus else "cells", num_cells, min(num_cells, max(LEAST_PROBED, num_cells // 64)))


def installed_builds() -> list[str]:
    """Return the installed packages that contain the module faiss."""
    return [name for name in BUILDS if any(distributions(name=name))]


def num_gpus() -> int:
    """Return the number of GPUs that faiss can use; 0 if faiss was built without GPUs."""
    return int(getattr(faiss, "get_num_gpus", lambda: 0)())


def similar_pairs(
    source: VectorSource,
    floor: float,
    *,
    plan: IndexPlan | None = None,
    threads: int | None = None,
    workers: Mapper | None = None,
    seed: int = 0,
    listener: Listener = ignore,
) -> Found:
    """Return the pairs of points with a cosine of at least floor, reduced to their forest.

    The workers, or threads of this process, search cells; this process does all other work.
    """
    if len(builds := installed_builds()) > 1:
        several = f"{' and '.join(builds)} are both installed under one name, and the one installed last runs."
        listener(Warned(f"{several} Uninstall both, then install the one you want."))
    gpus = num_gpus()
    plan = plan or plan_index(source.num_points, source.size, num_gpus=gpus)
    threads = threads or default_threads()
    given = source, floor, plan, seed, listener
    searching: Searching = (
        CellSearch(*given, workers=workers, threads=threads) if plan.kind == "cells" else IndexSearch(*given, gpus=gpus)
    )
    with faiss_threads(threads):
        searching.fill()
        searching.search()
        return searching.found()


class CellSearch(Searching):
    """A search by cells: rounded vectors in memory, in the order of cells, and tasks that search ranges of them."""

    def __init__(self, *given: Any, workers: Mapper | None, threads: int) -> None:
        super().__init__(*given)
        self._workers, self._threads = workers, threads
        self._cell: list[IntArray] = []
        self._num_rows = 0

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
        with ThreadPoolExecutor(self._threads) as pool:
            self._take(work.number, tasks, (self._workers or pool).map(work, tasks))

    def _take(self, number: IntArray, tasks: Sequence[Range], results: Iterator[TaskResult]) -> None:
        """Merge the results of tasks, in their order."""
        assert self.truth is not None
        for (start, stop), result in zip(tasks, results, strict=True):
            mine = number[start:stop]
            self.nearest[mine], self.nearest_similarity[mine] = result.nearest, result.similarity
            self.forest.add(result.forest)
            self.truth.found(result.true_pairs, result.largest_error)
            self.count(result.num_pairs, stop - start)

    def _tasks(self) -> tuple[list[Range], CellTask]:
        """Return ranges of points, and the task that searches a range. The vectors now belong to the task."""
        cell = np.concatenate(self._cell)
        near = cells_in_order(self._centre, self.seed)
        order = np.argsort(near[cell], kind="stable")
        row, self._row = self._row[: self._num_rows], np.zeros((0, 0), np.int16)
        reorder(row, order)
        share: Any = self._workers.share if self._workers else lambda rows: lambda: rows  # in this process
        size = points_per_task(self.source.size)
        tasks = [(start, min(start + size, len(row))) for start in range(0, len(row), size)]
        shelves = Shelves([share(row[start:stop]) for start, stop in tasks], size)
        counts = np.bincount(near[cell], minlength=len(near))
        stop = np.cumsum(counts)[near]
        assert self.truth is not None
        floor, probed = self.floor - self.plan.tolerance, min(self.plan.num_probed, len(near))
        ranges = stop - counts[near], stop
        return tasks, CellTask(shelves, self._centre, *ranges, self.number[order], probed, floor, self.truth.pairs)


QUERIES_AT_ONCE = 256
NUM_NEIGHBOURS = 16
"""Neighbours in the first query of a point. Only if all are similar, a second query returns all similar points."""
GPU_NEIGHBOURS = 1024
"""The same on a GPU, where more neighbours cost little. The second query runs on the CPU."""
_SQ8_MARGIN = 0.1
"""Margin around the range of the training vectors, as a share of the range."""


class IndexSearch(Searching):
    """A search with an index of faiss, or a copy of it on the GPUs: flat for few points, by cells for more."""

    def __init__(self, *given: Any, gpus: int) -> None:
        super().__init__(*given)
        self.gpus = gpus
        self.index: Any = None

    def prepare(self) -> None:
        size, plan = self.source.size, self.plan
        if plan.kind == "flat":
            self.index = faiss.IndexFlatIP(size)
            return
        vector, cells = self.sample(), faiss.IndexFlatIP(size)
        if plan.kind == "ivf":
            index: Any = faiss.IndexIVFFlat(cells, size, plan.num_cells, faiss.METRIC_INNER_PRODUCT)
        else:
            # Without residuals (by_residual=False): residuals of training vectors are smaller than those of others.
            index = faiss.IndexIVFScalarQuantizer(
                cells, size, plan.num_cells, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT, False
            )
            index.sq.rangestat_arg = _SQ8_MARGIN
        index.nprobe = plan.num_probed
        # faiss takes a seed of 31 bits.
        index.cp.spherical, index.cp.seed, index.cp.niter = True, self.seed % 2**31, CELL_ITERATIONS
        index.cp.min_points_per_centroid = 1
        index.train(vector)
        self.index = index

    def put(self, vector: Float32Array) -> None:
        self.index.add(vector)

    def search(self) -> None:
        for pairs, num_asked in self._results():
            if self.truth is not None:
                self.truth.found(*self.truth.pairs.seen_in(pairs))
            self.forest.add(pairs)
            self.count(len(pairs), num_asked)
        self.index = None  # free its memory

    def _results(self) -> Iterator[tuple[Pairs, int]]:
        """Yield the similar pairs of the points in the index, and numbers of points whose search is complete."""
        ask = _Asked(self.index, self.floor - self.plan.tolerance, self.gpus)
        at_once = QUERIES_AT_ONCE
        for number, vector in self._queries():
            start = 0
            while start < len(number):
                few, seen = number[start : start + at_once], 0
                for query, place, similarity in ask(np.ascontiguousarray(vector[start : start + at_once])):
                    seen += len(query)
                    pairs = Pairs(few[query], self.number[place], similarity)
                    pairs = pairs[pairs.first != pairs.second]
                    self._take_nearest(pairs)
                    yield pairs[pairs.similarity > ask.floor], 0
                start += at_once
                # Dense neighbourhoods: halve the query batch, since the index needs the memory.
                at_once = max(1, at_once // 2) if seen > PAIRS_AT_ONCE else min(2 * at_once, QUERIES_AT_ONCE)
                yield Pairs.none(), len(few)

    def _take_nearest(self, pairs: Pairs) -> None:
        """Keep the best pair of each query point; ties go to the lower point."""
        order = np.lexsort((pairs.second, -pairs.similarity, pairs.first))
        point, best = np.unique(pairs.first[order], return_index=True)
        better = ~(self.nearest_similarity[point] >= pairs.similarity[order][best])
        point, best = point[better], order[best[better]]
        self.nearest[point], self.nearest_similarity[point] = pairs.second[best], pairs.similarity[best].clip(-1, 1)

    def _queries(self) -> Iterator[Block]:
        """Yield the points of the index: from the index if it stores exact vectors, else from the source."""
        if self.plan.kind == "flat":
            if len(self.number):
                vector = faiss.rev_swig_ptr(self.index.get_xb(), self.index.ntotal * self.index.d)
                yield self.number, vector.reshape(self.index.ntotal, self.index.d)
            return
        is_there = np.zeros(self.source.num_points, dtype=np.bool_)
        is_there[self.number] = True
        for number, vector in self.source.blocks():
            yield number[is_there[number]], vector[is_there[number]]


class _Asked:
    """Queries of an index, or of its copy on the GPUs: the nearest points, and all points above a similarity."""

    def __init__(self, index: Any, floor: float, gpus: int) -> None:
        self.index, self.floor, self.gpus = index, floor, gpus
        self._asked = faiss.index_cpu_to_all_gpus(index) if gpus else index

    def __call__(self, vector: Float32Array) -> Iterator[tuple[IntArray, IntArray, Float32Array]]:
        """Yield query, place in the index and similarity: first of the nearest points, then of all above floor."""
        # One more, because every vector is its own neighbour.
        count = min(1 + (GPU_NEIGHBOURS if self.gpus else NUM_NEIGHBOURS), self.index.ntotal)
        similarity, place = self._asked.search(vector, count)
        query, column = np.nonzero(place >= 0)
        yield query, place[query, column], similarity[query, column]
        # If the last neighbour is similar, there may be more.
        more = np.flatnonzero((place[:, -1] >= 0) & (similarity[:, -1] > self.floor))
        if len(more) and count < self.index.ntotal:
            limits, similarity, place = self.index.range_search(np.ascontiguousarray(vector[more]), self.floor)
            yield np.repeat(more, np.diff(limits.astype(np.int64))), place, similarity
