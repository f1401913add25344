"""Orders of samples, from their vectors, that trade value against redundancy.

All pairs of N samples are too many, so similarity counts only inside cells of at most a few thousand samples. The order
is then exactly the greedy one (values.diverse_orders says why). With cells of c samples, it takes O(N c (m + log c))
time and memory for the c x c similarities of one cell.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np

from grace_store.base.arrays import Float32Array, FloatArray, IntArray
from grace_store.likeness.clusters import cluster_vectors, make_cells
from grace_store.values.diverse_orders import (
    GREEDY,
    DiversitySpec,
    Greedy,
    GreedyOrder,
    blended_order,
    merge_cells,
    rank_utility,
)
from grace_store.values.ranking import balanced_order


def greedy_orders(
    vectors: Float32Array, at: IntArray, cell: IntArray, trades: Sequence[tuple[Greedy, float]]
) -> list[IntArray]:
    """Return one order of the samples for each trade. A trade is a greedy method and its weight of diversity.

    at has the rows of the samples in vectors, the best sample first. cell has the cell of each sample.
    """
    utility = rank_utility(len(at))
    by_cell = np.split(np.argsort(cell, kind="stable"), np.cumsum(np.bincount(cell))[:-1])
    members = [part for part in by_cell if len(part)]
    found: list[list[GreedyOrder]] = [[] for _ in trades]
    for mine in members:
        similarity = cell_similarity(vectors[at[mine]])
        for orders, (method, weight) in zip(found, trades, strict=True):
            orders.append(GREEDY[method](similarity, utility[mine], weight))
    return [merge_cells(members, orders) for orders in found]


def cell_similarity(vectors: Float32Array) -> FloatArray:
    """Return the cosines of unit vectors, at least 0, summed in float64 and rounded to hide the order of sums."""
    wide = vectors.astype(np.float64)
    cosine = (wide @ wide.T).astype(np.float32).clip(0.0, 1.0)
    return np.asarray(np.maximum(cosine, cosine.T), dtype=np.float64)


def pool_orders(
    vector: Float32Array, at: IntArray, specs: Sequence[DiversitySpec], *, threads: int | None = None
) -> list[IntArray]:
    """Return an order by each spec of samples given the best first; at has their places among the vectors.

    Specs of the methods clusters, facility and mmr with the same seed share clusters and similarities.
    """
    orders: dict[int, IntArray] = {}
    for seed in dict.fromkeys(spec.seed or 0 for spec in specs):
        mine = [i for i, spec in enumerate(specs) if (spec.seed or 0) == seed]
        if greedy := [i for i in mine if specs[i].method != "clusters"]:
            cell = make_cells(vector, seed=seed, threads=threads)[at]
            trades = [(cast(Greedy, specs[i].method), cast(float, specs[i].weight)) for i in greedy]
            orders |= dict(zip(greedy, greedy_orders(vector, at, cell, trades), strict=True))
        for num_clusters in dict.fromkeys(specs[i].num_clusters for i in mine if i not in greedy):
            label = cluster_vectors(vector, num_clusters, seed=seed, threads=threads).label[at]
            # Vectors of zeros make a separate cluster.
            stratum = np.unique(label, return_inverse=True)[1].astype(np.int64)
            for i in mine:
                if specs[i].method == "clusters" and specs[i].num_clusters == num_clusters:
                    order = balanced_order(stratum, specs[i].balance or "equal")
                    orders[i] = blended_order(order, cast(float, specs[i].weight))
    return [orders[i] for i in range(len(specs))]
