"""Find all pairs of points whose cosine reaches a floor: exactly for few points, by cells for many.

Knows vectors of length 1 and their numbers, no samples. At most the vectors, rounded, and a few blocks are held. Equal
vectors are found by their bytes and searched once, so that a thousand copies cost no more than one; of the other pairs
only those of their maximum spanning forest are kept (``forest``). The result does not depend on the number of threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import distributions
from typing import Any, Literal, Protocol, TypeVar

import faiss
import numpy as np

from grace_store.base.arrays import BoolArray, Float32Array, IntArray
from grace_store.base.events import Listener, SamplesCompared, Warned, ignore
from grace_store.base.settings import default_threads
from grace_store.likeness.cell_tasks import (
    ROUNDING,
    CellSearch,
    Centres,
    Int16Array,
    Range,
    Shelves,
    points_per_task,
    reorder,
    rounded,
)
from grace_store.likeness.clusters import cells_in_order, faiss_threads, learn_centres
from grace_store.likeness.forest import PAIRS_AT_ONCE, ForestBuilder, Pairs
from grace_store.likeness.recall import Recall, Truth
from grace_store.likeness.vector_sources import Block, VectorSource, measured

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

NUM_QUERIES = 1000
"""Random points that the recall of an approximate search is measured by, against brute force."""
Kind = Literal["flat", "cells", "ivf", "ivf-sq8"]
BUILDS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12")
FLAT_WORK = 1e12
"""Most products of numbers for which every point is compared with every other."""
GPU_FLAT_WORK = 2e15
FLOAT_BYTES = 1 << 29
"""On GPUs, cells above this size keep 8 bits for each number instead of 32."""
QUERIES_AT_ONCE = 256
VECTORS_PER_CELL = 16
"""To find the cells by."""
CELL_ITERATIONS = 8
MANY_NEIGHBOURS = 1000
NUM_NEIGHBOURS = 16
"""Asked for first. Only where all of them are similar it is asked how many more there are."""
GPU_NEIGHBOURS = 1024
"""On a GPU, where more cost little; its index cannot be asked for all, so that is done on the CPU."""

_ROUNDING = 1e-5
"""How far inner products of float32 may be off."""
_SQ8_ROUNDING = 5e-3
_SQ8_MARGIN = 0.1
"""Room beyond the numbers seen in training, as a share of their range."""


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """How points are searched."""

    kind: Kind
    """flat: all with all; cells: those of a point's own and the next cells, as tasks; ivf: likewise by an index on
    GPUs; ivf-sq8: and with 8 bits a number."""
    num_cells: int = 0
    num_probed: int = 0
    """Cells in which a point's neighbours are looked for."""

    @property
    def tolerance(self) -> float:
        """Return how far a similarity may be off."""
        return {"ivf-sq8": _SQ8_ROUNDING, "cells": ROUNDING}.get(self.kind, _ROUNDING)


def plan_index(num_points: int, size: int, *, num_gpus: int = 0) -> IndexPlan:
    """Return how that many points, each of that many numbers, are searched.

    >>> plan_index(20_000, 2048)
    IndexPlan(kind='flat', num_cells=0, num_probed=0)
    >>> plan_index(200_000, 2048)
    IndexPlan(kind='cells', num_cells=1024, num_probed=32)
    """
    if num_points**2 * size <= (GPU_FLAT_WORK if num_gpus else FLAT_WORK):
        return IndexPlan("flat")
    num_cells = 1 << round(np.log2(2 * np.sqrt(num_points)))
    on_gpus: Kind = "ivf" if num_points * size * 4 <= FLOAT_BYTES else "ivf-sq8"
    return IndexPlan(on_gpus if num_gpus else "cells", num_cells, min(num_cells, max(16, num_cells // 32)))


def installed_builds() -> list[str]:
    """Return the packages that bring the module faiss."""
    return [name for name in BUILDS if any(distributions(name=name))]


def num_gpus() -> int:
    """Return how many GPUs faiss may use; none unless it was built for them."""
    return int(getattr(faiss, "get_num_gpus", lambda: 0)())


@dataclass(frozen=True, slots=True)
class Found:
    """The similar pairs among some points, as far as they decide who belongs together."""

    forest: Pairs
    """Similarities are at least the floor; those of equal vectors are 1."""
    nearest: IntArray
    """Each searched point's most similar one; -1 for points whose equal is in the forest or whose vector is zero."""
    nearest_similarity: Float32Array
    """As the index has it; NaN where there is none."""
    num_points: int
    num_distinct: int
    """Points that have a vector unlike those before them, byte for byte."""
    num_pairs: int
    """Similar pairs of distinct points that were seen, from either end."""
    plan: IndexPlan
    recall: Recall | None
    """None if every point was compared with every other."""


class Workers(Protocol):
    """What tasks are done by, if not by threads: those of a cluster."""

    def map(self, work: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        """Yield work(item) in the order of the items; work and items are sent there."""

    def share(self, value: ItemT) -> Callable[[], ItemT]:
        """Return what gives the value to any task; it is sent when first asked for, once to each machine."""


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
    searching = _ByCells(*given, workers, threads) if plan.kind == "cells" else _ByIndex(*given, gpus)
    with faiss_threads(threads):
        searching.fill()
        searching.search()
        return searching.found()


@dataclass(slots=True)
class _Searching:
    """One search: vectors are put somewhere, then each is asked for."""

    source: VectorSource
    floor: float
    plan: IndexPlan
    seed: int
    listener: Listener
    number: IntArray = field(init=False)
    """The numbers of the points that were put there, in that order."""
    nearest: IntArray = field(init=False)
    nearest_similarity: Float32Array = field(init=False)
    forest: ForestBuilder = field(default_factory=ForestBuilder, init=False)
    num_points: int = field(default=0, init=False)
    num_pairs: int = field(default=0, init=False)
    num_asked: int = field(default=0, init=False)
    truth: Truth | None = field(default=None, init=False)
    _has_warned: bool = field(default=False, init=False)

    def prepare(self) -> None:
        """Make room for vectors."""
        raise NotImplementedError

    def put(self, vector: Float32Array) -> None:
        """Put vectors there that are unlike all before."""
        raise NotImplementedError

    def search(self) -> None:
        """Find the pairs of all that was put there."""
        raise NotImplementedError

    def fill(self) -> None:
        """Put every vector there that is not equal to one before it."""
        self.prepare()
        self.nearest = np.full(self.source.num_points, -1)
        self.nearest_similarity = np.full(self.source.num_points, np.nan, dtype=np.float32)
        first_with: dict[bytes, int] = {}
        numbers: list[IntArray] = []
        for number, vector in self.source.blocks():
            self.num_points += len(number)
            is_new, twin = _distinct(number, vector, first_with)
            twins = twin >= 0
            self.forest.add(Pairs(twin[twins], number[twins], np.ones(int(twins.sum()), np.float32)))
            numbers.append(number[is_new])
            kept = np.ascontiguousarray(vector[is_new])
            self.put(kept)
            if self.truth is not None:
                self.truth.compare(number[is_new], kept)
        self.number = np.concatenate([np.zeros(0, np.int64), *numbers])
        if self.truth is not None:
            self.truth.end(self.number)

    def _sample(self) -> Float32Array:
        """Return vectors at random to find cells by, and let recall be measured by some of them."""
        number, vector = self.source.sampled(VECTORS_PER_CELL * self.plan.num_cells, self.seed)
        some = vector.any(axis=1)
        number, vector = number[some], np.ascontiguousarray(vector[some])
        chosen = np.random.default_rng(self.seed).permutation(len(number))[:NUM_QUERIES]
        self.truth = Truth(self.floor, number[chosen], vector[chosen])
        return vector

    def _count(self, num_pairs: int, num_asked: int) -> None:
        """Take note of pairs that were found and points that were asked for."""
        self.num_pairs += num_pairs
        self.num_asked += num_asked
        self.listener(SamplesCompared(self.num_asked, len(self.number)))
        if not self._has_warned and self.num_pairs > MANY_NEIGHBOURS * max(self.num_asked, QUERIES_AT_ONCE):
            self._has_warned = True
            self.listener(
                Warned(
                    f"Samples have more than {MANY_NEIGHBOURS} others above {self.floor:g}, which takes long. A higher "
                    "--floor is quicker, and so may another --descriptor be that tells samples better apart."
                )
            )

    def found(self) -> Found:
        forest = measured(self.forest.finish(), self.number, self.source)
        kept = forest[forest.similarity >= np.float32(self.floor)]
        recall = None if self.truth is None else self.truth.recall()
        counts = self.num_points, len(self.number), self.num_pairs
        return Found(kept, self.nearest, self.nearest_similarity, *counts, self.plan, recall)


@dataclass(slots=True)
class _ByCells(_Searching):
    """Rounded vectors in memory, put in the order of their cells, and tasks that search some of them each."""

    workers: Workers | None
    threads: int
    _centres: Centres = field(init=False)
    _row: Int16Array = field(init=False)
    _cell: list[IntArray] = field(default_factory=list, init=False)
    _num_rows: int = field(default=0, init=False)

    def prepare(self) -> None:
        vector = self._sample()
        num_cells = max(1, min(self.plan.num_cells, len(vector)))
        centre = learn_centres(vector, num_cells, self.seed, CELL_ITERATIONS) if len(vector) else vector
        self._centres = Centres.of(centre if len(vector) else np.zeros((1, self.source.size), np.float32))
        # No memory yet, but for as many as come.
        self._row = np.empty((self.source.num_points, self.source.size), dtype=np.int16)

    def put(self, vector: Float32Array) -> None:
        row = rounded(vector)
        self._row[self._num_rows : self._num_rows + len(row)] = row
        self._num_rows += len(row)
        self._cell.append(self._centres.cell_of(row))

    def search(self) -> None:
        if not self._num_rows:
            return
        tasks, work = self._tasks()
        number = work.number
        with ThreadPoolExecutor(self.threads) as pool:
            results = pool.map(work, tasks) if self.workers is None else self.workers.map(work, tasks)
            for (start, stop), result in zip(tasks, results, strict=True):
                mine = number[start:stop]
                self.nearest[mine], self.nearest_similarity[mine] = result.nearest, result.similarity
                self.forest.add(result.forest)
                assert self.truth is not None
                self.truth.found(result.true_pairs, result.largest_error)
                self._count(result.num_pairs, stop - start)

    def _tasks(self) -> tuple[list[Range], CellSearch]:
        """Return ranges of points, and what searches one; the vectors are handed over to it."""
        cell = np.concatenate(self._cell)
        near = cells_in_order(self._centres.centre, self.seed)
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
        return tasks, CellSearch(shelves, self._centres, *ranges, number, probed, floor, self.truth.pairs)


def _held(value: ItemT) -> Callable[[], ItemT]:
    """Return what gives a value that is here."""
    return lambda: value


@dataclass(slots=True)
class _ByIndex(_Searching):
    """An index of faiss, or a copy of it on the GPUs: flat for few points, by cells for more."""

    gpus: int
    index: Any = field(default=None, init=False)

    def prepare(self) -> None:
        size, plan = self.source.size, self.plan
        if plan.kind == "flat":
            self.index = faiss.IndexFlatIP(size)
            return
        vector, cells = self._sample(), faiss.IndexFlatIP(size)
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
            self._count(len(pairs), num_asked)
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
                # Where thousands are like thousands, fewer at a time: memory is for the index.
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


def _distinct(number: IntArray, vector: Float32Array, first_with: dict[bytes, int]) -> tuple[BoolArray, IntArray]:
    """Return which points have a new vector, and for the others the first that has it; zero vectors are neither."""
    is_new, twin = np.zeros(len(number), dtype=np.bool_), np.full(len(number), -1)
    for i in np.flatnonzero(vector.any(axis=1)).tolist():
        first = first_with.setdefault(hashlib.blake2b(vector[i].tobytes(), digest_size=16).digest(), int(number[i]))
        is_new[i] = first == number[i]
        twin[i] = -1 if is_new[i] else first
    return is_new, twin


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
