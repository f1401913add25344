"""How diverse subsets are, side by side: clusters covered, Vendi score, distance to the nearest, and random subsets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.finding import Cell, Column, Estimate, Finding, SignalNote, Table
from grace_store.base.settings import Settings
from grace_store.base.text import counted
from grace_store.choose.select import rank_samples, read_subset
from grace_store.choose.selection import Subset
from grace_store.choose.vector_pool import VectorPool, open_vectors
from grace_store.likeness.clusters import Clusters, cluster_vectors
from grace_store.likeness.coverage import (
    expected_share_touched,
    occupancy_entropy,
    random_counts,
    random_interval,
    share_touched,
)
from grace_store.likeness.duplicate_groups import DEFAULT_THRESHOLD
from grace_store.likeness.points import descriptor_named
from grace_store.likeness.vendi import MAX_VENDI, drawn, mean_distance, nearest_cosines, nearest_distance, vendi_score
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.walk import Mapper
from grace_store.scoring.notes import check_plan_of
from grace_store.scoring.provenance import keep_samples
from grace_store.scoring.score_table import ScoresLike, ScoreTable, read_scores
from grace_store.study.diversity_conclusion import conclude_diversity
from grace_store.study.trade_curve import trade_curve
from grace_store.values.diverse_orders import DiversitySpec
from grace_store.values.ranking import Ratio

NUM_RANDOM = 200
"""Random subsets that coverage and entropy are compared with, by default."""
NUM_RANDOM_SPREAD = 10
"""Random subsets that the costlier Vendi score and nearest distance are compared with, at most."""
_MEASURE_STREAM = 0x636F766572
"""Added to the seed, so that coverage is not measured by the very clusters that a selection was balanced by."""
ALL = "pool"
"""The name of all samples beside the subsets."""

Chosen = tuple[str, ScoreTable, IntArray, str]
"""A subset: its name, the table that it is of, its rows there, and what says so, for a sentence."""


class DiversitySettings(Settings):
    """How diversity is measured."""

    descriptor: str | None = None
    """What stands for a sample: the descriptor of its vectors."""
    clusters: int | None = None
    """Number of clusters."""
    random: int = NUM_RANDOM
    """Number of random subsets that each subset is compared with."""
    seed: int = 0
    """Seed of the clusters and of the random subsets."""
    show: int = 3
    """Number of clusters to list that a subset has too much of, and too little of."""


def diversity(
    pool: PoolLike,
    subsets: Sequence[str | Path | Subset] = (),
    settings: DiversitySettings | None = None,
    *,
    scores: ScoresLike | None = None,
    ratio: Sequence[Ratio] = (),
    curve: Sequence[DiversitySpec] = (),
    listener: Listener = ignore,
) -> Finding:
    """Say how diverse subsets are, against all done samples of the signal and against random subsets of their size.

    subsets are files that ``select`` wrote, scores tables (their best), or subsets in memory. scores is a table whose
    best are measured too, at each ratio, and whose values are those of the pool. curve has ways to choose
    (curve_choices makes them): each is tried at the first ratio, to see how much value it gives up for coverage. The
    pool's filter may also use num_tokens, value and flags, if there are scores.
    """
    settings = settings or DiversitySettings()
    random, seed = settings.random, settings.seed
    if random < 1:
        raise SettingError(f"{random} random subsets are too few: at least 1 is needed")
    pool, table, shares, chosen = _compared(Pool.of(pool), subsets, scores, ratio, has_curve=bool(curve))
    valued = table if table is not None else chosen[0][1] if chosen else None
    vectors = _vectors(pool, valued, settings.descriptor, listener)
    listener(Note("Looking for clusters."))
    threads = None if isinstance(pool.threads, Mapper) else pool.threads
    found = cluster_vectors(vectors.vector, settings.clusters, seed=seed + _MEASURE_STREAM, threads=threads)
    inside = counted(found.num_clusters, "cluster")
    listener(Note(f"Measuring {counted(len(chosen), 'subset')}, and random ones, in {inside}."))
    measure = _Measure(vectors, found, random, seed)
    places = [vectors.places_of(scored.row[rows], name) for name, scored, rows, _ in chosen]
    value = np.full(len(vectors), np.nan) if valued is None else valued.values_of(vectors.described.row)
    measured = [(ALL, measure.of(np.arange(len(vectors)), value))]
    measured += [
        (name, measure.of(at, scored.value[rows])) for (name, scored, rows, _), at in zip(chosen, places, strict=True)
    ]
    rows = _cluster_rows(vectors, found, value, places)
    tables = {
        "subsets": _subsets_table(measured, inside),
        "random": _random_table(measure.random),
        "represented": _represented_table(rows, measured, settings.show),
        "clusters": _clusters_table(rows),
    }
    notes = measure.notes(measured)
    if curve and table is not None:
        listener(Note(f"Drawing a curve of {counted(len(curve), 'choice')}."))
        ranking = rank_samples(table)
        best = ranking.scores.row[ranking.ranked], ranking.value[ranking.ranked]
        tables["curve"] = trade_curve(vectors, found, *best, shares[0], curve, seed=seed, threads=threads)
        notes += _curve_notes(tables["curve"])
    note = vectors.note
    signal = {note.signal.name: SignalNote(sha256=note.signal.sha256, num_units=note.signal.num_units)}
    return Finding(
        study="diversity",
        pool=pool.note().model_copy(update={"signals": signal, "partial": note.partial}),
        settings={
            "subsets": [name for name, *_ in chosen],
            "scores": None if valued is None else valued.note.spec.model_dump(mode="json"),
            "ratio": [str(share) for share in shares],
            "descriptor": note.descriptor,
            "dimension": note.dimension,
            "random": random,
            "seed": seed,
        },
        conclusion=conclude_diversity(measured, measure.random, found.num_clusters),
        numbers={"num_samples": len(vectors), "num_clusters": found.num_clusters},
        tables={name: each for name, each in tables.items() if each.rows},
        notes=tuple(notes),
    )


def _compared(
    pool: Pool,
    subsets: Sequence[str | Path | Subset],
    scores: ScoresLike | None,
    ratio: Sequence[Ratio],
    *,
    has_curve: bool,
) -> tuple[Pool, ScoreTable | None, list[Ratio], list[Chosen]]:
    """Return the pool and the table that the filter leaves, the shares that count as best, and what is measured."""
    table = read_scores(scores, steps=False) if isinstance(scores, (str, Path)) else scores
    if table is None and (ratio or has_curve):
        raise SettingError("a ratio or a curve needs values: give --scores")
    pool = Pool.of(pool, where=keep_samples(pool.store, pool.where, table, pool.data))
    table = table if table is None or pool.kept is None else table.among(pool.rows)
    shares = [*ratio] or (["0.2"] if table is not None and (has_curve or not subsets) else [])
    chosen = [_chosen(subset, number) for number, subset in enumerate(subsets, 1)]
    chosen += [] if table is None else _best(table, shares)
    for _, scored, _, what in chosen:
        check_plan_of(scored.note, pool.store, what)
    return pool, table, shares, chosen if pool.kept is None else [_among(each, pool.rows) for each in chosen]


def _curve_notes(curve: Table) -> list[str]:
    """Return what is to be known of a curve: whether there are clusters at all."""
    evenness = curve.column("entropy")[1:-1]
    if all(isinstance(each, float) and math.isnan(each) for each in evenness):
        return ["The samples lie in one cluster: there is nothing to trade value for."]
    return []


def _vectors(pool: Pool, scores: ScoreTable | None, descriptor: str | None, listener: Listener) -> VectorPool:
    """Return the vectors of the pool's samples, by the signal meant, or else the one that was scored."""
    named = None if pool.signals is None else pool.signal.name
    signal = named if scores is None else scores.signal_named(named)
    wanted = None if descriptor is None else descriptor_named(descriptor)
    return open_vectors(Pool.of(pool, signals=signal), wanted, scores, listener=listener)


def _chosen(subset: str | Path | Subset, number: int) -> Chosen:
    if isinstance(subset, Subset):
        return f"subset {number}", subset.scores, subset.chosen, f"subset {number}"
    found = read_subset(Path(subset))
    what = found.scores.what if found.path == found.scores.path else f"subset {subset}"
    return str(subset), found.scores, found.chosen, what


def _best(table: ScoreTable, shares: Sequence[Ratio]) -> list[Chosen]:
    """Return the best of a table, for each share."""
    ranking = rank_samples(table)
    return [(f"best {share}", ranking.scores, ranking.take(ratio=share).ranked, table.what) for share in shares]


def _among(chosen: Chosen, rows: IntArray) -> Chosen:
    """Return those of a subset that are among some rows of the dataset."""
    name, scores, mine, what = chosen
    mine = mine[np.isin(scores.row[mine], rows)]
    if not len(mine):
        raise SettingError(f"--where keeps no sample of {name}, so there is nothing to measure")
    return name, scores, mine, what


class _Measure:
    """Measures subsets of one pool; subsets of one size are compared with the same random ones."""

    def __init__(self, pool: VectorPool, clusters: Clusters, num_random: int, seed: int) -> None:
        self._pool, self._clusters, self._num_random, self._seed = pool, clusters, num_random, seed
        self._alive = np.flatnonzero(clusters.label >= 0)
        if not len(self._alive):
            raise DataError(f"No sample of {pool.store.location} has a direction, so nothing can be compared.")
        self.random: dict[int, dict[str, Estimate | float]] = {}
        """What random subsets have, by their size: the mean, and what 5 % are below and 5 % above."""

    def of(self, places: IntArray, value: FloatArray) -> dict[str, float]:
        """Measure the samples at some places of the pool, as the columns of the table name it; NaN if not known."""
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
        """Return what else is to be known of the measures."""
        most = max(int(each["vendi_num_samples"]) for _, each in measured)
        if most >= max(each["num_samples"] - each["num_without_direction"] for _, each in measured):
            return []
        return [f"Vendi scores of more than {most} samples are over {most} of them, drawn at random."]


# ---------------------------------------------------------------- tables

MEASURES = {
    "share_touched": "touched",
    "entropy": "evenness",
    "vendi": "Vendi",
    "nearest_distance": "nearest",
}
"""What random subsets are compared by, with headings."""


def _column(name: str, heading: str) -> Column:
    return Column(heading=heading, digits=1 if name == "vendi" else 3)


def _subsets_table(measured: Sequence[tuple[str, Mapping[str, float]]], inside: str) -> Table:
    columns = {"subset": "subset", "num_samples": "samples", "mean_value": "value", **MEASURES}
    return Table(
        title=f"{counted(int(measured[0][1]['num_samples']), 'sample')} in {inside}",
        columns={name: _column(name, heading) for name, heading in columns.items()}
        | {"share_alike": Column(heading="alike", is_share=True)},
        rows=tuple({"subset": name, **each} for name, each in measured),
        about="value: the mean. touched: share of clusters with a sample. evenness: entropy over clusters, 1 if even. "
        "Vendi: effective number of samples. nearest: mean 1 - cos to the nearest. alike: samples with a "
        "near-duplicate in it.",
    )


def _random_table(random: Mapping[int, Mapping[str, Estimate | float]]) -> Table:
    columns = {"num_samples": "samples", **MEASURES}
    return Table(
        title="Random subsets of the same size",
        columns={name: _column(name, heading) for name, heading in columns.items()},
        rows=tuple({"num_samples": count, **each} for count, each in random.items()),
        about="The mean, and where nine in ten random subsets lie.",
    )


def _cluster_rows(
    pool: VectorPool, clusters: Clusters, value: FloatArray, places: Sequence[IntArray]
) -> list[dict[str, Cell]]:
    """Return each cluster's samples, values and example, and how many of its samples each subset has.

    The columns num_chosen_N and representation_N are of the subset N, from 1. The second is the cluster's share of the
    subset over its share of the pool: 1 is as at random. example is the sample nearest to the cluster's centre.
    """
    num, label = clusters.num_clusters, clusters.label
    finite = np.flatnonzero(np.isfinite(value) & (label >= 0))
    total = np.bincount(label[finite], value[finite], minlength=num)
    num_finite = np.bincount(label[finite], minlength=num)
    mean = np.divide(total, num_finite, out=np.full(num, np.nan), where=num_finite > 0)
    natural = clusters.size / clusters.size.sum()
    # The nearest to the centre comes last in its cluster, the earlier sample where several are.
    ordered = np.lexsort((-np.arange(len(label)), clusters.similarity, label))
    central = ordered[np.searchsorted(label[ordered], np.arange(num), side="right") - 1]
    ids = pool.store.column("sample_id")[pool.described.sample[central]]
    sizes = clusters.size.tolist()
    rows: list[dict[str, Cell]] = [
        {"cluster": i, "num_samples": sizes[i], "mean_value": float(mean[i]), "example": str(ids[i])}
        for i in range(num)
    ]
    for number, mine in enumerate(places, 1):
        counts = np.bincount(label[mine[label[mine] >= 0]], minlength=num)
        shares = counts / max(int(counts.sum()), 1) / natural
        for row, count, share in zip(rows, counts.tolist(), shares.tolist(), strict=True):
            row |= {f"num_chosen_{number}": count, f"representation_{number}": share}
    return rows


def _clusters_table(rows: Sequence[dict[str, Cell]]) -> Table:
    return Table(columns={name: Column(heading=name) for name in rows[0]}, rows=tuple(rows), is_shown=False)


def _represented_table(
    clusters: Sequence[Mapping[str, Cell]], measured: Sequence[tuple[str, Mapping[str, float]]], show: int
) -> Table:
    """Return the clusters that each subset has the most too many samples of, and those it has the most too few of."""
    rows: list[dict[str, Cell]] = []
    for number, (name, each) in enumerate(measured[1:], 1):
        share = each["num_samples"] / measured[0][1]["num_samples"]
        numbers = np.array([[row[key] for key in (f"num_chosen_{number}", "num_samples")] for row in clusters])
        represented = np.array([row[f"representation_{number}"] for row in clusters])
        # Chosen beyond what would be as at random; a cluster without any lacks all it should have.
        order = np.argsort(numbers[:, 0] - share * numbers[:, 1], kind="stable")
        over = [i for i in order[::-1].tolist() if represented[i] > 1]
        under = [i for i in order.tolist() if represented[i] < 1]
        for amount, some in (("too much", over), ("too little", under)):
            for row in (clusters[i] for i in some[:show]):
                same = {key: row[key] for key in ("cluster", "num_samples", "mean_value", "example")}
                rows.append({"subset": name, "amount": amount, "num_chosen": row[f"num_chosen_{number}"], **same})
    columns = {
        "subset": "subset",
        "amount": "has",
        "cluster": "of cluster",
        "num_chosen": "chosen",
        "num_samples": "samples",
        "mean_value": "value",
        "example": "like",
    }
    return Table(
        title="Clusters that subsets have too much or too little of",
        columns={name: Column(heading=heading) for name, heading in columns.items()},
        rows=tuple(rows),
    )
