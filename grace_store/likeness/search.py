"""Find all pairs of points whose cosine reaches a floor: exactly for few points, by cells for many.

Knows vectors of length 1 and their numbers, no samples. At most the vectors, rounded, and a few blocks are held. The
result does not depend on the number of threads, nor on who does the tasks of a search by cells (``cell_tasks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from typing import Any, Protocol, TypeVar

import faiss
import numpy as np

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.settings import default_threads
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
"""Most products of numbers for which every point is compared with every other."""
GPU_FLAT_WORK = 2e15
LEAST_PROBED = 16
"""Half of it found all pairs from a cosine of 0.9 up among random vectors in 1024 cells, which is the hardest case."""
FLOAT_BYTES = 1 << 29
"""On GPUs, cells above this size keep 8 bits for each number instead of 32."""


def plan_index(num_points: int, size: int, *, num_gpus: int = 0) -> IndexPlan:
    """Return how that many points, each of that many numbers, are searched.

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
    """Return the packages that bring the module faiss."""
    return [name for name in BUILDS if any(distributions(name=name))]


def num_gpus() -> int:
    """Return how many GPUs faiss may use; none unless it was built for them."""
    return int(getattr(faiss, "get_num_gpus", lambda: 0)())


def similar_pairs(
    source: VectorSource,
    floor: float,
    *,
    plan: IndexPlan | None = None,
    threads: int | None = None,
    workers: Workers | None = None,
    seed: int = 0,
    listener: Listener = ignore,
) -> Found:
    """Return the pairs of points with a cosine of at least floor, thinned out to their forest.

    Cells are searched by the workers, or by threads here; all else is done here.
    """
    if len(builds := installed_builds()) > 1:
        listener(
            Warned(
                f"{' and '.join(builds)} are both installed, under one name: which of them runs depends on which came "
                "last. Uninstall both, then install the one you want."
            )
        )
    gpus = num_gpus()
    plan = plan or plan_index(source.num_points, source.size, num_gpus=gpus)
    threads = threads or default_threads()
    given = source, floor, plan, seed, listener
    searching: Searching
    searching = (
        CellSearch(*given, workers=workers, threads=threads) if plan.kind == "cells" else IndexSearch(*given, gpus=gpus)
    )
    with faiss_threads(threads):
        searching.fill()
        searching.search()
        return searching.found()


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Workers(Protocol):
    """Machines of a cluster that run tasks, in place of threads."""

    def map(self, work: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        """Yield work(item) in the order of the items; work and items are sent there."""

    def share(self, value: ItemT) -> Callable[[], ItemT]:
        """Return a function that gives the value to any task; the value is sent once to each machine, when needed."""


class CellSearch(Searching):
    """Rounded vectors in memory, put in the order of their cells, and tasks that search some of them each."""

    def __init__(self, *given: Any, workers: Workers | None, threads: int) -> None:
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
        if self._workers is not None:
            self._take(work.number, tasks, self._workers.map(work, tasks))
            return
        with ThreadPoolExecutor(self._threads) as pool:
            self._take(work.number, tasks, pool.map(work, tasks))

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
        """Return ranges of points, and the task that searches a range; the task takes over the vectors."""
        cell = np.concatenate(self._cell)
        near = cells_in_order(self._centre, self.seed)
        order = np.argsort(near[cell], kind="stable")
        row, self._row = self._row[: self._num_rows], np.zeros((0, 0), np.int16)
        reorder(row, order)
        size, share = points_per_task(self.source.size), (self._workers.share if self._workers else _held)
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
    """Return a function that gives a value of this process."""
    return lambda: value


QUERIES_AT_ONCE = 256
NUM_NEIGHBOURS = 16
"""Asked for first. Only where all of them are similar it is asked how many more there are."""
GPU_NEIGHBOURS = 1024
"""On a GPU, where more cost little; its index cannot be asked for all, so that is done on the CPU."""
_SQ8_MARGIN = 0.1
"""Room beyond the numbers seen in training, as a share of their range."""


class IndexSearch(Searching):
    """An index of faiss, or a copy of it on the GPUs: flat for few points, by cells for more."""

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
            # Not of what is left beside the centre of a cell: that is smaller in training than for all others.
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
                self.truth.check(pairs)
            self.forest.add(pairs)
            self.count(len(pairs), num_asked)
        self.index = None  # its memory is for what follows

    def _results(self) -> Iterator[tuple[Pairs, int]]:
        """Yield the similar pairs of every point in the index with the others, and how many points that were."""
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
        """Keep the best pair of each of the points that were asked for; ties go to the lower point."""
        order = np.lexsort((pairs.second, -pairs.similarity, pairs.first))
        point, best = np.unique(pairs.first[order], return_index=True)
        better = ~(self.nearest_similarity[point] >= pairs.similarity[order][best])
        point, best = point[better], order[best[better]]
        self.nearest[point], self.nearest_similarity[point] = pairs.second[best], pairs.similarity[best].clip(-1, 1)

    def _queries(self) -> Iterator[Block]:
        """Yield the points of the index: from itself if it has them as they were, else read again."""
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
    """Asks an index, or a copy of it on the GPUs, for the nearest points and all that reach a similarity."""

    def __init__(self, index: Any, floor: float, gpus: int) -> None:
        self.index, self.floor, self.gpus = index, floor, gpus
        self._asked = faiss.index_cpu_to_all_gpus(index) if gpus else index

    def __call__(self, vector: Float32Array) -> Iterator[tuple[IntArray, IntArray, Float32Array]]:
        """Yield which vector, which place in the index, and how similar: the nearest few, and all above floor."""
        # One more than wanted, as every vector is its own neighbour.
        count = min(1 + (GPU_NEIGHBOURS if self.gpus else NUM_NEIGHBOURS), self.index.ntotal)
        similarity, place = self._asked.search(vector, count)
        query, column = np.nonzero(place >= 0)
        yield query, place[query, column], similarity[query, column]
        # Where the last of them is similar too there may be more.
        more = np.flatnonzero((place[:, -1] >= 0) & (similarity[:, -1] > self.floor))
        if len(more) and count < self.index.ntotal:
            limits, similarity, place = self.index.range_search(np.ascontiguousarray(vector[more]), self.floor)
            yield np.repeat(more, np.diff(limits.astype(np.int64))), place, similarity
