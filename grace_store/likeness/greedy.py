"""Greedy orders over any number of samples, from their vectors. NumPy alone.

All pairs of N samples are too many, so similarity counts inside cells of at most a few thousand neighbours. The order
is then exactly the greedy one (select.diversity says why), for O(N c (m + log c)) work with cells of c samples and
memory for one cell's c x c similarities.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import Float32Array, FloatArray, IntArray
from grace_store.values.diverse_orders import GREEDY, Greedy, GreedyOrder, merge_cells, rank_utility


@dataclass(frozen=True, slots=True)
class Trade:
    """A greedy method and how it weighs diversity against value."""

    method: Greedy
    weight: float


def greedy_orders(vectors: Float32Array, at: IntArray, cell: IntArray, trades: Sequence[Trade]) -> list[IntArray]:
    """Return an order for each trade, of samples given the best first; at is their rows in vectors, cell their cell."""
    utility = rank_utility(len(at))
    by_cell = np.split(np.argsort(cell, kind="stable"), np.cumsum(np.bincount(cell))[:-1])
    members = [part for part in by_cell if len(part)]
    found: list[list[GreedyOrder]] = [[] for _ in trades]
    for mine in members:
        similarity = cell_similarity(vectors[at[mine]])
        for orders, trade in zip(found, trades, strict=True):
            orders.append(GREEDY[trade.method](similarity, utility[mine], trade.weight))
    return [merge_cells(members, orders) for orders in found]


def cell_similarity(vectors: Float32Array) -> FloatArray:
    """Return the cosines of unit vectors, at least 0, summed in float64 and rounded so that order does not show."""
    wide = vectors.astype(np.float64)
    cosine = (wide @ wide.T).astype(np.float32).clip(0.0, 1.0)
    return np.asarray(np.maximum(cosine, cosine.T), dtype=np.float64)
