"""The recall of an approximate search against an exact search, measured on random points. NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from grace_store.base.arrays import BoolArray, Float32Array, IntArray
from grace_store.base.documents import Count
from grace_store.base.settings import Frozen
from grace_store.likeness.forest import Pairs, joined

MAX_PAIRS = 1 << 21
"""Most true pairs for the recall; with more, the number of points is halved."""


class Recall(Frozen):
    """The recall of an approximate search, measured on random points."""

    num_queries: Count
    num_true: Count
    """Pairs of these points with any other point that reach the floor."""
    num_found: Count
    largest_error: float
    """Largest error of a similarity in the index, among the pairs found. Reported similarities are exact."""
    share: float | None = None
    """Share of the true pairs that was found; None if there are no true pairs."""


@dataclass(frozen=True, slots=True)
class TruePairs:
    """Pairs that a search should find, each once."""

    key: IntArray
    """A number for each pair, made of its two points; ascending."""
    similarity: Float32Array
    num_points: int

    @classmethod
    def of(cls, pairs: Pairs, num_points: int) -> TruePairs:
        key, once = np.unique(_keys(pairs, num_points), return_index=True)
        return cls(key, pairs.similarity[once], num_points)

    def seen_in(self, pairs: Pairs) -> tuple[IntArray, float]:
        """Return the places of the true pairs that are among some pairs, and the largest error of a similarity."""
        if not len(self.key):
            return np.zeros(0, np.int64), 0.0
        key = _keys(pairs, self.num_points)
        place = np.searchsorted(self.key, key).clip(max=len(self.key) - 1)
        hit = self.key[place] == key
        return place[hit], float(np.abs(self.similarity[place[hit]] - pairs.similarity[hit]).max(initial=0.0))


def _keys(pairs: Pairs, num_points: int) -> IntArray:
    return np.minimum(pairs.first, pairs.second) * num_points + np.maximum(pairs.first, pairs.second)


@dataclass(slots=True)
class Truth:
    """All similar pairs of some points, by comparison with every vector, and the pairs that a search has found."""

    floor: float
    query: IntArray
    vector: Float32Array
    pairs: TruePairs = field(init=False)
    """Set when all vectors were compared."""
    _pairs: list[Pairs] = field(default_factory=list)
    """Pairs of a place in query and a point."""
    _num_pairs: int = 0
    _is_found: BoolArray = field(init=False)
    _largest_error: float = 0.0

    def compare(self, number: IntArray, vector: Float32Array) -> None:
        similarity = self.vector @ vector.T
        query, other = np.nonzero(similarity >= self.floor)
        self._pairs.append(Pairs(query, number[other], similarity[query, other]))
        self._num_pairs += len(query)
        while self._num_pairs > MAX_PAIRS and len(self.query) > 1:
            half = len(self.query) // 2
            self.query, self.vector = self.query[:half], self.vector[:half]
            self._pairs = [each[each.first < half] for each in self._pairs]
            self._num_pairs = sum(map(len, self._pairs))

    def end(self, number: IntArray) -> None:
        """Remove points that are not in the index because an equal point is, and pairs of a point with itself."""
        num_points = int(number[-1]) + 1 if len(number) else 0
        is_there = np.zeros(max(num_points, int(self.query.max(initial=0)) + 1), dtype=np.bool_)
        is_there[number] = True
        found = joined([Pairs.none(), *self._pairs])
        pairs = Pairs(self.query[found.first], found.second, found.similarity)
        self.pairs = TruePairs.of(pairs[is_there[pairs.first] & (pairs.first != pairs.second)], num_points)
        self._is_found = np.zeros(len(self.pairs.key), dtype=np.bool_)
        self.query = self.query[is_there[self.query]]
        self._pairs = []

    def found(self, seen: IntArray, largest_error: float) -> None:
        """Record the true pairs that a search found, by place, and the largest error of their similarities."""
        self._is_found[seen] = True
        self._largest_error = max(self._largest_error, largest_error)

    def recall(self) -> Recall:
        num_true, num_found = len(self.pairs.key), int(self._is_found.sum())
        return Recall(
            num_queries=len(self.query),
            num_true=num_true,
            num_found=num_found,
            largest_error=self._largest_error,
            share=num_found / num_true if num_true else None,
        )
