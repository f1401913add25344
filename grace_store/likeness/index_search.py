"""Search through an index of faiss: all with all for few points, and cells on GPUs for many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import faiss
import numpy as np

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.likeness.forest import PAIRS_AT_ONCE, Pairs
from grace_store.likeness.search_base import CELL_ITERATIONS, Searching
from grace_store.likeness.vector_sources import Block

QUERIES_AT_ONCE = 256
NUM_NEIGHBOURS = 16
"""Asked for first. Only where all of them are similar it is asked how many more there are."""
GPU_NEIGHBOURS = 1024
"""On a GPU, where more cost little; its index cannot be asked for all, so that is done on the CPU."""
_SQ8_MARGIN = 0.1
"""Room beyond the numbers seen in training, as a share of their range."""


@dataclass(slots=True)
class IndexSearch(Searching):
    """An index of faiss, or a copy of it on the GPUs: flat for few points, by cells for more."""

    gpus: int
    index: Any = field(default=None, init=False)

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
