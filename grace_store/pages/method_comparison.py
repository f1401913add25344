"""Several tables of scores side by side: what they choose, how they rank, what each took."""

from collections.abc import Sequence

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.text import duration, size
from grace_store.choose.select import select
from grace_store.pages.costs import cost_of
from grace_store.pages.figures import matrix_map
from grace_store.pages.groups import NamedTable
from grace_store.pages.sections import Cell, Section
from grace_store.run.status import Status
from grace_store.scoring.notes import check_plan_of
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.opened import Store
from grace_store.values.agreement import jaccard
from grace_store.values.length_bias import rank_correlation

MAX_CORRELATED = 1 << 17


def name_methods(tables: Sequence[ScoreTable]) -> list[NamedTable]:
    """Return tables named by their files and methods."""
    names: list[str] = []
    for table in tables:
        method = table.method
        name = f"{table.path.stem} ({method})" if table.path and method not in table.path.stem else method
        names.append(name if name not in names else f"{name}, table {len(names) + 1}")
    return [NamedTable(name, table) for name, table in zip(names, tables, strict=True)]


def method_overlaps(methods: Sequence[NamedTable], ratio: str) -> tuple[FloatArray, list[int]]:
    """Return the Jaccard overlap of the samples that each method chooses, and how many those are."""
    chosen = [_chosen_rows(method.table, ratio) for method in methods]
    matrix = np.array([[jaccard(len(a & b), len(a), len(b)) for b in chosen] for a in chosen])
    return matrix.reshape(len(methods), len(methods)), [len(each) for each in chosen]


def _chosen_rows(table: ScoreTable, ratio: str) -> set[int]:
    if not np.isfinite(table.value).any():
        return set()
    rows: list[int] = select(table, ratio=ratio).row.tolist()
    return set(rows)


def rank_correlations(methods: Sequence[NamedTable]) -> FloatArray:
    """Return Spearman's correlation of every two methods over the samples that both have a value for."""
    matrix = np.ones((len(methods), len(methods)))
    for i, first in enumerate(methods):
        for j, second in enumerate(methods[:i]):
            _, here, there = np.intersect1d(first.table.row, second.table.row, return_indices=True)
            x, y = first.table.value[here], second.table.value[there]
            both = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
            both = both[:: -(-len(both) // MAX_CORRELATED) or 1]
            matrix[i, j] = matrix[j, i] = rank_correlation(x[both], y[both])
    return matrix


def methods_section(store: Store, methods: Sequence[NamedTable], status: Status, ratio: str) -> Section:
    """Return the part of the page that compares methods; one method alone has its cost only."""
    section = Section("methods", "Methods", "What each way of scoring chooses, and what it takes.")
    for method in methods:
        check_plan_of(method.table.note, store)
    overlap, num_chosen = method_overlaps(methods, ratio)
    rows: list[dict[str, Cell]] = []
    for method, count in zip(methods, num_chosen, strict=True):
        cost = cost_of(method.table.note, store, status.signals)
        rows.append(
            {
                "table": method.name,
                "settings": method.settings,
                "signals": ", ".join(method.table.note.signals),
                "with a value": int(np.isfinite(method.table.value).sum()),
                f"best {ratio}": count,
                "forward passes": cost.num_forward,
                "backward passes": cost.num_backward,
                "stored": size(cost.num_bytes),
                "run time": "not logged" if cost.seconds is None else duration(cost.seconds),
            }
        )
    section.records(
        "What each took",
        rows,
        "One forward pass a sample for a proxy signal or a loss, and a backward pass for each gradient vector; random "
        "choice and lengths need no model, and a warm-up or a target set is not counted. Stored: all bytes of the "
        "signals that the method reads. Run time: what the store's run logs say, added up over workers, loading of the "
        "model included.",
    )
    if len(methods) < 2:
        section.text("Give --scores several times to compare methods.")
        return section
    names = [method.name for method in methods]
    caption = "Samples that two methods both choose, over those that either chooses."
    picture = matrix_map(overlap, names, "Jaccard")
    section.matrix("method-overlap", f"Overlap of the best {ratio}", picture, names, caption)
    picture = matrix_map(rank_correlations(methods), names, "Spearman", lowest=-1.0)
    caption = "Over the samples that both methods have a value for."
    section.matrix("method-rank-correlation", "Rank correlation", picture, names, caption)
    return section
