"""The page's part on likeness: neighbours and duplicates among samples, and how much of them a subset covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from grace_store.artifacts.diversity_document import Diversity, RandomSubsets, SubsetDiversity
from grace_store.artifacts.duplicate_table import DuplicateTable
from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import IntArray
from grace_store.base.events import Listener, ignore
from grace_store.likeness.nearest import Nearest
from grace_store.pages import figures
from grace_store.pages.sections import Cell, Section
from grace_store.read.descriptors import Descriptions, DescriptorSpec, describe_samples
from grace_store.store.opened import Store

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
    group: list[int | None]


@dataclass(frozen=True, slots=True)
class SimilarityRequest:
    """What is looked at: the samples shown, and what other commands found before."""

    place: IntArray
    """Rows of the table that are shown, ascending."""
    duplicates: DuplicateTable | None = None
    diversity: Diversity | None = None
    subsets: Sequence[Path] = ()
    ratio: str = "0.2"
    data: Sequence[str] | None = None
    partial: bool = False


def similarity_section(
    store: Store, table: ScoreTable, request: SimilarityRequest, listener: Listener = ignore
) -> Similarity:
    """Look for each shown sample's neighbours among those shown, and tell of duplicates and coverage."""
    section = Section("similarity", "Similarity", "Which traces are alike, and how much of the pool a subset covers.")
    row = table.row[request.place]
    signal = next(iter(table.note.signals))
    described = describe_samples(
        store, DescriptorSpec(signal), samples=store.positions_of(row), partial=request.partial
    )
    group = _duplicates(section, store, table, request, signal, listener)
    _coverage(section, store, table, request, signal)
    return Similarity(section, _neighbours(described, row), group)


# ---------------------------------------------------------------- neighbours


def _neighbours(described: Descriptions, row: IntArray) -> list[list[tuple[int, float]]]:
    """Return the nearest of each shown sample among those shown, by place in that list."""
    at = np.searchsorted(row, described.row)
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


# ---------------------------------------------------------------- duplicates


def _duplicates(
    section: Section, store: Store, table: ScoreTable, request: SimilarityRequest, signal: str, listener: Listener
) -> list[int | None]:
    """Tell of duplicates, and return each shown sample's group."""
    row = table.row[request.place]
    if not len(row):
        section.text("No sample is done yet.", kind="note")
        return []
    if request.duplicates is not None:
        found = request.duplicates
        among = f"From {found.path.name if found.path else 'a table in memory'}."
    elif find_spec("faiss") is None:
        section.text(f"Duplicates are not shown: {NO_FAISS}", kind="note")
        return [None] * len(row)
    else:
        from grace_store.curate.duplicates import DuplicatesRequest, duplicates

        wanted = DuplicatesRequest(
            signal=signal,
            scores=table if np.isfinite(table.value).any() else None,
            subset=store.positions_of(row),
            data=request.data,
            partial=request.partial,
        )
        found = duplicates(store, wanted, listener=listener)
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
    section.figure(
        "nearest-similarity",
        "Nearest neighbours",
        figures.similarity_histogram(similarity, found.threshold),
        f"Cosine of each sample with its nearest, by the descriptor {found.note.descriptor} of signal "
        f"{found.note.signal.name}. From the dashed line on, samples are alike. {among}",
    )
    counts = np.bincount(found.group[in_groups]) if in_groups.any() else np.zeros(0, np.int64)
    rows: list[dict[str, Cell]] = []
    for group in np.argsort(-counts, kind="stable")[:MAX_LISTED_GROUPS].tolist():
        mine = np.flatnonzero(found.group == group)
        kept = [found.sample_id[i] for i in mine.tolist() if found.keep[i]]
        others = [found.sample_id[i] for i in mine.tolist() if not found.keep[i]]
        named = ", ".join(others[:MAX_NAMED]) + (f" and {len(others) - MAX_NAMED:,} more" * (len(others) > MAX_NAMED))
        rows.append({"group": str(group), "samples": int(counts[group]), "kept": ", ".join(kept), "others": named})
    section.records("Largest groups of duplicates", rows)


# ---------------------------------------------------------------- coverage


def _coverage(section: Section, store: Store, table: ScoreTable, request: SimilarityRequest, signal: str) -> None:
    if request.diversity is not None:
        found = request.diversity
    elif not np.isfinite(table.value).any():
        section.text("Coverage is not shown: no sample has a value, so there is no subset.", kind="note")
        return
    elif find_spec("faiss") is None:
        section.text(f"Coverage is not shown: {NO_FAISS}", kind="note")
        return
    elif len(table) > MAX_POOL:
        section.text(
            f"Coverage is not shown: {len(table):,} samples are too many to be clustered for a page. Run "
            "`grace-store diversity --out FILE` and give that with `--diversity`.",
            kind="note",
        )
        return
    else:
        from grace_store.curate.diversity import DiversityRequest, diversity

        wanted = DiversityRequest(
            subsets=request.subsets,
            scores=table,
            ratio=() if request.subsets else (request.ratio,),
            signal=signal,
            partial=request.partial,
        )
        found = diversity(store, wanted)
    _show_coverage(section, found)


def _show_coverage(section: Section, found: Diversity) -> None:
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
    section.figure(
        "coverage",
        "Clusters touched",
        figures.coverage_bars(
            names,
            np.array([each.share_touched for each in found.subsets]),
            np.array([_interval(each.random) for each in found.subsets]).reshape(-1, 3),
        ),
        "Bars: the subset. Diamonds: random subsets of the same size.",
    )
    section.figure(
        "cluster-values",
        f"Clusters and {names[0]}",
        figures.cluster_map(
            np.array([each.mean_value for each in found.clusters]),
            np.array([each.representation[0] for each in found.clusters]),
            np.array([each.num_samples for each in found.clusters], dtype=np.int64),
            [each.example for each in found.clusters],
        ),
        "Each dot is a cluster, as large as it has samples. Above the line the subset has more of it than its share.",
    )


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
    if random is None:
        return (np.nan, np.nan, np.nan)
    found = random.share_touched
    return (found.mean, found.low, found.high)
