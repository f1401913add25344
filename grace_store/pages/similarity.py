"""The page's part on likeness: neighbours and duplicates among samples, and how much of them a subset covers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.artifacts.duplicate_table import DuplicateTable, read_duplicates
from grace_store.artifacts.made_from import check_plan_of
from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import IntArray
from grace_store.base.errors import DataError
from grace_store.base.events import Listener, ignore
from grace_store.curate.duplicates import find_duplicates
from grace_store.likeness.nearest import Nearest
from grace_store.pages import figures
from grace_store.pages.sections import Cell, Section
from grace_store.read.descriptors import Descriptions, DescriptorSpec, describe_samples
from grace_store.store.opened import Store

NUM_NEIGHBOURS = 5
QUERIES_AT_ONCE = 256
MAX_GROUPS, MAX_NAMED = 20, 6
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
    duplicates: Path | None = None
    diversity: Path | None = None
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
    signal = next(iter(table.made_by["signals"]))
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
    for start in range(0, len(alive), QUERIES_AT_ONCE):
        mine = np.arange(start, min(start + QUERIES_AT_ONCE, len(alive)))
        search = Nearest(vectors[mine], NUM_NEIGHBOURS)
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
        found = read_duplicates(request.duplicates)
        check_plan_of(found.made_by, store)
        among = f"From {request.duplicates.name}."
    elif find_spec("faiss") is None:
        section.text(f"Duplicates are not shown: {NO_FAISS}", kind="note")
        return [None] * len(row)
    else:
        found = find_duplicates(
            store, signal=signal, scores=table if np.isfinite(table.value).any() else None,
            subset=store.positions_of(row), data=request.data,
            partial=request.partial, listener=listener,
        )  # fmt: skip
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
        "nearest-similarity", "Nearest neighbours", figures.similarity_histogram(similarity, found.threshold),
        f"Cosine of each sample with its nearest, by the descriptor {found.made_by['descriptor']} of signal "
        f"{found.made_by['signal']['name']}. From the dashed line on, samples are alike. {among}",
    )  # fmt: skip
    counts = np.bincount(found.group[in_groups]) if in_groups.any() else np.zeros(0, np.int64)
    rows: list[list[Cell]] = []
    for group in np.argsort(-counts, kind="stable")[:MAX_GROUPS].tolist():
        mine = np.flatnonzero(found.group == group)
        kept = [found.sample_id[i] for i in mine.tolist() if found.keep[i]]
        others = [found.sample_id[i] for i in mine.tolist() if not found.keep[i]]
        named = ", ".join(others[:MAX_NAMED]) + (f" and {len(others) - MAX_NAMED:,} more" * (len(others) > MAX_NAMED))
        rows.append([str(group), int(counts[group]), ", ".join(kept), named])
    if rows:
        section.table("Largest groups of duplicates", ["group", "samples", "kept", "others"], rows)


# ---------------------------------------------------------------- coverage


def _coverage(section: Section, store: Store, table: ScoreTable, request: SimilarityRequest, signal: str) -> None:
    if request.diversity is not None:
        found = _read_diversity(store, request.diversity)
    elif not np.isfinite(table.value).any():
        section.text("Coverage is not shown: no sample has a value, so there is no subset.", kind="note")
        return
    elif find_spec("faiss") is None:
        section.text(f"Coverage is not shown: {NO_FAISS}", kind="note")
        return
    elif len(table) > MAX_POOL:
        section.text(
            f"Coverage is not shown: {len(table):,} samples are too many to be clustered for a page. Run "
            "`grace-store diversity --out FILE` and give that with `--diversity`.", kind="note",
        )  # fmt: skip
        return
    else:
        from grace_store.curate.diversity import measure_diversity

        ratio = () if request.subsets else (request.ratio,)
        found = measure_diversity(
            store, list(request.subsets), scores=table, ratio=ratio, signal=signal, partial=request.partial
        ).to_dict()
    _show_coverage(section, found)


def _read_diversity(store: Store, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as what `grace-store diversity` writes ({error}).") from None
    if not isinstance(found, dict) or found.get("kind") != "diversity":
        raise DataError(f"{path} is not what `grace-store diversity` writes.")
    check_plan_of(found, store)
    return found


def _show_coverage(section: Section, found: dict[str, Any]) -> None:
    subsets = found["subsets"]
    rows: list[list[Cell]] = []
    for each in (found["pool"], *subsets):
        random = each["random"] or {}
        interval = random.get("share_touched")
        rows.append(
            [Path(each["name"]).name, each["num_samples"], each["mean_value"], each["share_touched"],
             f"{interval['mean']:.3f} ({interval['low']:.3f} to {interval['high']:.3f})" if interval else None,
             each["entropy"], each["vendi"], each["nearest_distance"]]
        )  # fmt: skip
    section.table(
        "Coverage",
        ["subset", "samples", "mean value", "clusters touched", "random subsets", "entropy", "Vendi",
         "nearest distance"],
        rows,
        caption=f"Of {found['num_clusters']:,} clusters of the pool, by the descriptor {found['descriptor']}. Random "
        "subsets: the mean share that subsets of the same size touch, and what 5 % are below and above. Entropy: 1 if "
        "clusters are filled evenly. Vendi: effective number of different samples. Nearest distance: mean of 1 - cos "
        "to the nearest other sample of the subset.",
    )  # fmt: skip
    if not subsets:
        return
    names = [Path(each["name"]).name for each in subsets]
    random = np.array([_interval(each["random"]) for each in subsets], dtype=np.float64).reshape(-1, 3)
    share = np.array([each["share_touched"] for each in subsets], dtype=np.float64)
    section.figure(
        "coverage", "Clusters touched", figures.coverage_bars(names, share, random),
        "Bars: the subset. Diamonds: random subsets of the same size.",
    )  # fmt: skip
    clusters = found["clusters"]
    section.figure(
        "cluster-values", f"Clusters and {names[0]}",
        figures.cluster_map(
            np.array([each["mean_value"] for each in clusters], dtype=np.float64),
            np.array([each["representation"][0] for each in clusters], dtype=np.float64),
            np.array([each["num_samples"] for each in clusters], dtype=np.int64),
            [each["example"] for each in clusters],
        ),
        "Each dot is a cluster, as large as it has samples. Above the line the subset has more of it than its share.",
    )  # fmt: skip


def _interval(random: dict[str, Any] | None) -> tuple[float, float, float]:
    if random is None:
        return (np.nan, np.nan, np.nan)
    found = random["share_touched"]
    return (found["mean"], found["low"], found["high"])
