"""Measure the diversity of subsets, of random subsets and of clusters, and its cost in value; return tables."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from grace_store.base.arrays import Array, FloatArray, IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.finding import Cell, Column, Estimate, Table, make_columns
from grace_store.base.text import counted
from grace_store.likeness.clusters import Clusters
from grace_store.likeness.coverage import (
    MAX_VENDI,
    drawn,
    expected_share_touched,
    mean_distance,
    nearest_cosines,
    nearest_distance,
    occupancy_entropy,
    random_counts,
    random_interval,
    share_touched,
    vendi_score,
)
from grace_store.likeness.duplicate_groups import DEFAULT_THRESHOLD
from grace_store.likeness.greedy import pool_orders
from grace_store.pool.descriptors import Descriptions
from grace_store.values.diverse_orders import DiversitySpec, Traded, check_weight
from grace_store.values.ranking import Ratio, budget

NUM_RANDOM_SPREAD = 10
"""Most random subsets for the Vendi score and the nearest distance, which are slow to compute."""


class DiversityMeasure:
    """Measures of the subsets of one pool. Subsets of the same size are compared with the same random subsets."""

    def __init__(self, pool: Descriptions, clusters: Clusters, num_random: int, seed: int) -> None:
        self._pool, self._clusters, self._num_random, self._seed = pool, clusters, num_random, seed
        self._alive = np.flatnonzero(clusters.label >= 0)
        if not len(self._alive):
            raise DataError(
                f"No sample of {pool.made_by['store']} has a vector other than zero, so nothing can be compared."
            )
        self.random: dict[int, dict[str, Estimate | float]] = {}
        """Measures of random subsets by their size: mean, p5 and p95."""

    def of(self, places: IntArray, value: FloatArray) -> dict[str, float]:
        """Measure the samples at these places of the pool; keys are the names of columns, unknown measures are NaN."""
        pool, clusters = self._pool, self._clusters
        alive = places[clusters.label[places] >= 0]
        counts = np.bincount(clusters.label[alive], minlength=clusters.num_clusters)
        rng = np.random.default_rng([self._seed, len(alive)])
        finite = value[np.isfinite(value)]
        vendi = self._vendi(alive, rng)
        nearest = nearest_cosines(pool.vector if len(alive) == len(pool) else pool.vector[alive], rng)
        if len(places) < len(pool) and len(alive) not in self.random:
            self.random[len(alive)] = self._measure_random(len(alive))
        return {
            "num_samples": len(places),
            "num_without_direction": len(places) - len(alive),
            "mean_value": float(finite.mean()) if len(finite) else math.nan,
            "num_touched": int(np.count_nonzero(counts)),
            "share_touched": share_touched(counts),
            "entropy": occupancy_entropy(counts),
            "vendi": vendi,
            "vendi_num_samples": min(len(alive), MAX_VENDI),
            "nearest_distance": mean_distance(nearest),
            "share_alike": float((nearest >= np.float32(DEFAULT_THRESHOLD)).mean()) if len(nearest) else math.nan,
        }

    def _vendi(self, places: IntArray, rng: np.random.Generator) -> float:
        return vendi_score(self._pool.vector[places[drawn(len(places), MAX_VENDI, rng)]])

    def _measure_random(self, count: int) -> dict[str, Estimate | float]:
        rng = np.random.default_rng([self._seed, count, 1])
        counts = random_counts(self._clusters.size, count, self._num_random, rng)
        num_spread = range(min(self._num_random, NUM_RANDOM_SPREAD))
        some = [self._alive[np.sort(rng.choice(len(self._alive), count, replace=False))] for _ in num_spread]
        return {
            "share_touched": random_interval([share_touched(each) for each in counts]),
            "expected_share_touched": expected_share_touched(self._clusters.size, count),
            "entropy": random_interval([occupancy_entropy(each) for each in counts]),
            "vendi": random_interval([self._vendi(each, rng) for each in some]),
            "nearest_distance": random_interval([nearest_distance(self._pool.vector[each], rng) for each in some]),
        }

    def notes(self, measured: Sequence[tuple[str, Mapping[str, float]]]) -> list[str]:
        """Return a remark if Vendi scores were computed on a part of the samples."""
        most = max(int(each["vendi_num_samples"]) for _, each in measured)
        if most >= max(each["num_samples"] - each["num_without_direction"] for _, each in measured):
            return []
        return [f"Vendi scores of more than {most} samples are over {most} of them, drawn at random."]


MEASURES = make_columns(
    share_touched="touched", entropy="evenness", vendi=Column(heading="Vendi", digits=1), nearest_distance="nearest"
)
"""Measures that subsets and random subsets are compared by."""


def subsets_table(measured: Sequence[tuple[str, Mapping[str, float]]], inside: str) -> Table:
    """Return a row for each subset, the pool first."""
    columns = make_columns(subset="subset", num_samples="samples", mean_value="value", **MEASURES)
    return Table(
        title=f"{counted(int(measured[0][1]['num_samples']), 'sample')} in {inside}",
        columns=columns | {"share_alike": Column(heading="alike", is_share=True)},
        rows=tuple({"subset": name, **each} for name, each in measured),
        about="value: the mean. touched: share of clusters with a sample. evenness: entropy over clusters, 1 if even. "
        "Vendi: effective number of samples. nearest: mean 1 - cos to the nearest. alike: samples with a "
        "near-duplicate in it.",
    )


def random_table(random: Mapping[int, Mapping[str, Estimate | float]]) -> Table:
    """Return a row for each size of random subsets."""
    return Table(
        title="Random subsets of the same size",
        columns=make_columns(num_samples="samples", **MEASURES),
        rows=tuple({"num_samples": count, **each} for count, each in random.items()),
        about="The mean, and where nine in ten random subsets lie.",
    )


def cluster_rows(
    ids: Array, clusters: Clusters, value: FloatArray, places: Sequence[IntArray]
) -> list[dict[str, Cell]]:
    """Return a row for each cluster: its size, mean value and example, and its samples in each subset.

    The columns num_chosen_N and representation_N belong to the subset N, from 1. representation_N is the cluster's
    share of the subset divided by its share of the pool: 1 in a random subset. example is the sample nearest to the
    cluster's centre.
    """
    num, label = clusters.num_clusters, clusters.label
    finite = np.flatnonzero(np.isfinite(value) & (label >= 0))
    total = np.bincount(label[finite], value[finite], minlength=num)
    num_finite = np.bincount(label[finite], minlength=num)
    mean = np.divide(total, num_finite, out=np.full(num, np.nan), where=num_finite > 0)
    natural = clusters.size / clusters.size.sum()
    # The nearest to the centre comes last in its cluster; of several, the earliest sample.
    ordered = np.lexsort((-np.arange(len(label)), clusters.similarity, label))
    central = ordered[np.searchsorted(label[ordered], np.arange(num), side="right") - 1]
    sizes = clusters.size.tolist()
    rows: list[dict[str, Cell]] = [
        {"cluster": i, "num_samples": sizes[i], "mean_value": float(mean[i]), "example": str(ids[central[i]])}
        for i in range(num)
    ]
    for number, mine in enumerate(places, 1):
        counts = np.bincount(label[mine[label[mine] >= 0]], minlength=num)
        shares = counts / max(int(counts.sum()), 1) / natural
        for row, count, share in zip(rows, counts.tolist(), shares.tolist(), strict=True):
            row |= {f"num_chosen_{number}": count, f"representation_{number}": share}
    return rows


def represented_table(
    clusters: Sequence[Mapping[str, Cell]], measured: Sequence[tuple[str, Mapping[str, float]]], show: int
) -> Table:
    """Return the clusters that each subset has most too much of, and the clusters that it has most too little of."""
    rows: list[dict[str, Cell]] = []
    for number, (name, each) in enumerate(measured[1:], 1):
        share = each["num_samples"] / measured[0][1]["num_samples"]
        numbers = np.array([[row[key] for key in (f"num_chosen_{number}", "num_samples")] for row in clusters])
        represented = np.array([row[f"representation_{number}"] for row in clusters])
        # Number chosen minus the number expected at random.
        order = np.argsort(numbers[:, 0] - share * numbers[:, 1], kind="stable")
        over = [i for i in order[::-1].tolist() if represented[i] > 1]
        under = [i for i in order.tolist() if represented[i] < 1]
        for amount, some in (("too much", over), ("too little", under)):
            for row in (clusters[i] for i in some[:show]):
                same = {key: row[key] for key in ("cluster", "num_samples", "mean_value", "example")}
                rows.append({"subset": name, "amount": amount, "num_chosen": row[f"num_chosen_{number}"], **same})
    columns = make_columns(subset="subset", amount="has", cluster="of cluster", num_chosen="chosen")
    columns |= make_columns(num_samples="samples", mean_value="value", example="like")
    return Table(title="Clusters that subsets have too much or too little of", columns=columns, rows=tuple(rows))


NUM_CURVE_RANDOM = 200
"""Random subsets in the mean entropy."""
METHODS: tuple[Traded, ...] = ("clusters", "facility", "mmr")
WEIGHTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
BEST, RANDOM = "by value alone", "random"
"""The two ends of the curve, among the names of methods."""


def curve_choices(
    methods: Sequence[Traded] = METHODS, weights: Sequence[float] = WEIGHTS, seed: int = 0
) -> list[DiversitySpec]:
    """Return the choices of a curve: every method with every weight."""
    if not weights:
        raise SettingError("a curve needs at least one weight")
    ascending = sorted({check_weight(each) for each in weights})
    return [
        DiversitySpec.parse(method=method, weight=weight, seed=seed)
        for method in dict.fromkeys(methods)
        for weight in ascending
    ]


def trade_curve(
    pool: Descriptions,
    clusters: Clusters,
    at: IntArray,
    value: FloatArray,
    ratio: Ratio,
    choices: Sequence[DiversitySpec],
    *,
    seed: int = 0,
    threads: int | None = None,
) -> Table:
    """Choose by each of the choices with the same budget, and measure value and coverage of the given clusters.

    at has the places in the pool of the samples to choose from, the best first; value has their values. The first row
    is the choice by value alone, the last row the mean of random subsets.
    """
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
    counts = random_counts(size, drawn, NUM_CURVE_RANDOM, np.random.default_rng([seed, drawn]))
    at_random: dict[str, Cell] = {
        "method": RANDOM,
        "weight": None,
        "mean_value": float(value.mean()),
        "value_lost": 1.0,
        "share_touched": expected_share_touched(size, drawn),
        "entropy": float(np.mean([occupancy_entropy(each) for each in counts])),
    }
    tried = (line(each.method, each.weight or 0.0, order) for each, order in zip(choices, orders, strict=True))
    columns = make_columns(method="method", weight=Column(heading="weight", digits=2), mean_value="value")
    columns |= make_columns(value_lost="value lost", share_touched="touched", entropy="evenness")
    return Table(
        title=f"What diversity costs, for {counted(count, 'sample')}",
        columns=columns,
        rows=(line(BEST, None, np.arange(len(at))), *tried, at_random),
        about="value lost: share of what choosing by value gains over choosing at random.",
    )
