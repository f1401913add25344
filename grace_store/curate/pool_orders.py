"""Orders of a pool's samples that trade value against redundancy, by their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.likeness.clusters import cluster_vectors, make_cells
from grace_store.likeness.greedy import Trade, greedy_orders
from grace_store.values.diverse_orders import blended_order
from grace_store.values.diversity_spec import DiversitySpec
from grace_store.values.ranking import Balance, balanced_order


def pool_orders(
    vector: Float32Array, at: IntArray, specs: Sequence[DiversitySpec], *, threads: int | None = None
) -> list[IntArray]:
    """Return an order by each spec over samples given the best first, at being their places among the vectors.

    Specs of the methods clusters, facility and mmr that share a seed share clusters and similarities.
    """
    orders: dict[int, IntArray] = {}
    for seed in dict.fromkeys(spec.seed or 0 for spec in specs):
        mine = [i for i, spec in enumerate(specs) if (spec.seed or 0) == seed]
        greedy = [i for i in mine if specs[i].method != "clusters"]
        if greedy:
            cell = make_cells(vector, seed=seed, threads=threads)[at]
            trades = [Trade(specs[i].method, _weight(specs[i])) for i in greedy]  # type: ignore[arg-type]
            orders |= dict(zip(greedy, greedy_orders(vector, at, cell, trades), strict=True))
        for num_clusters in dict.fromkeys(specs[i].num_clusters for i in mine if i not in greedy):
            label = cluster_vectors(vector, num_clusters, seed=seed, threads=threads).label[at]
            # Samples that point nowhere are a cluster of their own.
            stratum = np.unique(label, return_inverse=True)[1].astype(np.int64)
            for i in mine:
                if specs[i].method == "clusters" and specs[i].num_clusters == num_clusters:
                    orders[i] = _cluster_order(stratum, specs[i].balance, _weight(specs[i]))
    return [orders[i] for i in range(len(specs))]


def _cluster_order(stratum: IntArray, balance: Balance | None, weight: float) -> IntArray:
    assert balance is not None
    return blended_order(balanced_order(stratum, balance), weight)


def _weight(spec: DiversitySpec) -> float:
    assert spec.weight is not None
    return spec.weight
