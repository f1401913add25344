"""How much of the truth an approximate search finds: all similar pairs of a few points at random, by brute force."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from grace_store.base.arrays import BoolArray, Float32Array, IntArray
from grace_store.likeness.forest import Pairs

NUM_QUERIES = 1000
MAX_PAIRS = 1 << 21
"""Most pairs that recall is measured by; were there more, fewer points are looked at."""


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
