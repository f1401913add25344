"""Compare the diversity of subsets and random subsets: clusters covered, Vendi score, distance to the nearest."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from grace_store.base.arrays import IntArray
from grace_store.base.errors import SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.finding import Column, Estimate, Finding, SignalNote, Table
from grace_store.base.settings import Settings
from grace_store.base.text import counted, enumerated, percent
from grace_store.choose.duplicates import open_vectors, places_in
from grace_store.choose.select import rank_samples, read_subset
from grace_store.choose.selection import Subset
from grace_store.likeness.clusters import cluster_vectors
from grace_store.likeness.points import descriptor_named
from grace_store.pool.descriptors import Descriptions
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.walk import Mapper
from grace_store.scoring.notes import PointsNote, check_plan_of
from grace_store.scoring.provenance import keep_samples
from grace_store.scoring.score_table import ScoresLike, ScoreTable, read_scores
from grace_store.study.diversity_tables import (
    DiversityMeasure,
    cluster_rows,
    random_table,
    represented_table,
    subsets_table,
    trade_curve,
)
from grace_store.values.diverse_orders import DiversitySpec
from grace_store.values.ranking import Ratio

NUM_RANDOM = 200
"""Default number of random subsets for coverage and entropy."""
_MEASURE_STREAM = 0x636F766572
"""Added to the seed, so that coverage is measured by other clusters than those that a selection was balanced by."""
ALL = "pool"
"""The name of all samples beside the subsets."""

Chosen = tuple[str, ScoreTable, IntArray, str]
"""A subset: its name, its table, its rows in the table, and the name of its file or table in messages."""


class DiversitySettings(Settings):
    """Settings of the measures of diversity."""

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
    """Compare the diversity of subsets with all done samples of the signal and with random subsets of the same size.

    subsets are files that ``select`` wrote, tables of scores (their best samples), or subsets in memory. scores is a
    table with the values of the pool; its best samples at each ratio are measured, too. curve has choices by value and
    diversity (made by curve_choices): each is tried at the first ratio, to show how much value it gives up for
    coverage. With scores, the pool's filter may also use num_tokens, value and flags.
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
    measure = DiversityMeasure(vectors, found, random, seed)
    places = [places_in(vectors, scored.row[rows], name) for name, scored, rows, _ in chosen]
    value = np.full(len(vectors), np.nan) if valued is None else valued.values_of(vectors.row)
    measured = [(ALL, measure.of(np.arange(len(vectors)), value))]
    measured += [
        (name, measure.of(at, scored.value[rows])) for (name, scored, rows, _), at in zip(chosen, places, strict=True)
    ]
    rows = cluster_rows(pool.store.column("sample_id")[vectors.sample], found, value, places)
    tables = {
        "subsets": subsets_table(measured, inside),
        "random": random_table(measure.random),
        "represented": represented_table(rows, measured, settings.show),
        "clusters": Table(columns={name: Column(heading=name) for name in rows[0]}, rows=tuple(rows), is_shown=False),
    }
    notes = measure.notes(measured)
    if curve and table is not None:
        listener(Note(f"Drawing a curve of {counted(len(curve), 'choice')}."))
        ranking = rank_samples(table)
        ranked = places_in(vectors, ranking.scores.row[ranking.ranked], "the table")
        best = ranking.value[ranking.ranked]
        tables["curve"] = trade_curve(vectors, found, ranked, best, shares[0], curve, seed=seed, threads=threads)
        if all(isinstance(each, float) and math.isnan(each) for each in tables["curve"].column("entropy")[1:-1]):
            notes.append("The samples lie in one cluster: there is nothing to trade value for.")
    note = PointsNote(**vectors.made_by)
    signals = {note.signal.name: SignalNote(sha256=note.signal.sha256, num_units=note.signal.num_units)}
    return Finding(
        study="diversity",
        pool=pool.note().model_copy(update={"signals": signals, "partial": note.partial}),
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
        numbers={
            "num_samples": len(vectors),
            "num_clusters": found.num_clusters,
            "num_less_varied": sum(
                _is_less_varied(each, measure.random.get(int(each["num_samples"] - each["num_without_direction"]), {}))
                for _, each in measured[1:]
            ),
        },
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
    """Return the filtered pool and table, the ratios of the best samples, and the subsets to measure."""
    table = read_scores(scores, steps=False) if isinstance(scores, (str, Path)) else scores
    if table is None and (ratio or has_curve):
        raise SettingError("--ratio and --curve need the values of the samples: give --scores")
    pool = Pool.of(pool, where=keep_samples(pool, table))
    table = table if table is None or pool.kept is None else table.among(pool.rows)
    shares = [*ratio] or (["0.2"] if table is not None and (has_curve or not subsets) else [])
    chosen = [_chosen(subset, number) for number, subset in enumerate(subsets, 1)]
    if table is not None:
        ranking = rank_samples(table)
        best = ((share, ranking.take(ratio=share).ranked) for share in shares)
        chosen += [(f"best {share}", ranking.scores, rows, table.what) for share, rows in best]
    for _, scored, _, what in chosen:
        check_plan_of(scored.note, pool.store, what)
    return pool, table, shares, chosen if pool.kept is None else [_among(each, pool.rows) for each in chosen]


def _vectors(pool: Pool, scores: ScoreTable | None, descriptor: str | None, listener: Listener) -> Descriptions:
    """Return the vectors of the pool's samples, of the signal that the pool names, or else of the scored signal."""
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


def _among(chosen: Chosen, rows: IntArray) -> Chosen:
    name, scores, mine, what = chosen
    mine = mine[np.isin(scores.row[mine], rows)]
    if not len(mine):
        raise SettingError(f"--where keeps no sample of {name}, so there is nothing to measure")
    return name, scores, mine, what


MOST_TOLD = 3
"""Most subsets with a sentence in the conclusion."""
NUMBERS_TOLD = 2
"""Most measures of a subset with numbers in the conclusion; the table has all."""
FEWEST_MEASURES = 2
"""Measures that must differ: one of four may lie outside the interval of random subsets by chance."""

Beside = tuple[float, Estimate]
"""A measure of a subset, and the interval of random subsets."""


def conclude_diversity(
    measured: Sequence[tuple[str, Mapping[str, float]]],
    random: Mapping[int, Mapping[str, Estimate | float]],
    num_clusters: int,
) -> str:
    """Return sentences that compare each subset with random ones and count near-duplicates; the pool comes first."""
    (_, pool), *subsets = measured
    if not subsets:
        samples, inside = counted(int(pool["num_samples"]), "sample"), counted(num_clusters, "cluster")
        return f"No subset is compared: the {samples} of the pool lie in {inside}. {_alike(pool, 'them')}".strip()
    told = []
    for name, each in subsets[:MOST_TOLD]:
        size = int(each["num_samples"] - each["num_without_direction"])
        is_pool = each["num_samples"] == pool["num_samples"]
        name = Path(name).name
        named = name[:1].upper() + name[1:] if name.startswith("subset ") else f"The subset {name}"
        told.append(f"{named} {_of_subset(each, None if is_pool else random[size])}")
    rest = len(subsets) - MOST_TOLD
    return " ".join([*told, *([f"{counted(rest, 'more subset')} in the table."] if rest > 0 else [])])


def _is_less_varied(subset: Mapping[str, float], random: Mapping[str, Estimate | float]) -> bool:
    """Return whether the conclusion calls a subset less varied than random subsets of its size."""
    below, above = _outside(subset, random)[1:]
    return len(below) >= FEWEST_MEASURES and not above


def _outside(
    subset: Mapping[str, float], random: Mapping[str, Estimate | float]
) -> tuple[int, dict[str, Beside], dict[str, Beside]]:
    """Return how many measures can be compared, and the measures that lie below and above those of random subsets."""
    names = {
        "clusters touched": "share_touched",
        "evenness": "entropy",
        "Vendi score": "vendi",
        "distance to the nearest": "nearest_distance",
    }
    known = {}
    for words, name in names.items():
        mine, others = subset[name], random.get(name)
        if mine == mine and isinstance(others, Estimate) and others.value == others.value:
            known[words] = mine, others
    below = {words: each for words, each in known.items() if each[0] < each[1].low}
    above = {words: each for words, each in known.items() if each[0] > each[1].high}
    return len(known), below, above


def _of_subset(subset: Mapping[str, float], random: Mapping[str, Estimate | float] | None) -> str:
    if random is None:
        return f"is the whole pool. {_alike(subset, 'it')}".strip()
    num_known, below, above = _outside(subset, random)
    if not num_known:
        return "is too small to be compared with random subsets."
    return f"{_against_random(below, above)} {_alike(subset, 'it')}".strip()


def _against_random(below: Mapping[str, Beside], above: Mapping[str, Beside]) -> str:
    if below and above:
        return f"is less varied than random subsets of its size by {_beside(below)}, but more by {_beside(above)}."
    outside, word = (below, "less") if below else (above, "more")
    if len(outside) >= FEWEST_MEASURES:
        return f"is {word} varied than random subsets of its size: {_beside(outside)}."
    but = f", but {'less' if below else 'more'} by {_beside(outside)}" if outside else ""
    return f"is about as varied as random subsets of its size{but}."


def _beside(outside: Mapping[str, Beside]) -> str:
    """Return the first measures with the intervals of random subsets, and the names of the others."""
    told = []
    for name, (value, random) in list(outside.items())[:NUMBERS_TOLD]:
        told.append(f"{name} {_shown(value)} (random {_shown(random.low)} to {_shown(random.high)})")
    return enumerated([*told, *list(outside)[NUMBERS_TOLD:]])


def _shown(number: float) -> str:
    """Return a measure with the digits that sentences use.

    >>> _shown(11.52), _shown(0.44)
    ('11.5', '0.440')
    """
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.3f}"


def _alike(subset: Mapping[str, float], where: str) -> str:
    share = subset["share_alike"]
    if share != share:
        return ""
    if not share:
        return f"No two samples in {where} are near-duplicates."
    return f"{percent(share)} of the samples in {where} have a near-duplicate there."
