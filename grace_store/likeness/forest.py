"""The maximum spanning forest of all similar pairs: the few pairs that decide the groups. NumPy alone.

Two points are in one group at a threshold if a path of pairs that reach the threshold connects them. The forest has
fewer pairs than points, gives the same groups as all pairs at every threshold, and contains the pair of every point
with its most similar point. So no other pair need be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import BoolArray, Float32Array, IntArray

PAIRS_AT_ONCE = 1 << 21
"""Most pairs in memory before the reduction to a forest."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of points, with their similarities."""

    first: IntArray
    second: IntArray
    similarity: Float32Array

    @classmethod
    def none(cls) -> Pairs:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, which: BoolArray | IntArray) -> Pairs:
        return Pairs(self.first[which], self.second[which], self.similarity[which])


def joined(parts: Sequence[Pairs]) -> Pairs:
    """Return several sets of pairs as one."""
    columns = zip(*((part.first, part.second, part.similarity) for part in parts), strict=True)
    return Pairs(*map(np.concatenate, columns))


class ForestBuilder:
    """A forest that grows by pairs in any order, in memory that does not grow with the number of pairs."""

    def __init__(self, max_pairs: int = PAIRS_AT_ONCE) -> None:
        self._max_pairs = max_pairs
        self._forest = Pairs.none()
        self._waiting: list[Pairs] = []
        self._num_waiting = 0

    def add(self, pairs: Pairs) -> None:
        self._waiting.append(pairs)
        self._num_waiting += len(pairs)
        # A forest may have as many pairs as points: wait for as many new pairs before the next pass over all.
        if self._num_waiting >= max(self._max_pairs, len(self._forest)):
            self._thin_out()

    def finish(self) -> Pairs:
        """Return the forest of all pairs that were added, the most similar pair first."""
        self._thin_out()
        return self._forest

    def _thin_out(self) -> None:
        self._forest = spanning_forest(joined([self._forest, *self._waiting]))
        self._waiting, self._num_waiting = [], 0


def spanning_forest(pairs: Pairs) -> Pairs:
    """Return the pairs of the maximum spanning forest, the most similar first; ties go to the lower points.

    Borůvka's algorithm: every tree takes the best pair that leads out of it, until none does.
    """
    point, place = np.unique(np.concatenate([pairs.first, pairs.second]), return_inverse=True)
    first, second = np.minimum(*(ends := np.split(place, 2))), np.maximum(*ends)
    order = np.lexsort((second, first, -pairs.similarity))
    first, second = first[order], second[order]
    tree = np.arange(len(point))
    alive, chosen = np.arange(len(order)), np.zeros(len(order), dtype=np.bool_)
    while True:
        if not len(alive := alive[tree[first[alive]] != tree[second[alive]]]):
            return pairs[order[chosen]]
        one, other = tree[first[alive]], tree[second[alive]]
        best = np.full(len(point), len(order))
        np.minimum.at(best, one, alive)
        np.minimum.at(best, other, alive)
        grown = np.flatnonzero(best < len(order))
        edge = best[grown]
        chosen[edge] = True
        beyond = tree[first[edge]] + tree[second[edge]] - grown
        above = np.arange(len(point))
        above[grown] = beyond
        # Of two trees that chose each other, one stays a root.
        mutual = (above[beyond] == grown) & (grown < beyond)
        above[grown[mutual]] = grown[mutual]
        tree = _roots(above)[tree]


def connected(num_points: int, first: IntArray, second: IntArray) -> IntArray:
    """Return for every point the lowest point that it is connected to by pairs."""
    lowest = np.arange(num_points)
    while True:
        one, other = lowest[first], lowest[second]
        if not (apart := one != other).any():
            return lowest
        first, second, one, other = first[apart], second[apart], one[apart], other[apart]
        np.minimum.at(lowest, np.maximum(one, other), np.minimum(one, other))
        lowest = _roots(lowest)


def _roots(above: IntArray) -> IntArray:
    while not np.array_equal(further := above[above], above):
        above = further
    return above


def _both_ways(forest: Pairs) -> tuple[IntArray, IntArray, Float32Array]:
    """Return every pair in both directions: one end, the other end, and the similarity."""
    first, second = forest.first, forest.second
    return np.concatenate([first, second]), np.concatenate([second, first]), np.tile(forest.similarity, 2)


def nearest_in(num_points: int, forest: Pairs) -> tuple[IntArray, Float32Array]:
    """Return the most similar point of every point, and the similarity; -1 and NaN for a point in no pair."""
    ends, others, similarity = _both_ways(forest)
    order = np.lexsort((others, -similarity, ends))
    point, best = np.unique(ends[order], return_index=True)
    nearest, how = np.full(num_points, -1), np.full(num_points, np.nan, dtype=np.float32)
    nearest[point], how[point] = others[order][best], similarity[order][best]
    return nearest, how


def parents_in(num_points: int, forest: Pairs) -> tuple[IntArray, Float32Array]:
    """Return the next point on the path to the lowest point of the tree, and the similarity; else -1 and NaN."""
    every, other_ends, how_similar = _both_ways(forest)
    order = np.argsort(every, kind="stable")
    others, similarity = other_ends[order].tolist(), how_similar[order].tolist()
    start = np.searchsorted(every[order], np.arange(num_points + 1)).tolist()
    parent, how = [-1] * num_points, [np.nan] * num_points
    seen = bytearray(num_points)
    for root in np.unique(connected(num_points, forest.first, forest.second)[forest.first]).tolist():
        seen[root], waiting = 1, [root]
        while waiting:
            point = waiting.pop()
            for edge in range(start[point], start[point + 1]):
                if not seen[other := others[edge]]:
                    seen[other], parent[other], how[other] = 1, point, similarity[edge]
                    waiting.append(other)
    return np.array(parent, dtype=np.int64), np.array(how, dtype=np.float32)
