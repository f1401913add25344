"""Where vectors to search come from, block by block, and the cosines of some pairs of them. NumPy alone."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.likeness.forest import Pairs

Block = tuple[IntArray, Float32Array]
"""Numbers of points, ascending, and their vectors: of length 1, or of zeros, which are like nothing."""

MEASURED_BYTES = 1 << 28
PAIRS_AT_ONCE = 256


class VectorSource(Protocol):
    """Vectors to search, as often as asked for, in the same order every time."""

    @property
    def num_points(self) -> int:
        """One more than the largest number of a point."""

    @property
    def size(self) -> int:
        """Numbers in a vector."""

    def blocks(self) -> Iterator[Block]: ...

    def sampled(self, num_vectors: int, seed: int) -> Block:
        """Return about that many vectors at random, by the seed alone."""


def measured(forest: Pairs, number: IntArray, source: VectorSource) -> Pairs:
    """Return the forest with the vectors' own cosines, read again with no more than MEASURED_BYTES of them held."""
    is_there = np.zeros(source.num_points, dtype=np.bool_)
    is_there[number] = True
    similarity = np.ones(len(forest), dtype=np.float32)
    low, high = np.minimum(forest.first, forest.second), np.maximum(forest.first, forest.second)
    # A point that is not in the index has an equal one there: that pair is as similar as can be.
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
    """Fill in the similarities of pairs, ordered by their higher point, whose lower points are held in one pass."""
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
