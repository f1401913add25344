"""Find all pairs of points whose cosine reaches a floor, through faiss: exactly for few points, by cells for many.

Knows vectors of length 1 and their numbers, no samples. At most the index and a few blocks are held. Equal vectors are
found by their bytes and searched once, so that a thousand copies cost no more than one; of the other pairs only those
of their maximum spanning forest are kept (``forest``). The result does not depend on the number of threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import distributions
from typing import Any, Literal

import faiss
import numpy as np

from grace_store.base.arrays import BoolArray, Float32Array, IntArray
from grace_store.base.events import Listener, SamplesCompared, Warned, ignore
from grace_store.base.settings import default_threads
from grace_store.likeness.clusters import faiss_threads
from grace_store.likeness.forest import PAIRS_AT_ONCE, ForestBuilder, Pairs
from grace_store.likeness.vector_sources import Block, VectorSource, measured

NUM_QUERIES = 1000
"""Random points that the recall of an approximate search is measured by, against brute force."""
MAX_PAIRS = 1 << 21
"""Most pairs that recall is measured by; were there more, fewer points are looked at."""
Kind = Literal["flat", "ivf", "ivf-sq8"]
BUILDS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12")
FLAT_WORK = 1e12
"""Most products of numbers for which every point is compared with every other."""
GPU_FLAT_WORK = 2e15
FLOAT_BYTES = 1 << 29
"""Cells above this size keep 8 bits for each number instead of 32."""
QUERIES_AT_ONCE = 256
VECTORS_PER_CELL = 16
"""To find the cells by."""
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
    """flat: all with all; ivf: those of a point's own and the next cells; ivf-sq8: likewise, 8 bits a number."""
    num_cells: int = 0
    num_probed: int = 0
    """Cells in which a point's neighbours are looked for."""

    @property
    def tolerance(self) -> float:
        """Return how far a similarity may be off."""
        return _SQ8_ROUNDING if self.kind == "ivf-sq8" else _ROUNDING


def plan_index(num_points: int, size: int, *, num_gpus: int = 0) -> IndexPlan:
    """Return how that many points, each of that many numbers, are searched.

    >>> plan_index(20_000, 2048)
    IndexPlan(kind='flat', num_cells=0, num_probed=0)
    >>> plan_index(200_000, 2048)
    IndexPlan(kind='ivf-sq8', num_cells=1024, num_probed=32)
    """
    if num_points**2 * size <= (GPU_FLAT_WORK if num_gpus else FLAT_WORK):
        return IndexPlan("flat")
    num_cells = 1 << round(np.log2(2 * np.sqrt(num_points)))
    kind: Kind = "ivf" if num_points * size * 4 <= FLOAT_BYTES else "ivf-sq8"
    return IndexPlan(kind, num_cells, min(num_cells, max(16, num_cells // 32)))


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


def similar_pairs(
    source: VectorSource,
    floor: float,
    *,
    plan: IndexPlan | None = None,
    threads: int | None = None,
    seed: int = 0,
    listener: Listener = ignore,
) -> Found:
    """Return the pairs of points with a cosine of at least floor, thinned out to their forest."""
    if len(builds := installed_builds()) > 1:
        listener(
            Warned(
                f"{' and '.join(builds)} are both installed, under one name: which of them runs depends on which came "
                "last. Uninstall both, then install the one you want."
            )
        )
    gpus = num_gpus()
    plan = plan or plan_index(source.num_points, source.size, num_gpus=gpus)
    with faiss_threads(threads or default_threads()):
        searching = _Searching(source, floor, plan, seed, gpus, listener)
        searching.fill()
        for pairs in searching.results():
            searching.keep(pairs)
        return searching.found()


@dataclass(slots=True)
class _Searching:
    """One search: an index that is filled, then asked for every one of its points."""

    source: VectorSource
    floor: float
    plan: IndexPlan
    seed: int
    gpus: int
    listener: Listener
    index: Any = field(init=False)
    number: IntArray = field(init=False)
    """The numbers of the points in the index, by their places in it."""
    nearest: IntArray = field(init=False)
    nearest_similarity: Float32Array = field(init=False)
    forest: ForestBuilder = field(default_factory=ForestBuilder)
    num_points: int = 0
    num_pairs: int = 0
    num_asked: int = 0
    _truth: Truth | None = None
    _has_warned: bool = False

    def fill(self) -> None:
        """Make the index, and put every vector that is not equal to one before it there."""
        self.index = self._new_index()
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
            self.index.add(kept)
            if self._truth is not None:
                self._truth.compare(number[is_new], kept)
        self.number = np.concatenate([np.zeros(0, np.int64), *numbers])
        if self._truth is not None:
            self._truth.end(self.number)

    def _new_index(self) -> Any:
        size, plan = self.source.size, self.plan
        if plan.kind == "flat":
            return faiss.IndexFlatIP(size)
        number, vector = self.source.sampled(VECTORS_PER_CELL * plan.num_cells, self.seed)
        some = vector.any(axis=1)
        number, vector = number[some], np.ascontiguousarray(vector[some])
        cells = faiss.IndexFlatIP(size)
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
        index.cp.spherical, index.cp.seed, index.cp.niter = True, self.seed % 2**31, 8
        index.cp.min_points_per_centroid = 1
        index.train(vector)
        chosen = np.random.default_rng(self.seed).permutation(len(number))[:NUM_QUERIES]
        self._truth = Truth(self.floor, number[chosen], vector[chosen])
        return index

    def results(self) -> Iterator[Pairs]:
        """Yield the similar pairs of every point in the index with the others, some points at a time."""
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
                    yield pairs[pairs.similarity > ask.floor]
                start += at_once
                # Where thousands are like thousands, fewer at a time: memory is for the index.
                at_once = max(1, at_once // 2) if seen > PAIRS_AT_ONCE else min(2 * at_once, QUERIES_AT_ONCE)
                self.num_asked += len(few)
                self.listener(SamplesCompared(self.num_asked, len(self.number)))

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

    def keep(self, pairs: Pairs) -> None:
        self.num_pairs += len(pairs)
        if self._truth is not None:
            self._truth.check(pairs)
        self.forest.add(pairs)
        if not self._has_warned and self.num_pairs > MANY_NEIGHBOURS * max(self.num_asked, QUERIES_AT_ONCE):
            self._has_warned = True
            self.listener(
                Warned(
                    f"Samples have more than {MANY_NEIGHBOURS} others above {self.floor:g}, which takes long. A higher "
                    "--floor is quicker, and so may another --descriptor be that tells samples better apart."
                )
            )

    def found(self) -> Found:
        self.index = None  # its memory is for what follows
        forest = measured(self.forest.finish(), self.number, self.source)
        kept = forest[forest.similarity >= np.float32(self.floor)]
        recall = None if self._truth is None else self._truth.recall()
        counts = self.num_points, len(self.number), self.num_pairs
        return Found(kept, self.nearest, self.nearest_similarity, *counts, self.plan, recall)


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


@dataclass(frozen=True, slots=True)
class Recall:
    """What an approximate search found of what an exact one does, for some points at random."""

    num_queries: int
    num_true: int
    """Pairs of those points, with any other, that reach the floor."""
    num_found: int
    largest_error: float
    """Of a similarity in the index, among those found; what is reported is measured on the vectors themselves."""

    @property
    def share(self) -> float | None:
        """Return the share found; None if there was nothing to find."""
        return self.num_found / self.num_true if self.num_true else None


@dataclass(slots=True)
class Truth:
    """All similar pairs of some points, by comparing them with every vector; and how many of them a search finds."""

    floor: float
    query: IntArray
    vector: Float32Array
    _pairs: list[tuple[IntArray, IntArray, Float32Array]] = field(default_factory=list)
    _num_pairs: int = 0
    _key: IntArray = field(init=False)
    _similarity: Float32Array = field(init=False)
    _is_found: BoolArray = field(init=False)
    _num_points: int = 0
    _largest_error: float = 0.0

    def compare(self, number: IntArray, vector: Float32Array) -> None:
        similarity = self.vector @ vector.T
        query, other = np.nonzero(similarity >= self.floor)
        self._pairs.append((query, number[other], similarity[query, other]))
        self._num_pairs += len(query)
        while self._num_pairs > MAX_PAIRS and len(self.query) > 1:
            half = len(self.query) // 2
            self.query, self.vector = self.query[:half], self.vector[:half]
            self._pairs = [(q[q < half], o[q < half], s[q < half]) for q, o, s in self._pairs]
            self._num_pairs = sum(len(q) for q, _, _ in self._pairs)

    def end(self, number: IntArray) -> None:
        """Leave out points that are not in the index, having an equal one there, and pairs of a point with itself."""
        self._num_points = int(number[-1]) + 1 if len(number) else 0
        is_there = np.zeros(max(self._num_points, int(self.query.max(initial=0)) + 1), dtype=np.bool_)
        is_there[number] = True
        first = np.concatenate([np.zeros(0, np.int64), *(self.query[q] for q, _, _ in self._pairs)])
        second = np.concatenate([np.zeros(0, np.int64), *(o for _, o, _ in self._pairs)])
        similarity = np.concatenate([np.zeros(0, np.float32), *(s for _, _, s in self._pairs)])
        counts = is_there[first] & (first != second)
        # A pair of two of the points is one pair.
        self._key, once = np.unique(self._keys(first[counts], second[counts]), return_index=True)
        self._similarity = similarity[counts][once]
        self._is_found = np.zeros(len(self._key), dtype=np.bool_)
        self.query = self.query[is_there[self.query]]
        self._pairs = []

    def _keys(self, first: IntArray, second: IntArray) -> IntArray:
        return np.minimum(first, second) * self._num_points + np.maximum(first, second)

    def check(self, pairs: Pairs) -> None:
        if not len(self._key):
            return
        key = self._keys(pairs.first, pairs.second)
        place = np.searchsorted(self._key, key).clip(max=len(self._key) - 1)
        hit = self._key[place] == key
        self._is_found[place[hit]] = True
        error = np.abs(self._similarity[place[hit]] - pairs.similarity[hit]).max(initial=0.0)
        self._largest_error = max(self._largest_error, float(error))

    def recall(self) -> Recall:
        return Recall(len(self.query), len(self._key), int(self._is_found.sum()), self._largest_error)
