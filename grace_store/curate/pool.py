"""A pool of samples as points: their descriptors, and orders that trade value against redundancy among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from grace_store.artifacts.notes import PointsNote
from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import Float32Array, IntArray
from grace_store.base.errors import DataError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.row_places import find_rows
from grace_store.base.text import counted
from grace_store.likeness.clusters import cluster_vectors, make_cells
from grace_store.likeness.greedy import Trade, greedy_orders
from grace_store.read.descriptors import Descriptions, DescriptorSpec, describe_samples
from grace_store.store.opened import Store
from grace_store.values.diverse_orders import blended_order
from grace_store.values.diversity_spec import DiversitySpec
from grace_store.values.ranking import balanced_order


@dataclass(frozen=True, slots=True)
class Pool:
    """Samples of one signal in the order of the plan, each with a vector of length 1 or of zeros."""

    store: Store
    described: Descriptions

    @property
    def vector(self) -> Float32Array:
        return cast(Float32Array, self.described.vector)

    @property
    def note(self) -> PointsNote:
        """Which vectors these are."""
        return PointsNote(**self.described.made_by)

    def __len__(self) -> int:
        return len(self.described)

    def places_of(self, row: IntArray, what: str) -> IntArray:
        """Return where the samples with these dataset rows stand in the pool; all must be there."""
        place, is_there = find_rows(self.described.row, row)
        if not is_there.all():
            raise DataError(
                f"{int((~is_there).sum())} of the {len(row)} samples of {what} have no vector in signal "
                f"{self.note.signal.name!r} of {self.store.location}. Name another --signal, or extract them."
            )
        return place


def open_pool(
    store: Store,
    spec: DescriptorSpec,
    scores: ScoreTable | None = None,
    *,
    samples: IntArray | None = None,
    partial: bool = False,
    threads: int | None = None,
    listener: Listener = ignore,
) -> Pool:
    """Describe all done samples of a signal, or some (positions in the plan). The descriptor weighted needs scores."""
    weights = scores.with_steps() if spec.descriptor == "weighted" and scores is not None else None
    num_samples = store.plan.num_samples if samples is None else len(samples)
    listener(Note(f"Reading the vectors of {counted(num_samples, 'sample')}, signal {store.signal(spec.signal).name}."))
    found = describe_samples(
        store, spec, scores=weights, samples=samples, partial=partial, threads=threads, listener=listener
    )
    return Pool(store, found)


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
                    order = balanced_order(stratum, specs[i].balance or "equal")
                    orders[i] = blended_order(order, _weight(specs[i]))
    return [orders[i] for i in range(len(specs))]


def _weight(spec: DiversitySpec) -> float:
    assert spec.weight is not None
    return spec.weight
