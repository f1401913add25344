"""The page's parts for files of other commands: findings of studies, benchmark items, warm-up. Computes nothing."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.finding import Cell, Estimate, Finding, Table
from grace_store.base.text import one_line
from grace_store.choose.contamination_table import AgainstTable
from grace_store.pages import figure_parts as parts
from grace_store.pages.figures import (
    TradePlace,
    cluster_map,
    coverage_bars,
    intervals,
    line_chart,
    proxy_scatter,
    subset_losses,
    trade_lines,
)
from grace_store.pages.sections import Figure, Section
from grace_store.train.loss_log import read_losses

PROXY, WHOLE = "proxy", "representation"
"""Names in the finding of `fidelity`: the stored scores, and the scores over all parameters below the head."""
MOST_ROWS = 200
"""Maximum rows of a table. Two subsets can differ in many thousands of samples."""
WORST_SHOWN = 20
"""Maximum number of matches with benchmark items."""


def finding_section(found: Finding) -> Section:
    """Return the part of the page for a finding."""
    section = Section(found.study, found.study.capitalize())
    add_finding(section, found)
    return section


def add_finding(section: Section, found: Finding) -> None:
    """Add a finding to a part of the page: conclusion, tables, pictures and notes."""
    section.text(found.conclusion, kind="conclusion")
    if found.pool is not None and (where := found.pool.where) is not None:
        kept = f"{where.num_kept:,} of {where.num_samples:,} samples"
        section.text(f"Only samples where {one_line(where.sql)}: {kept}.", kind="note")
    for name, table in found.tables.items():
        if table.is_drawn and (picture := estimates_figure(table)) is not None:
            caption = f"{table.about} Dots with their 95 % intervals.".strip()
            section.figure(f"{found.study}-{name}", table.title, picture, caption, wide=True)
        if table.is_shown:
            headings, *rows = table.texts()
            more = f" {len(rows) - MOST_ROWS:,} more rows are in the file of the finding." * (len(rows) > MOST_ROWS)
            section.table(table.title, headings, rows[:MOST_ROWS], f"{table.about}{more}".strip())
    if (draw := PICTURES.get(found.study)) is not None:
        draw(section, found)
    for note in found.notes:
        section.text(note)


def estimates_figure(table: Table) -> Figure | None:
    """Draw the first column of estimates, with the first cells of rows as names; None without any estimate."""
    label, *columns = table.columns
    drawn = next((each for each in columns if any(isinstance(cell, Estimate) for cell in table.column(each))), None)
    if drawn is None:
        return None
    shown = {str(row[label]): cell for row in table.rows if isinstance(cell := row.get(drawn), Estimate)}
    column = table.columns[drawn]
    return intervals(shown, column.heading, None if column.chance is None else (column.chance, "chance"))


def _draw_fidelity(section: Section, found: Finding) -> None:
    """Draw the scores of steps and samples: by the proxy against by all parameters."""
    values = found.tables["values"].rows if "values" in found.tables else ()
    steps = found.tables["steps"].rows if "steps" in found.tables else ()
    for name, each in {"answer_alignment": "step", "history_alignment": "step", "value": "trace"}.items():
        by: dict[str, dict[str, float]] = {PROXY: {}, WHOLE: {}}
        for row in values if name == "value" else ():
            for space, numbers in by.items():
                numbers[str(row.get("sample_id"))] = _number(row.get(space))
        for row in steps if name != "value" else ():
            if (space := str(row.get("parameters"))) in by:
                by[space][f"{row.get('sample_id')}, step {row.get('step')}"] = _number(row.get(name))
        words = name.replace("_", " ")
        if points := [(point, value, by[WHOLE][point]) for point, value in by[PROXY].items() if point in by[WHOLE]]:
            title, caption = f"{words.capitalize()} by the proxy and by gradients", f"Each point is a {each}"
            picture = proxy_scatter(points, words)
            section.figure(f"fidelity-{name.replace('_', '-')}", title, picture, f"{caption}; dashed: both are equal.")


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
    return trade_lines(dict(zip(list(lines)[1:-1], methods, strict=True)), [best, random], what)


def _draw_diversity(section: Section, found: Finding) -> None:
    chosen, clusters = None, found.tables["clusters"]
    if "representation_1" in clusters.columns:
        value, share, size = (_numbers(clusters, name) for name in ("mean_value", "representation_1", "num_samples"))
        chosen = cluster_map(value, share, size.astype(np.int64), [str(each) for each in clusters.column("example")])
    drawn = {
        "Clusters touched: bars are subsets, diamonds random subsets of the same size": _clusters_touched(found),
        "Clusters, and the first subset: above the line it has more than its share": chosen,
        "Cost of diversity: share of clusters touched": _costs(found, "share_touched", "share of clusters touched"),
        "Cost of diversity: evenness over clusters": _costs(found, "entropy", "evenness over clusters"),
    }
    for number, (title, picture) in enumerate(drawn.items()):
        if picture is not None:
            section.figure(f"diversity-{number}", title, picture)


def _draw_trial(section: Section, found: Finding) -> None:
    """Draw the held-out loss of every subset beside the losses of its random subsets."""
    losses: dict[str, list[float]] = {}
    for row in found.tables.get("arms", ()):
        losses.setdefault(str(row["subset"]), []).append(_number(row["heldout_loss"]))
    if losses:
        title = "Held-out loss of every subset and of its random subsets"
        drawn = {name: (mine, random) for name, (mine, *random) in losses.items()}
        section.figure("trial-losses", title, subset_losses(drawn), wide=True)


PICTURES: Mapping[str, Callable[[Section, Finding], None]] = {
    "fidelity": _draw_fidelity,
    "diversity": _draw_diversity,
    "trial": _draw_trial,
}
"""Functions that draw the special figures of a study, by the study's name."""

# ---------------------------------------------------------------- files of other commands


def against_section(found: AgainstTable) -> Section:
    """Return the part with the benchmarks that have items in the pool, and the strongest matches."""
    section = Section("benchmarks", "Benchmark items", "Are items of test sets in the pool?")
    section.text(found.conclusion, kind="conclusion")
    section.records(
        "Benchmarks",
        [
            {
                "benchmark": each.name,
                "items": each.num_items,
                "found": each.num_found,
                "samples that have one": each.num_samples,
                "with other numbers": each.num_templates,
                "compared": "texts" if each.signal is None else "texts and vectors",
            }
            for each in found.note.benchmarks
        ],
    )
    columns = {"kind": "kind", "strength": "strength", "sample": "sample_id", "where": "where"}
    columns |= {"the sample has": "passage", "item": "item_id", "the item says": "item_text"}
    rows = [{heading: row[name] for heading, name in columns.items()} for row in found.worst(WORST_SHOWN)]
    about = "The strongest match of each item. Strength: the share of its word n-grams in the sample, or a cosine."
    section.records("Side by side", rows, about)
    return section


def warmup_section(folder: Path) -> Section:
    """Return the part that draws the losses of the warm-up in a folder."""
    section = Section("warmup", "Warm-up", "Did the warm-up learn?")
    losses = {name: each for name, each in zip(("training", "held out"), read_losses(folder), strict=True) if each}
    lines = {name: ([step for step, _ in each], [loss for _, loss in each]) for name, each in losses.items()}
    section.figure(
        "warmup-loss",
        f"Losses of {one_line(folder.name)}",
        line_chart(lines, parts.axis("step"), parts.axis("loss per token")),
        "Training: the loss before each step. Held out: the loss of samples that are never trained on.",
        wide=True,
    )
    return section
