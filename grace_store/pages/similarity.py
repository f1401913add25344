"""The page's part on likeness: neighbours and duplicates among samples, and how much of them a subset covers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grace_store.artifacts.duplicate_table import DuplicateTable
from grace_store.artifacts.measures import Diversity, RandomSubsets, SubsetDiversity, TradeCurve, TradePoint
from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import IntArray
from grace_store.base.events import Listener
from grace_store.base.row_places import find_rows
from grace_store.base.text import first_few
from grace_store.likeness.nearest import Nearest
from grace_store.pages import similarity_figures
from grace_store.pages.sections import Cell, Section
from grace_store.read.descriptors import Descriptions, DescriptorSpec, describe_samples

if TYPE_CHECKING:
    from grace_store.pages.report_inputs import ReportInputs

NUM_NEIGHBOURS_SHOWN = 5
SEARCHED_AT_ONCE = 256
MAX_LISTED_GROUPS, MAX_NAMED = 20, 6
"""Groups that are listed, and samples that are named in each."""
NO_FAISS = "it is found by faiss, which is not installed (`pip install 'grace-store[faiss]'`)."
MAX_POOL = 50_000
"""Coverage of a larger pool is not measured for a page: `grace-store diversity` writes it once."""


@dataclass(frozen=True, slots=True)
class Similarity:
    """The section, and what the trace browser shows of each shown sample."""

    section: Section
    neighbours: list[list[tuple[int, float]]]
    """For each shown sample, other shown ones by place among them, nearest first, with their cosines."""
    group: list[int | None]
    """For each shown sample, its group of duplicates."""


def similarity_section(given: ReportInputs, table: ScoreTable, place: IntArray, listener: Listener) -> Similarity:
    """Look for the neighbours of the rows shown among them, and describe duplicates and coverage."""
    section = Section("similarity", "Similarity", "Which traces are alike, and how much of the pool a subset covers.")
    row, spec = table.row[place], DescriptorSpec(next(iter(table.note.signals)))
    samples = given.store.positions_of(row)
    described = describe_samples(given.store, spec, samples=samples, partial=given.request.partial)
    group = _duplicates(section, given, table, row, listener)
    _coverage(section, given, table)
    return Similarity(section, _neighbours(described, row), group)


def _neighbours(described: Descriptions, row: IntArray) -> list[list[tuple[int, float]]]:
    """Return the nearest of each shown sample among those shown, by place in that list."""
    at, _ = find_rows(row, described.row)
    alive = np.flatnonzero(~described.is_zero)
    vectors = np.asarray(described.vector[alive], dtype=np.float32)
    neighbours: list[list[tuple[int, float]]] = [[] for _ in row]
    for start in range(0, len(alive), SEARCHED_AT_ONCE):
        mine = np.arange(start, min(start + SEARCHED_AT_ONCE, len(alive)))
        search = Nearest(vectors[mine], NUM_NEIGHBOURS_SHOWN)
        search.add(np.arange(len(alive)), vectors, leave_out=mine)
        for i, points, cosines in zip(mine.tolist(), *search.found(), strict=True):
            found = zip(points.tolist(), cosines.tolist(), strict=True)
            neighbours[int(at[alive[i]])] = [(int(at[alive[point]]), cosine) for point, cosine in found if point >= 0]
    return neighbours


def _duplicates(
    section: Section, given: ReportInputs, table: ScoreTable, row: IntArray, listener: Listener
) -> list[int | None]:
    """Describe duplicates, and return the group of each sample shown."""
    if not len(row):
        section.text("No sample is done yet.", kind="note")
        return []
    if given.duplicates is not None:
        found = given.duplicates
        among = f"From {found.path.name if found.path else 'a table in memory'}."
    elif find_spec("faiss") is None:
        section.text(f"Duplicates are not shown: {NO_FAISS}", kind="note")
        return [None] * len(row)
    else:
        from grace_store.curate.duplicates import DuplicatesRequest, duplicates

        wanted = DuplicatesRequest(
            signal=next(iter(table.note.signals)),
            scores=table if np.isfinite(table.value).any() else None,
            subset=given.store.positions_of(row),
            data=given.request.data,
            partial=given.request.partial,
        )
        found = duplicates(given.store, wanted, listener=listener)
        among = f"Looked for among the {len(row):,} traces on this page."
    _show_duplicates(section, found, among)
    groups = dict(zip(found.row.tolist(), found.group.tolist(), strict=True))
    return [None if groups.get(each, -1) < 0 else groups[each] for each in row.tolist()]


def _show_duplicates(section: Section, found: DuplicateTable, among: str) -> None:
    in_groups = found.group >= 0
    section.stats(
        [
            ("samples compared", f"{len(found):,}"),
            (f"alike, cosine {found.threshold:g} and above", f"{int(in_groups.sum()):,}"),
            ("of the same text", f"{int(found.exact.sum()):,}"),
            ("groups", f"{found.num_groups:,}"),
            ("left if one of each is kept", f"{int(found.keep.sum()):,}"),
        ]
    )
    similarity = found.similarity[np.isfinite(found.similarity)].astype(np.float64)
    picture = similarity_figures.similarity_histogram(similarity, found.threshold)
    caption = f"Cosine of each sample with its nearest, by the descriptor {found.note.descriptor} of signal "
    caption += f"{found.note.signal.name}. From the dashed line on, samples are alike. {among}"
    section.figure("nearest-similarity", "Nearest neighbours", picture, caption)
    counts = np.bincount(found.group[in_groups]) if in_groups.any() else np.zeros(0, np.int64)
    rows: list[dict[str, Cell]] = []
    for group in np.argsort(-counts, kind="stable")[:MAX_LISTED_GROUPS].tolist():
        mine = np.flatnonzero(found.group == group)
        kept = [found.sample_id[i] for i in mine.tolist() if found.keep[i]]
        others = [found.sample_id[i] for i in mine.tolist() if not found.keep[i]]
        named = {"kept": ", ".join(kept), "others": first_few(others, MAX_NAMED)}
        rows.append({"group": str(group), "samples": int(counts[group]), **named})
    section.records("Largest groups of duplicates", rows)


def _coverage(section: Section, given: ReportInputs, table: ScoreTable) -> None:
    obstacle, request = "", given.request
    if not np.isfinite(table.value).any():
        obstacle = "no sample has a value, so there is no subset."
    elif find_spec("faiss") is None:
        obstacle = NO_FAISS
    elif len(table) > MAX_POOL:
        obstacle = f"{len(table):,} samples are too many to be clustered for a page. Run "
        obstacle += "`grace-store diversity --out FILE` and give that with `--diversity`."
    if given.diversity is not None:
        _show_coverage(section, given.diversity)
    elif obstacle:
        section.text(f"Coverage is not shown: {obstacle}", kind="note")
    else:
        from grace_store.curate.diversity import DiversityRequest, diversity

        ratio, signal = () if request.subsets else (request.ratio,), next(iter(table.note.signals))
        wanted = DiversityRequest(
            subsets=request.subsets,
            scores=table,
            ratio=ratio,
            signal=signal,
            partial=request.partial,
            where=given.kept,
        )
        _show_coverage(section, diversity(given.store, wanted))


def _show_coverage(section: Section, found: Diversity) -> None:
    if conclusion := found.conclusion:
        section.text(conclusion, kind="conclusion")
    section.records(
        "Coverage",
        [_coverage_row(each) for each in (found.pool, *found.subsets)],
        f"Of {found.num_clusters:,} clusters of the pool, by the descriptor {found.descriptor}. Random subsets: the "
        "mean share that subsets of the same size touch, and what 5 % are below and above. Entropy: 1 if clusters are "
        "filled evenly. Vendi: effective number of different samples. Nearest distance: mean of 1 - cos to the nearest "
        "other sample of the subset.",
    )
    if not found.subsets:
        return
    names = [Path(each.name).name for each in found.subsets]
    share = np.array([each.share_touched for each in found.subsets])
    random = np.array([_interval(each.random) for each in found.subsets]).reshape(-1, 3)
    caption = "Bars: the subset. Diamonds: random subsets of the same size."
    section.figure("coverage", "Clusters touched", similarity_figures.coverage_bars(names, share, random), caption)
    picture = similarity_figures.cluster_map(
        np.array([each.mean_value for each in found.clusters]),
        np.array([each.representation[0] for each in found.clusters]),
        np.array([each.num_samples for each in found.clusters], dtype=np.int64),
        [each.example for each in found.clusters],
    )
    caption = (
        "A dot is a cluster, its size the number of its samples. Above the line the subset has more than its share."
    )
    section.figure("cluster-values", f"Clusters and {names[0]}", picture, caption)
    if found.curve is not None:
        _show_curve(section, found.curve)


def _show_curve(section: Section, curve: TradeCurve) -> None:
    """Draw what coverage costs, each line and point with its name."""
    methods = list(dict.fromkeys(point.method for point in curve.points))
    caption = "A line is a method of diverse selection; along it, its weight goes from 0 (value alone) to its end."
    for name, what in (("share_touched", "share of clusters touched"), ("entropy", "evenness over clusters")):
        lines = {each: [_place(p, name) for p in curve.points if p.method == each] for each in methods}
        picture = similarity_figures.trade_lines(lines, [_place(curve.best, name), _place(curve.random, name)], what)
        title = f"What diversity costs: {what}"
        section.figure(f"diversity-curve-{name.replace('_', '-')}", title, picture, caption)


def _place(point: TradePoint, name: str) -> similarity_figures.TradePlace:
    words = f"{point.method}, weight {point.weight:g}" if point.weight == point.weight else point.method
    return similarity_figures.TradePlace(words, point.value_lost, float(getattr(point, name)))


def _coverage_row(each: SubsetDiversity) -> dict[str, Cell]:
    mean, low, high = _interval(each.random)
    return {
        "subset": Path(each.name).name,
        "samples": each.num_samples,
        "mean value": each.mean_value,
        "clusters touched": each.share_touched,
        "random subsets": None if each.random is None else f"{mean:.3f} ({low:.3f} to {high:.3f})",
        "entropy": each.entropy,
        "Vendi": each.vendi,
        "nearest distance": each.nearest_distance,
    }


def _interval(random: RandomSubsets | None) -> tuple[float, float, float]:
    found = None if random is None else random.share_touched
    return (np.nan, np.nan, np.nan) if found is None else (found.mean, found.low, found.high)
