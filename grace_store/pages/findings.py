"""Findings on a page: a section for each, with its conclusion, its tables and their pictures."""

import math
from collections.abc import Callable, Mapping
from pathlib import PurePath

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.finding import Cell, Estimate, Finding, Table
from grace_store.base.text import one_line
from grace_store.pages.figures import intervals, proxy_scatter, subset_losses
from grace_store.pages.sections import Figure, Section
from grace_store.pages.similarity_figures import TradePlace, cluster_map, coverage_bars, trade_lines

INTERVALS = "Dots with their 95 % intervals."
PROXY, WHOLE = "proxy", "representation"
"""What fidelity calls the stored scores, and those over all parameters below the head."""
MOST_ROWS = 200
"""Rows of a table that a page shows: two subsets may differ in many thousands of samples."""


def finding_section(found: Finding) -> Section:
    """Return what a study found, as a part of the page."""
    section = Section(found.study, found.study.capitalize())
    add_finding(section, found)
    return section


def add_finding(section: Section, found: Finding) -> None:
    """Add what a study found to a part of the page: conclusion, tables, pictures and notes."""
    section.text(found.conclusion, kind="conclusion")
    if found.pool is not None and (where := found.pool.where) is not None:
        kept = f"{where.num_kept:,} of {where.num_samples:,} samples"
        section.text(f"Only samples where {one_line(where.sql)}: {kept}.", kind="note")
    for name, table in found.tables.items():
        if table.is_drawn and (picture := estimates_figure(table)) is not None:
            section.figure(
                f"{found.study}-{name}", table.title, picture, f"{table.about} {INTERVALS}".strip(), wide=True
            )
        if table.is_shown:
            headings, *rows = table.texts()
            more = f" {len(rows) - MOST_ROWS:,} more rows are in the file of the finding." * (len(rows) > MOST_ROWS)
            section.table(table.title, headings, rows[:MOST_ROWS], f"{table.about}{more}".strip())
    if (draw := PICTURES.get(found.study)) is not None:
        draw(section, found)
    for note in found.notes:
        section.text(note)


def estimates_figure(table: Table) -> Figure | None:
    """Return the first column of estimates as dots with intervals, each row by its first cell; None without any."""
    label, *columns = table.columns
    drawn = next((each for each in columns if any(isinstance(cell, Estimate) for cell in table.column(each))), None)
    if drawn is None:
        return None
    shown = {str(row[label]): cell for row in table.rows if isinstance(cell := row.get(drawn), Estimate)}
    column = table.columns[drawn]
    return intervals(shown, column.heading, None if column.chance is None else (column.chance, "chance"))


def _draw_fidelity(section: Section, found: Finding) -> None:
    """Draw every step and every sample: its number by the proxy against that by all parameters."""
    for name, each in {"answer_alignment": "step", "history_alignment": "step", "value": "trace"}.items():
        points = _value_points(found) if name == "value" else _step_points(found, name)
        words = name.replace("_", " ")
        if points:
            title, caption = f"{words.capitalize()} by the proxy and by gradients", f"Each point is a {each}"
            picture = proxy_scatter(points, words)
            section.figure(f"fidelity-{name.replace('_', '-')}", title, picture, f"{caption}; dashed: both are equal.")


def _value_points(found: Finding) -> list[tuple[str, float, float]]:
    """Return each sample's id, and its value by the proxy and by all parameters."""
    rows = found.tables["values"].rows if "values" in found.tables else ()
    return [(str(row.get("sample_id")), _number(row.get(PROXY)), _number(row.get(WHOLE))) for row in rows]


def _step_points(found: Finding, name: str) -> list[tuple[str, float, float]]:
    """Return what each step is called, and its alignment by the proxy and by all parameters."""
    by: dict[str, dict[str, float]] = {PROXY: {}, WHOLE: {}}
    for row in found.tables["steps"].rows if "steps" in found.tables else ():
        if (space := str(row.get("parameters"))) in by:
            by[space][f"{row.get('sample_id')}, step {row.get('step')}"] = _number(row.get(name))
    return [(step, value, by[WHOLE][step]) for step, value in by[PROXY].items() if step in by[WHOLE]]


def _number(cell: Cell) -> float:
    return float(cell) if isinstance(cell, int | float) else math.nan


def _numbers(table: Table, name: str) -> FloatArray:
    return np.array([_number(cell) for cell in table.column(name)], dtype=np.float64)


def _clusters_touched(found: Finding) -> Figure | None:
    """Draw the share of clusters that each subset touches, beside random subsets of its size."""
    subsets, random = found.tables["subsets"].rows[1:], found.tables.get("random")
    if not subsets or random is None:
        return None
    by_size = {row["num_samples"]: row["share_touched"] for row in random}
    sizes = (int(row["num_samples"]) - int(row["num_without_direction"]) for row in subsets)  # type: ignore[arg-type]
    drawn = [by_size.get(size) for size in sizes]
    ends = [(each.value, each.low, each.high) if isinstance(each, Estimate) else (np.nan,) * 3 for each in drawn]
    names = [PurePath(str(row["subset"])).name for row in subsets]
    return coverage_bars(names, _numbers(found.tables["subsets"], "share_touched")[1:], np.array(ends))


def _clusters_chosen(found: Finding) -> Figure | None:
    """Draw the value of each cluster against how much of the first subset it is."""
    clusters = found.tables["clusters"]
    if "representation_1" not in clusters.columns:
        return None
    value, share, size = (_numbers(clusters, name) for name in ("mean_value", "representation_1", "num_samples"))
    return cluster_map(value, share, size.astype(np.int64), [str(each) for each in clusters.column("example")])


def _costs(found: Finding, name: str, what: str) -> Figure | None:
    """Draw how much value each gain in coverage costs."""
    if (curve := found.tables.get("curve")) is None:
        return None
    lines: dict[str, list[TradePlace]] = {}
    for row, lost, gained in zip(curve.rows, _numbers(curve, "value_lost"), _numbers(curve, name), strict=True):
        method, weight = str(row["method"]), row["weight"]
        words = method if weight is None else f"{method}, weight {weight:g}"
        lines.setdefault(method, []).append((words, float(lost), float(gained)))
    (best, *_), *methods, (random, *_) = lines.values()
    names = list(lines)[1:-1]
    return trade_lines(dict(zip(names, methods, strict=True)), [best, random], what)


def _draw_diversity(section: Section, found: Finding) -> None:
    """Draw the clusters that subsets touch, and what diversity costs."""
    drawn = {
        "Clusters touched: bars are subsets, diamonds random subsets of the same size": _clusters_touched(found),
        "Clusters, and the first subset: above the line it has more than its share": _clusters_chosen(found),
        "What diversity costs: share of clusters touched": _costs(found, "share_touched", "share of clusters touched"),
        "What diversity costs: evenness over clusters": _costs(found, "entropy", "evenness over clusters"),
    }
    for number, (title, picture) in enumerate(drawn.items()):
        if picture is not None:
            section.figure(f"diversity-{number}", title, picture)


def _draw_trial(section: Section, found: Finding) -> None:
    """Draw the held-out loss of every subset beside those of its random ones."""
    losses: dict[str, list[float]] = {}
    for row in found.tables.get("arms", ()):
        losses.setdefault(str(row["subset"]), []).append(_number(row["heldout_loss"]))
    if losses:
        title = "Held-out loss of every subset, and of each random one beside it"
        drawn = {name: (mine, random) for name, (mine, *random) in losses.items()}
        section.figure("trial-losses", title, subset_losses(drawn), wide=True)


PICTURES: Mapping[str, Callable[[Section, Finding], None]] = {
    "fidelity": _draw_fidelity,
    "diversity": _draw_diversity,
    "trial": _draw_trial,
}
"""What draws the pictures that only one study has, by its name."""
