"""How diverse subsets are, side by side: clusters covered, Vendi score, distance to the nearest, and random subsets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from grace_store import __version__
from grace_store.artifacts.made_from import check_plan_of
from grace_store.artifacts.score_table import ScoreTable, read_scores
from grace_store.artifacts.subset_file import read_subset
from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.files import write_json, write_text
from grace_store.base.text import counted, without_nan
from grace_store.curate.pool import Pool, open_pool
from grace_store.curate.select import Ranking, Subset, rank_samples
from grace_store.curate.trade_curve import TradeCurve, TradeSpec, trade_curve
from grace_store.likeness.clusters import Clusters, cluster_vectors
from grace_store.likeness.coverage import (
    RandomInterval,
    expected_share_touched,
    occupancy_entropy,
    random_counts,
    share_touched,
)
from grace_store.likeness.spread import MAX_VENDI, drawn, nearest_distance, vendi_score
from grace_store.store.opened import Store
from grace_store.values.ranking import Ratio

NUM_RANDOM = 200
"""Random subsets that coverage and entropy are held against, unless told."""
NUM_RANDOM_SPREAD = 10
"""Random subsets that the costlier Vendi score and nearest distance are held against, at most."""
_MEASURE_STREAM = 0x636F766572
"""Added to the seed, so that coverage is not measured by the very clusters that a selection was balanced by."""


@dataclass(frozen=True, slots=True)
class RandomSubsets:
    """What random subsets of a size have."""

    share_touched: RandomInterval
    expected_share_touched: float
    """The exact mean, over all subsets of that size."""
    entropy: RandomInterval
    vendi: RandomInterval
    nearest_distance: RandomInterval


@dataclass(frozen=True, slots=True)
class SubsetDiversity:
    """How diverse one subset is. What cannot be said is NaN."""

    name: str
    num_samples: int
    num_without_direction: int
    """Samples whose vector is zero: they are in no cluster and have no neighbour."""
    mean_value: float
    num_touched: int
    """Clusters that have at least one of its samples."""
    share_touched: float
    entropy: float
    """Of how the samples fall into clusters, over log K: 1 if evenly."""
    vendi: float
    """Effective number of different samples."""
    vendi_num_samples: int
    """How many samples the Vendi score is taken over: all, or some drawn at random."""
    nearest_distance: float
    """Mean of 1 - cos to the nearest other of the subset."""
    random: RandomSubsets | None
    """None for the pool itself."""


@dataclass(frozen=True, slots=True)
class ClusterShare:
    """One cluster: its samples' values, and how many of them each subset has."""

    cluster: int
    num_samples: int
    mean_value: float
    example: str
    """Id of the sample nearest to the cluster's centre."""
    num_chosen: list[int]
    representation: list[float]
    """For each subset, the cluster's share of it over its share of the pool: 1 is as at random."""


@dataclass(frozen=True, slots=True)
class Diversity:
    """Subsets of a pool side by side."""

    pool: SubsetDiversity
    subsets: list[SubsetDiversity]
    clusters: list[ClusterShare]
    """Numbered as they are; the first cluster is the first here."""
    curve: TradeCurve | None
    made_by: dict[str, Any]

    def represented(self, subset: int, count: int = 5) -> tuple[list[ClusterShare], list[ClusterShare]]:
        """Return the clusters that a subset has the most too many samples of, and those it has the most too few of."""

        def excess(each: ClusterShare) -> float:
            # Chosen beyond what would be as at random; a cluster without any lacks all it should have.
            share = self.subsets[subset].num_samples / max(self.pool.num_samples, 1)
            return each.num_chosen[subset] - each.num_samples * share

        ordered = sorted(self.clusters, key=excess)
        over = [each for each in reversed(ordered) if each.representation[subset] > 1]
        return over[:count], [each for each in ordered if each.representation[subset] < 1][:count]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it, None for what cannot be said."""
        found: dict[str, Any] = without_nan(
            {
                **self.made_by,
                "pool": asdict(self.pool),
                "subsets": [asdict(each) for each in self.subsets],
                "clusters": [asdict(each) for each in self.clusters],
                "curve": None if self.curve is None else self.curve.to_dict(),
            }
        )
        return found


def measure_diversity(
    store: Store | str | Path, subsets: Sequence[str | Path | Subset] = (), *,
    scores: ScoreTable | str | Path | None = None, ratio: Sequence[Ratio] = (), signal: str | None = None,
    descriptor: str | None = None, num_clusters: int | None = None, seed: int = 0, num_random: int = NUM_RANDOM,
    curve: TradeSpec | None = None, partial: bool = False, threads: int | None = None, listener: Listener = ignore,
) -> Diversity:  # fmt: skip
    """Say how diverse subsets of a store's samples are, against the pool and against random subsets of their size.

    subsets are files that ``select`` wrote, scores tables (their best), or Subset objects; with scores, the best of
    that table in each ratio are measured too, and its values are those of the pool. curve asks for what value every
    bit of coverage costs, at the first ratio. The pool is every done sample of the signal.
    """
    opened = store if isinstance(store, Store) else Store.open(store)
    if num_random < 1:
        raise SettingError(f"{num_random} random subsets are too few: at least 1 is needed")
    table = read_scores(scores, steps=False) if isinstance(scores, (str, Path)) else scores
    if table is None and (ratio or curve):
        raise SettingError("a ratio or a curve needs values: give --scores")
    chosen = [_chosen(subset, i) for i, subset in enumerate(subsets)]
    ranking = None if table is None else rank_samples(table)
    shares = [*ratio] or (["0.2"] if table is not None and (curve or not subsets) else [])
    if ranking is not None:
        chosen += [
            _Chosen(f"best {share}", ranking.scores, ranking.take(ratio=share).ranked, ranking.scores.what)
            for share in shares
        ]
    for each in chosen:
        check_plan_of(each.scores.made_by, opened, each.what)
    with_values = table if table is not None else chosen[0].scores if chosen else None
    if signal is None and with_values is not None:
        signal = with_values.signal_named(None)
    pool = open_pool(
        opened, signal=signal, descriptor=descriptor, scores=with_values, partial=partial, threads=threads,
        listener=listener,
    )  # fmt: skip
    listener(Note("Looking for clusters."))
    clusters = cluster_vectors(pool.vector, num_clusters, seed=seed + _MEASURE_STREAM, threads=threads)
    inside = counted(clusters.num_clusters, "cluster")
    listener(Note(f"Measuring {counted(len(chosen), 'subset')}, and random ones, in {inside}."))
    measure = _Measure(pool, clusters, num_random, seed)
    places = [pool.places_of(each.scores.row[each.chosen], each.name) for each in chosen]
    value = np.full(len(pool), np.nan) if with_values is None else with_values.values_of(pool.described.row)
    return Diversity(
        pool=measure.of("pool", np.arange(len(pool)), value),
        subsets=[
            measure.of(each.name, mine, each.scores.value[each.chosen])
            for each, mine in zip(chosen, places, strict=True)
        ],
        clusters=_cluster_shares(pool, clusters, value, places),
        curve=_curve(pool, clusters, ranking, shares, curve, threads, listener),
        made_by=_made_by(pool, clusters, chosen, with_values, seed=seed, num_random=num_random),
    )


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A subset by name: rows of a table."""

    name: str
    scores: ScoreTable
    chosen: IntArray
    what: str
    """The file that says so, and of what kind it is."""


def _chosen(subset: str | Path | Subset, number: int) -> _Chosen:
    if isinstance(subset, Subset):
        return _Chosen(f"subset {number + 1}", subset.scores, subset.chosen, f"subset {number + 1}")
    found = read_subset(Path(subset))
    what = f"subset {subset}" if found.spec else found.scores.what
    return _Chosen(str(subset), found.scores, found.chosen, what)


def _curve(
    pool: Pool, clusters: Clusters, ranking: Ranking | None, shares: Sequence[Ratio], curve: TradeSpec | None,
    threads: int | None, listener: Listener,
) -> TradeCurve | None:  # fmt: skip
    if curve is None or ranking is None:
        return None
    listener(Note(f"Drawing a curve of {len(curve.specs())} choices."))
    return trade_curve(pool, clusters, ranking, shares[0], curve, threads=threads)


def _made_by(
    pool: Pool, clusters: Clusters, chosen: Sequence[_Chosen], scores: ScoreTable | None, **settings: Any
) -> dict[str, Any]:
    return {
        **pool.made_by,
        "kind": "diversity",
        "made_by": f"grace-store {__version__}",
        "num_samples": len(pool),
        "num_clusters": clusters.num_clusters,
        "scores": None if scores is None else scores.made_by,
        "compared": [each.name for each in chosen],
        **settings,
    }


@dataclass(slots=True)
class _Measure:
    """Measures subsets of one pool; subsets of one size are held against the same random ones."""

    pool: Pool
    clusters: Clusters
    num_random: int
    seed: int
    _alive: IntArray = field(init=False)
    _random: dict[int, RandomSubsets] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._alive = np.flatnonzero(self.clusters.label >= 0)
        if not len(self._alive):
            raise DataError(f"No sample of {self.pool.store.location} has a direction, so nothing can be compared.")

    def of(self, name: str, places: IntArray, value: FloatArray) -> SubsetDiversity:
        """Measure the samples at some places of the pool."""
        alive = places[self.clusters.label[places] >= 0]
        counts = np.bincount(self.clusters.label[alive], minlength=self.clusters.num_clusters)
        rng = np.random.default_rng([self.seed, len(alive)])
        finite = value[np.isfinite(value)]
        return SubsetDiversity(
            name=name,
            num_samples=len(places),
            num_without_direction=len(places) - len(alive),
            mean_value=float(finite.mean()) if len(finite) else math.nan,
            num_touched=int(np.count_nonzero(counts)),
            share_touched=share_touched(counts),
            entropy=occupancy_entropy(counts),
            vendi=self._vendi(alive, rng),
            vendi_num_samples=min(len(alive), MAX_VENDI),
            nearest_distance=nearest_distance(
                self.pool.vector if len(alive) == len(self.pool) else self.pool.vector[alive], rng
            ),
            random=None if len(places) == len(self.pool) else self._random_of(len(alive)),
        )

    def _vendi(self, places: IntArray, rng: np.random.Generator) -> float:
        return vendi_score(self.pool.vector[places[drawn(len(places), MAX_VENDI, rng)]])

    def _random_of(self, count: int) -> RandomSubsets:
        if count not in self._random:
            self._random[count] = self._measure_random(count)
        return self._random[count]

    def _measure_random(self, count: int) -> RandomSubsets:
        rng = np.random.default_rng([self.seed, count, 1])
        counts = random_counts(self.clusters.size, count, self.num_random, rng)
        some = [self._alive[np.sort(rng.choice(len(self._alive), count, replace=False))]
                for _ in range(min(self.num_random, NUM_RANDOM_SPREAD))]  # fmt: skip
        return RandomSubsets(
            share_touched=RandomInterval.of([share_touched(each) for each in counts]),
            expected_share_touched=expected_share_touched(self.clusters.size, count),
            entropy=RandomInterval.of([occupancy_entropy(each) for each in counts]),
            vendi=RandomInterval.of([self._vendi(each, rng) for each in some]),
            nearest_distance=RandomInterval.of([nearest_distance(self.pool.vector[each], rng) for each in some]),
        )


def _cluster_shares(
    pool: Pool, clusters: Clusters, value: FloatArray, places: Sequence[IntArray]
) -> list[ClusterShare]:
    num = clusters.num_clusters
    label = clusters.label
    finite = np.flatnonzero(np.isfinite(value) & (label >= 0))
    total = np.bincount(label[finite], value[finite], minlength=num)
    num_finite = np.bincount(label[finite], minlength=num)
    mean = np.divide(total, num_finite, out=np.full(num, np.nan), where=num_finite > 0)
    inside = [mine[label[mine] >= 0] for mine in places]
    counts = [np.bincount(label[mine], minlength=num) for mine in inside]
    natural = clusters.size / clusters.size.sum()
    shares = [each / max(int(each.sum()), 1) / natural for each in counts]
    # The nearest to the centre comes last in its cluster, the earlier sample where several are.
    ordered = np.lexsort((-np.arange(len(label)), clusters.similarity, label))
    central = ordered[np.searchsorted(label[ordered], np.arange(num), side="right") - 1]
    ids = pool.store.column("sample_id")[pool.described.sample[central]]
    return [
        ClusterShare(
            cluster=i,
            num_samples=int(clusters.size[i]),
            mean_value=float(mean[i]),
            example=str(ids[i]),
            num_chosen=[int(each[i]) for each in counts],
            representation=[float(each[i]) for each in shares],
        )
        for i in range(num)
    ]


def write_diversity(found: Diversity, out: Path | None = None, curve: Path | None = None) -> None:
    """Write everything as JSON, and the curve as SVG."""
    if out is not None:
        write_json(out, found.to_dict())
    if curve is not None and found.curve is not None:
        note = f"{found.made_by['num_samples']} samples of {found.made_by['store']}"
        write_text(curve, found.curve.picture(note))
