"""The base of every search: adding vectors, measuring recall, and the result.

Equal vectors are found by their bytes and searched once, so that a thousand copies cost no more than one. Of the other
pairs, only the maximum spanning forest is kept (``forest``).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from grace_store.base.arrays import BoolArray, Float32Array, IntArray
from grace_store.base.events import Listener, Progressed, Warned
from grace_store.likeness.cell_tasks import ROUNDING
from grace_store.likeness.forest import ForestBuilder, Pairs
from grace_store.likeness.recall import Recall, Truth

Kind = Literal["flat", "cells", "ivf", "ivf-sq8"]

NUM_QUERIES = 1000
"""Random points for the recall of an approximate search against brute force."""
VECTORS_PER_CELL = 16
"""Training vectors per cell."""
CELL_ITERATIONS = 8
MANY_NEIGHBOURS = 1000
FEWEST_ASKED = 256
"""Points that must be searched before a warning about many neighbours."""

_ROUNDING = 1e-5
"""Largest error of an inner product in float32."""
_SQ8_ROUNDING = 5e-3


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """The kind and the size of a search."""

    kind: Kind
    """flat compares each point with all others. cells compares it with the points of the nearest cells, in tasks. ivf
    does the same with an index on GPUs, ivf-sq8 with 8 bits for each number."""
    num_cells: int = 0
    num_probed: int = 0
    """Cells in which the neighbours of a point are searched."""

    @property
    def tolerance(self) -> float:
        """The largest error of a similarity."""
        return {"ivf-sq8": _SQ8_ROUNDING, "cells": ROUNDING}.get(self.kind, _ROUNDING)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: the similar pairs that decide the groups."""

    forest: Pairs
    """Pairs with similarities of at least the floor; 1 for equal vectors."""
    nearest: IntArray
    """The most similar point of each searched point; -1 for zero vectors and for copies of an earlier vector."""
    nearest_similarity: Float32Array
    """Similarity by the index; NaN if there is no nearest point."""
    num_points: int
    num_distinct: int
    """Points with a vector that differs from all earlier vectors, byte for byte."""
    num_pairs: int
    """Similar pairs of distinct points, counted from both ends."""
    plan: IndexPlan
    recall: Recall | None
    """None for an exact search."""


class Searching(ABC):
    """One search: vectors are added, then the neighbours of each vector are searched."""

    def __init__(self, source: VectorSource, floor: float, plan: IndexPlan, seed: int, listener: Listener) -> None:
        self.source, self.floor, self.plan, self.seed, self.listener = source, floor, plan, seed, listener
        self.number = np.zeros(0, np.int64)
        """Numbers of the points that were added, in this order."""
        self.nearest = np.full(source.num_points, -1)
        self.nearest_similarity = np.full(source.num_points, np.nan, dtype=np.float32)
        self.forest = ForestBuilder()
        self.truth: Truth | None = None
        self.num_points = self.num_pairs = self.num_asked = 0
        self._has_warned = False

    @abstractmethod
    def prepare(self) -> None:
        """Make room for vectors."""

    @abstractmethod
    def put(self, vector: Float32Array) -> None:
        """Add vectors that differ from all earlier vectors."""

    @abstractmethod
    def search(self) -> None:
        """Find the similar pairs of all vectors that were added."""

    def fill(self) -> None:
        """Add every vector that differs from all earlier vectors."""
        self.prepare()
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

    def sample(self) -> Float32Array:
        """Return random vectors for learning cells, and choose some of them for measuring recall."""
        number, vector = self.source.sampled(VECTORS_PER_CELL * self.plan.num_cells, self.seed)
        some = vector.any(axis=1)
        number, vector = number[some], np.ascontiguousarray(vector[some])
        chosen = np.random.default_rng(self.seed).permutation(len(number))[:NUM_QUERIES]
        self.truth = Truth(self.floor, number[chosen], vector[chosen])
        return vector

    def count(self, num_pairs: int, num_asked: int) -> None:
        """Count pairs that were found and points that were searched; report progress."""
        self.num_pairs += num_pairs
        self.num_asked += num_asked
        done, total = self.num_asked, len(self.number)
        self.listener(Progressed(f"Searching: {done} of {total} samples compared.", done, total))
        if not self._has_warned and self.num_pairs > MANY_NEIGHBOURS * max(self.num_asked, FEWEST_ASKED):
            self._has_warned = True
            many = f"Samples have more than {MANY_NEIGHBOURS} similar samples above {self.floor:g}"
            quicker = "A higher --floor is quicker. Another --descriptor may be quicker, too."
            self.listener(Warned(f"{many}, so the search takes long. {quicker}"))

    def found(self) -> Found:
        forest = measured(self.forest.finish(), self.number, self.source)
        kept = forest[forest.similarity >= np.float32(self.floor)]
        recall = None if self.truth is None else self.truth.recall()
        counts = self.num_points, len(self.number), self.num_pairs
        return Found(kept, self.nearest, self.nearest_similarity, *counts, self.plan, recall)


def _distinct(number: IntArray, vector: Float32Array, first_with: dict[bytes, int]) -> tuple[BoolArray, IntArray]:
    """Return which points have a new vector, and the first point with the vector of the others; -1 for zeros."""
    is_new, twin = np.zeros(len(number), dtype=np.bool_), np.full(len(number), -1)
    for i in np.flatnonzero(vector.any(axis=1)).tolist():
        first = first_with.setdefault(hashlib.blake2b(vector[i].tobytes(), digest_size=16).digest(), int(number[i]))
        is_new[i] = first == number[i]
        twin[i] = -1 if is_new[i] else first
    return is_new, twin


Block = tuple[IntArray, Float32Array]
"""Numbers of points, ascending, and their vectors: of length 1, or zeros, which are similar to nothing."""

MEASURED_BYTES = 1 << 28
PAIRS_AT_ONCE = 256


class VectorSource(Protocol):
    """Vectors to search. Every pass over the blocks has the same order."""

    @property
    def num_points(self) -> int:
        """One more than the largest number of a point."""

    @property
    def size(self) -> int:
        """Numbers in a vector."""

    def blocks(self) -> Iterator[Block]: ...

    def sampled(self, num_vectors: int, seed: int) -> Block:
        """Return about num_vectors random vectors, which depend on the seed alone."""


def measured(forest: Pairs, number: IntArray, source: VectorSource) -> Pairs:
    """Return the forest with exact cosines, from vectors read again with at most MEASURED_BYTES in memory."""
    is_there = np.zeros(source.num_points, dtype=np.bool_)
    is_there[number] = True
    similarity = np.ones(len(forest), dtype=np.float32)
    low, high = np.minimum(forest.first, forest.second), np.maximum(forest.first, forest.second)
    # A point that is not in the index has an equal point there, and their similarity is 1.
    open_pairs = np.flatnonzero(is_there[low] & is_there[high])
    lows = np.unique(low[open_pairs])
    at_once = max(1, MEASURED_BYTES // (4 * source.size))
    for start in range(0, len(lows), at_once):
        held = lows[start : start + at_once]
        mine = open_pairs[np.isin(low[open_pairs], held)]
        mine = mine[np.argsort(high[mine], kind="stable")]
        _measure(similarity, mine, low, high, held, source)
    return Pairs(low, high, similarity)[np.lexsort((high, low, -similarity))]


def _measure(
    similarity: Float32Array, mine: IntArray, low: IntArray, high: IntArray, held: IntArray, source: VectorSource
) -> None:
    """Fill in the similarities of pairs, ordered by higher point, in one pass; held has their lower points."""
    vectors = np.empty((len(held), source.size), dtype=np.float32)
    for number, vector in source.blocks():
        here = np.isin(number, held)
        vectors[np.searchsorted(held, number[here])] = vector[here]
        if not len(number):
            continue
        first, last = np.searchsorted(high[mine], [number[0], number[-1] + 1])
        for begin in range(int(first), int(last), PAIRS_AT_ONCE):
            some = mine[begin : min(begin + PAIRS_AT_ONCE, int(last))]
            ends = vectors[np.searchsorted(held, low[some])], vector[np.searchsorted(number, high[some])]
            similarity[some] = np.einsum("ij,ij->i", *ends, dtype=np.float64).clip(-1, 1)
