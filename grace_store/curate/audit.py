"""The length audit of a scores table, and which groups of its samples have the highest values."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from grace_store.artifacts.made_from import filter_scores, groups_of, noted_pool
from grace_store.artifacts.score_table import ScoreTable, read_scores
from grace_store.base.finding import Cell, Column, Finding, Table
from grace_store.base.text import counted
from grace_store.curate.conclusions import conclude_audit
from grace_store.curate.group_counts import group_sizes, rise_and_fall
from grace_store.values.length_bias import (
    MIN_AUDITED,
    explained_by_lengths,
    length_measures,
    residuals,
    step_measures,
)
from grace_store.values.ranking import Length, Ratio, budget, rank

GROUPS_SHOWN = 20
GROUPS_KEPT = 1000
"""Groups in the finding; a field may have a value of its own for each sample."""


def audit(
    scores: ScoreTable | str | Path,
    *,
    ratio: Ratio = "0.2",
    by: str | None = None,
    where: str | None = None,
    store: str | None = None,
    data: Sequence[str] | None = None,
) -> Finding:
    """Return how far values follow the length of steps, of the response, and the number of steps.

    by is a field of the records, num_steps, or several that commas join: their groups are compared by how many of the
    best samples they have. where is a condition in SQL that samples have to meet, as in Selection; store and data say
    where these are now.
    """
    table = scores if isinstance(scores, ScoreTable) else read_scores(scores)
    table, kept = filter_scores(table, where, store, data)
    table = table.by_row()  # ties go to the earlier record
    budget(ratio, 0)  # raises SettingError for what is no ratio
    explained, _ = explained_by_lengths(table.value, table.lengths)
    measures = length_measures(table.value, table.lengths, float(ratio))
    is_enough = explained.num >= MIN_AUDITED
    tables = {"lengths": _lengths_table(measures, str(ratio), is_shown=is_enough)}
    if table.has_step_scores:
        steps = step_measures(table.flat("step_score"), table.flat("step_num_tokens"), table.num_steps)
        tables["steps"] = _steps_table(steps, is_shown=is_enough)
    told = [conclude_audit(explained, measures, str(ratio))]
    if by is not None:
        counts = _group_counts(table, groups_of(table, by, store, data), ratio)
        tables["groups"] = _groups_table(counts, by, str(ratio))
        told.append(rise_and_fall(by, {name: (best, num) for name, (num, best, _) in counts.items()}))
    return Finding(
        study="audit",
        pool=noted_pool(table.note, kept),
        settings={"ratio": str(ratio)} | ({} if by is None else {"by": by}),
        conclusion=" ".join(told),
        numbers={"num_samples": explained.num, "enough_samples": is_enough, "variance_explained": explained},
        tables=tables,
    )


def _lengths_table(measures: Mapping[Length, Mapping[str, float]], ratio: str, *, is_shown: bool) -> Table:
    columns = {
        "length": "value and",
        "pearson": "Pearson (log)",
        "spearman": "Spearman",
        "partial": "partial",
        "spearman_after_control": "controlled",
        "kept_over_all": f"kept {ratio} / all",
        "kept_over_all_after_control": "controlled",
    }
    return Table(
        title="Value and length",
        columns={name: Column(heading=heading, digits=2 if "kept" in name else 3) for name, heading in columns.items()},
        rows=tuple({"length": name, **each} for name, each in measures.items()),
        about="partial: with the other lengths held fixed. controlled: after `select --control length`. "
        f"kept: mean length of the best {ratio} over that of all.",
        is_shown=is_shown,
    )


def _steps_table(steps: Mapping[str, float], *, is_shown: bool) -> Table:
    columns = {
        "num_steps": "steps",
        "pooled": "Pearson (log)",
        "spearman": "Spearman",
        "within_sample": "Pearson within one trace",
    }
    return Table(
        title="Step score and step length",
        columns={name: Column(heading=heading) for name, heading in columns.items()},
        rows=(dict(steps),),
        is_shown=is_shown,
    )


def _group_counts(table: ScoreTable, groups: Sequence[object], ratio: Ratio) -> dict[str, tuple[int, int, int]]:
    """Return how many samples of each group have a value, are among the best, and are after control; largest first."""
    controlled = residuals(table.value, table.lengths, list(table.lengths))
    by_value, by_rest = (rank(value, table.row) for value in (table.value, controlled))
    num_best = budget(ratio, len(by_value))
    rows = (by_value, by_value[:num_best], by_rest[:num_best])
    pool, best, after = (group_sizes(groups, each) for each in rows)
    return {name: (size, best[name], after[name]) for name, size in pool.most_common()}


def _groups_table(counts: Mapping[str, tuple[int, int, int]], by: str, ratio: str) -> Table:
    rows: list[dict[str, Cell]] = [
        {"group": name, "num_samples": num, "best": best, "share": best / num, "best_after_control": after}
        for name, (num, best, after) in counts.items()
    ]
    more = len(rows) - GROUPS_SHOWN
    return Table(
        title=f"Groups of {by}",
        columns={
            "group": Column(heading=by),
            "num_samples": Column(heading="samples"),
            "best": Column(heading=f"best {ratio}"),
            "share": Column(heading="share", is_share=True),
            "best_after_control": Column(heading="controlled"),
        },
        rows=tuple(rows[:GROUPS_KEPT]),
        about=f"{counted(more, 'smaller group')} more." if more > 0 else "",
        num_shown=GROUPS_SHOWN,
    )
