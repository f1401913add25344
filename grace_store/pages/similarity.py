"""The page's part on similar samples: neighbours, duplicates, and the coverage of subsets."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from grace_store.base.arrays import IntArray, find_rows
from grace_store.base.errors import how_to_install
from grace_store.base.events import Listener
from grace_store.base.finding import Finding
from grace_store.base.text import first_few
from grace_store.choose.duplicate_table import DuplicateTable
from grace_store.likeness.points import Nearest
from grace_store.pages.figures import similarity_histogram
from grace_store.pages.findings import add_finding
from grace_store.pages.sections import Cell, Section
from grace_store.pages.trace_data import Neighbours
from grace_store.pool.descriptors import Descriptions, describe_samples
from grace_store.pool.pool import Pool
from grace_store.scoring.score_table import ScoreTable

if TYPE_CHECKING:
    from grace_store.pages.report_inputs import ReportInputs

NUM_NEIGHBOURS_SHOWN = 5
SEARCHED_AT_ONCE = 256
MAX_LISTED_GROUPS, MAX_NAMED = 20, 6
"""Maximum number of listed groups, and of named samples in each group."""
NO_FAISS = f"this needs faiss, but faiss is not installed. {how_to_install('faiss')}"
MAX_POOL = 50_000
"""Maximum number of samples for which a page measures coverage. For more, run `grace-store diversity` once."""


def similarity_section(
    given: ReportInputs, table: ScoreTable, place: IntArray, listener: Listener
) -> tuple[Section, Neighbours, list[int | None], list[Finding]]:
    """Return the part on duplicates and coverage, with the finding on coverage if one was made for the page.

    Between them, return the neighbours and the duplicate group of each shown sample.
    """
    section = Section("similarity", "Similarity", "Similar traces, and the share of the pool that a subset covers.")
    row = table.row[place]
    pool = Pool(given.store, table.note.signal, partial=given.request.partial, data=given.request.data)
    described = describe_samples(pool, samples=given.store.positions_of(row))
    group = _duplicates(section, given, pool, table, row, listener)
    return section, _neighbours(described, row), group, _coverage(section, given, table)


def _neighbours(described: Descriptions, row: IntArray) -> Neighbours:
    at, _ = find_rows(row, described.row)
    alive = np.flatnonzero(~described.is_zero)
    vectors = np.asarray(described.vector[alive], dtype=np.float32)
    neighbours: Neighbours = [[] for _ in row]
    for start in range(0, len(alive), SEARCHED_AT_ONCE):
        mine = np.arange(start, min(start + SEARCHED_AT_ONCE, len(alive)))
        search = Nearest(vectors[mine], NUM_NEIGHBOURS_SHOWN)
        search.add(np.arange(len(alive)), vectors, leave_out=mine)
        for i, points, cosines in zip(mine.tolist(), *search.found(), strict=True):
            found = zip(points.tolist(), cosines.tolist(), strict=True)
            neighbours[int(at[alive[i]])] = [(int(at[alive[point]]), cosine) for point, cosine in found if point >= 0]
    return neighbours


def _duplicates(
    section: Section, given: ReportInputs, pool: Pool, table: ScoreTable, row: IntArray, listener: Listener
) -> list[int | None]:
    """Add the duplicates to a section, and return the duplicate group of each shown sample."""
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
        from grace_store.choose.duplicates import duplicates

        values = table if np.isfinite(table.value).any() else None
        found = duplicates(pool, scores=values, subset=given.store.positions_of(row), listener=listener)
        among = f"Searched among the {len(row):,} traces on this page."
    _show_duplicates(section, found, among)
    groups = dict(zip(found.row.tolist(), found.group.tolist(), strict=True))
    return [None if groups.get(each, -1) < 0 else groups[each] for each in row.tolist()]


def _show_duplicates(section: Section, found: DuplicateTable, among: str) -> None:
    in_groups = found.group >= 0
    section.stats(
        [
            ("samples compared", f"{len(found):,}"),
            (f"similar, cosine {found.threshold:g} and above", f"{int(in_groups.sum()):,}"),
            ("with the same text", f"{int(found.exact.sum()):,}"),
            ("groups", f"{found.num_groups:,}"),
            ("left if one of each group is kept", f"{int(found.keep.sum()):,}"),
        ]
    )
    similarity = found.similarity[np.isfinite(found.similarity)].astype(np.float64)
    picture = similarity_histogram(similarity, found.threshold)
    caption = f"Cosine of each sample with its nearest neighbour, by the descriptor {found.note.descriptor} of signal "
    caption += f"{found.note.signal.name}. Samples to the right of the dashed line are similar. {among}"
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


def _coverage(section: Section, given: ReportInputs, table: ScoreTable) -> list[Finding]:
    """Add the diversity of the subsets, unless a given finding has it, and return what was found."""
    if any(found.study == "diversity" for found in given.findings):
        return []
    obstacle, request = "", given.request
    if not np.isfinite(table.value).any():
        obstacle = "no sample has a value, so there is no subset."
    elif find_spec("faiss") is None:
        obstacle = NO_FAISS
    elif len(table) > MAX_POOL:
        obstacle = f"{len(table):,} samples are too many to cluster for a page. Run "
        obstacle += "`grace-store diversity --out FILE` and give the file with `--finding`."
    if obstacle:
        section.text(f"Coverage is not shown: {obstacle}", kind="note")
        return []
    from grace_store.study.diversity import diversity

    ratio, signal = () if request.subsets else (request.ratio,), table.note.signal
    pool = Pool.of(given.pool, signals=signal, partial=request.partial)
    found = diversity(pool, request.subsets, scores=table, ratio=ratio)
    add_finding(section, found)
    return [found]
