"""What diversity costs: value lost against coverage gained, for every method over its weights, at one budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.base.finding import Cell, Column, Table
from grace_store.base.text import counted
from grace_store.likeness.clusters import Clusters
from grace_store.likeness.coverage import expected_share_touched, occupancy_entropy, random_counts, share_touched
from grace_store.likeness.greedy import pool_orders
from grace_store.values.diverse_orders import DiversitySpec, Traded, check_weight
from grace_store.values.ranking import Ratio, budget

if TYPE_CHECKING:
    from grace_store.choose.vector_pool import VectorPool

NUM_RANDOM = 200
"""Random subsets that the mean entropy is taken over."""


METHODS: tuple[Traded, ...] = ("clusters", "facility", "mmr")
WEIGHTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
BEST, RANDOM = "by value alone", "random"
"""Names of the curve's two ends among the methods."""


def curve_choices(
    methods: Sequence[Traded] = METHODS, weights: Sequence[float] = WEIGHTS, seed: int = 0
) -> list[DiversitySpec]:
    """Return what a curve goes over: every method with every weight."""
    if not weights:
        raise SettingError("a curve needs at least one weight")
    ascending = sorted({check_weight(each) for each in weights})
    return [
        DiversitySpec.parse(method=method, weight=weight, seed=seed)
        for method in dict.fromkeys(methods)
        for weight in ascending
    ]


def trade_curve(
    pool: VectorPool,
    clusters: Clusters,
    row: IntArray,
    value: FloatArray,
    ratio: Ratio,
    choices: Sequence[DiversitySpec],
    *,
    seed: int = 0,
    threads: int | None = None,
) -> Table:
    """Choose in every way at the same budget, and measure value and coverage by the clusters given.

    row and value are those of the samples to choose from, the best first.
    The first row is of choosing by value alone, the last of choosing at random: what random subsets have on average.
    """
    at = pool.places_of(row, "the table")
    label, count = clusters.label[at], budget(ratio, len(at))
    size = np.bincount(label[label >= 0], minlength=clusters.num_clusters)
    gained = float(value[:count].mean() - value.mean())

    def line(method: str, weight: float | None, order: IntArray) -> dict[str, Cell]:
        kept = order[:count]
        counts = np.bincount(label[kept][label[kept] >= 0], minlength=clusters.num_clusters)
        mean = float(value[kept].mean())
        lost = (float(value[:count].mean()) - mean) / gained if gained > 0 else 0.0
        covered = {"share_touched": share_touched(counts), "entropy": occupancy_entropy(counts)}
        return {"method": method, "weight": weight, "mean_value": mean, "value_lost": lost, **covered}

    orders = pool_orders(pool.vector, at, choices, threads=threads)
    drawn = min(count, int(size.sum()))
    counts = random_counts(size, drawn, NUM_RANDOM, np.random.default_rng([seed, drawn]))
    at_random: dict[str, Cell] = {
        "method": RANDOM,
        "weight": None,
        "mean_value": float(value.mean()),
        "value_lost": 1.0,
        "share_touched": expected_share_touched(size, drawn),
        "entropy": float(np.mean([occupancy_entropy(each) for each in counts])),
    }
    tried = (line(each.method, each.weight or 0.0, order) for each, order in zip(choices, orders, strict=True))
    headings = {"method": "method", "weight": "weight", "mean_value": "value", "value_lost": "value lost"}
    headings |= {"share_touched": "touched", "entropy": "evenness"}
    return Table(
        title=f"What diversity costs, for {counted(count, 'sample')}",
        columns={name: Column(heading=each, digits=2 if name == "weight" else 3) for name, each in headings.items()},
        rows=(line(BEST, None, np.arange(len(at))), *tried, at_random),
        about="value lost: share of what choosing by value gains over choosing at random.",
    )
