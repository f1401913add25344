"""How diverse subsets are, side by side: clusters covered, Vendi score, distance to the nearest, and random subsets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from grace_store.artifacts.filtered_scores import keep_samples, where_note
from grace_store.artifacts.made_from import check_plan_of
from grace_store.artifacts.measures import (
    ClusterShare,
    Diversity,
    RandomSubsets,
    SubsetDiversity,
)
from grace_store.artifacts.score_table import ScoresLike, ScoreTable, read_scores
from grace_store.artifacts.subset_file import read_subset
from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.documents import write_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.files import write_text
from grace_store.base.text import counted
from grace_store.curate.pool import Pool, open_pool
from grace_store.curate.select import Ranking, Subset, rank_samples
from grace_store.curate.trade_curve import TradeSpec, curve_svg, trade_curve
from grace_store.curate.variety import conclude_diversity
from grace_store.likeness.clusters import Clusters, cluster_vectors
from grace_store.likeness.coverage import (
    RandomInterval,
    expected_share_touched,
    occupancy_entropy,
    random_counts,
    share_touched,
)
from grace_store.likeness.duplicate_groups import DEFAULT_THRESHOLD
from grace_store.likeness.points import descriptor_named
from grace_store.likeness.spread import MAX_VENDI, drawn, mean_distance, nearest_cosines, nearest_distance, vendi_score
from grace_store.read.descriptors import DescriptorSpec
from grace_store.read.kept_samples import Kept
from grace_store.store.opened import Store, StoreLike
from grace_store.values.ranking import Ratio

NUM_RANDOM = 200
"""Random subsets that coverage and entropy are compared with, by default."""
NUM_RANDOM_SPREAD = 10
"""Random subsets that the costlier Vendi score and nearest distance are compared with, at most."""
_MEASURE_STREAM = 0x636F766572
"""Added to the seed, so that coverage is not measured by the very clusters that a selection was balanced by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiversityRequest:
    """What is measured, and against what."""

    subsets: Sequence[str | Path | Subset] = ()
    """Files that ``select`` wrote, scores tables (their best), or subsets in memory."""
    scores: ScoresLike | None = None
    """A table whose best are measured too, and whose values are those of the pool."""
    ratio: Sequence[Ratio] = ()
    """Shares of that table's best."""
    signal: str | None = None
    descriptor: str | None = None
    num_clusters: int | None = None
    seed: int = 0
    num_random: int = NUM_RANDOM
    """Random subsets that each subset is compared with."""
    curve: TradeSpec | None = None
    """Asks how much value each gain in coverage costs, at the first ratio."""
    partial: bool = False
    where: str | Kept | None = None
    """Measure only what this keeps, of the pool and of subsets: a condition in SQL over fields of the records, id, row
    and num_steps, and with scores num_tokens, value and flags; or what one kept."""
    data: Sequence[str] | None = None
    """Where the dataset is now, if it moved; only where reads it."""


def diversity(
    store: StoreLike,
    request: DiversityRequest | None = None,
    *,
    threads: int | None = None,
    listener: Listener = ignore,
) -> Diversity:
    """Say how diverse subsets are, against all done samples of the signal and against random subsets of their size."""
    request = request or DiversityRequest()
    opened = store if isinstance(store, Store) else Store.open(store)
    if request.num_random < 1:
        raise SettingError(f"{request.num_random} random subsets are too few: at least 1 is needed")
    scores, curve, seed = request.scores, request.curve, request.seed
    table = read_scores(scores, steps=False) if isinstance(scores, (str, Path)) else scores
    if table is None and (request.ratio or curve):
        raise SettingError("a ratio or a curve needs values: give --scores")
    kept = keep_samples(opened, request.where, table, request.data)
    rows = None if kept is None else opened.column("sample_row")[kept.places]
    table = table if table is None or rows is None else table.among(rows)
    ranking = None if table is None else rank_samples(table)
    shares = [*request.ratio] or (["0.2"] if table is not None and (curve or not request.subsets) else [])
    chosen = [_chosen(subset, i) for i, subset in enumerate(request.subsets)]
    if ranking is not None:
        chosen += [_best(ranking, share) for share in shares]
    for each in chosen:
        check_plan_of(each.scores.note, opened, each.what)
    chosen = chosen if rows is None else [each.among(rows) for each in chosen]
    with_values = table if table is not None else chosen[0].scores if chosen else None
    signal = request.signal if with_values is None else with_values.signal_named(request.signal)
    spec = DescriptorSpec(signal, None if request.descriptor is None else descriptor_named(request.descriptor))
    places, partial = None if kept is None else kept.places, request.partial
    pool = open_pool(opened, spec, with_values, samples=places, partial=partial, threads=threads, listener=listener)
    listener(Note("Looking for clusters."))
    clusters = cluster_vectors(pool.vector, request.num_clusters, seed=seed + _MEASURE_STREAM, threads=threads)
    inside = counted(clusters.num_clusters, "cluster")
    listener(Note(f"Measuring {counted(len(chosen), 'subset')}, and random ones, in {inside}."))
    measure = _Measure(pool, clusters, request.num_random, seed)
    found = [pool.places_of(each.scores.row[each.chosen], each.name) for each in chosen]
    value = np.full(len(pool), np.nan) if with_values is None else with_values.values_of(pool.described.row)
    drawn_curve = None
    if curve is not None and ranking is not None:
        listener(Note(f"Drawing a curve of {counted(len(curve.specs()), 'choice')}."))
        drawn_curve = trade_curve(pool, clusters, ranking, shares[0], curve, threads=threads)
    measured = Diversity(
        **pool.described.made_by
        | {
            "scores": None if with_values is None else with_values.note,
            "where": where_note(kept),
            "num_samples": len(pool),
            "num_clusters": clusters.num_clusters,
            "compared": tuple(each.name for each in chosen),
            "seed": seed,
            "num_random": request.num_random,
            "pool": measure.of("pool", np.arange(len(pool)), value),
            "subsets": tuple(
                measure.of(each.name, mine, each.scores.value[each.chosen])
                for each, mine in zip(chosen, found, strict=True)
            ),
            "clusters": _cluster_shares(pool, clusters, value, found),
            "curve": drawn_curve,
        }
    )
    return measured.model_copy(update={"conclusion": conclude_diversity(measured)})


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A subset by name: rows of a table."""

    name: str
    scores: ScoreTable
    chosen: IntArray
    what: str
    """The file that says so, and of what kind it is."""

    def among(self, rows: IntArray) -> _Chosen:
        """Return those that are among some rows of the dataset."""
        chosen = self.chosen[np.isin(self.scores.row[self.chosen], rows)]
        if not len(chosen):
            raise SettingError(f"--where keeps no sample of {self.name}, so there is nothing to measure")
        return replace(self, chosen=chosen)


def _chosen(subset: str | Path | Subset, number: int) -> _Chosen:
    if isinstance(subset, Subset):
        return _Chosen(f"subset {number + 1}", subset.scores, subset.chosen, f"subset {number + 1}")
    found = read_subset(Path(subset))
    what = found.scores.what if found.is_table else f"subset {subset}"
    return _Chosen(str(subset), found.scores, found.chosen, what)


def _best(ranking: Ranking, share: Ratio) -> _Chosen:
    return _Chosen(f"best {share}", ranking.scores, ranking.take(ratio=share).ranked, ranking.scores.what)


@dataclass(slots=True)
class _Measure:
    """Measures subsets of one pool; subsets of one size are compared with the same random ones."""

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
        vendi = self._vendi(alive, rng)
        nearest = nearest_cosines(self.pool.vector if len(alive) == len(self.pool) else self.pool.vector[alive], rng)
        return SubsetDiversity(
            name=name,
            num_samples=len(places),
            num_without_direction=len(places) - len(alive),
            mean_value=float(finite.mean()) if len(finite) else math.nan,
            num_touched=int(np.count_nonzero(counts)),
            share_touched=share_touched(counts),
            entropy=occupancy_entropy(counts),
            vendi=vendi,
            vendi_num_samples=min(len(alive), MAX_VENDI),
            nearest_distance=mean_distance(nearest),
            share_alike=float((nearest >= np.float32(DEFAULT_THRESHOLD)).mean()) if len(nearest) else None,
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
        num_spread = range(min(self.num_random, NUM_RANDOM_SPREAD))
        some = [self._alive[np.sort(rng.choice(len(self._alive), count, replace=False))] for _ in num_spread]
        return RandomSubsets(
            share_touched=RandomInterval.of([share_touched(each) for each in counts]),
            expected_share_touched=expected_share_touched(self.clusters.size, count),
            entropy=RandomInterval.of([occupancy_entropy(each) for each in counts]),
            vendi=RandomInterval.of([self._vendi(each, rng) for each in some]),
            nearest_distance=RandomInterval.of([nearest_distance(self.pool.vector[each], rng) for each in some]),
        )


def _cluster_shares(
    pool: Pool, clusters: Clusters, value: FloatArray, places: Sequence[IntArray]
) -> tuple[ClusterShare, ...]:
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
    return tuple(
        ClusterShare(
            cluster=i,
            num_samples=int(clusters.size[i]),
            mean_value=float(mean[i]),
            example=str(ids[i]),
            num_chosen=tuple(int(each[i]) for each in counts),
            representation=tuple(float(each[i]) for each in shares),
        )
        for i in range(num)
    )


def write_diversity(found: Diversity, out: Path | None = None, curve: Path | None = None) -> None:
    """Write everything as a document, and the curve as SVG."""
    if out is not None:
        write_document(out, found)
    if curve is not None and found.curve is not None:
        write_text(curve, curve_svg(found.curve, f"{found.num_samples} samples of {found.store}"))
