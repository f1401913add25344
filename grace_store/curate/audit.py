"""The length audit of a scores table, and which groups of its samples have the highest values."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from grace_store.artifacts.filtered_scores import filter_scores, groups_of
from grace_store.artifacts.score_table import ScoreTable, read_scores
from grace_store.curate.conclusions import conclude_audit
from grace_store.curate.group_counts import group_sizes, rise_and_fall
from grace_store.values.length_bias import LengthAudit, audit_lengths, residuals
from grace_store.values.ranking import Ratio, budget, rank


@dataclass(frozen=True, slots=True)
class GroupAudit:
    """How many samples of a group are among those with the highest values."""

    group: str
    num_samples: int
    """Those with a value."""
    best: int
    best_after_control: int
    """The same by what is left of values when all three lengths are taken out."""


@dataclass(frozen=True, slots=True)
class Audit(LengthAudit):
    """How values follow length and go with groups, and what that means."""

    groups: tuple[GroupAudit, ...] = ()
    """The largest first."""
    conclusion: str = ""
    """In a sentence or two."""


def audit(
    scores: ScoreTable | str | Path,
    *,
    ratio: Ratio = "0.2",
    by: str | None = None,
    where: str | None = None,
    store: str | None = None,
    data: Sequence[str] | None = None,
) -> Audit:
    """Return how far values follow the length of steps, of the response, and the number of steps.

    by is a field of the records, num_steps, or several that commas join: their groups are compared by how many of the
    best samples they have. where is a condition in SQL that samples have to meet, as in RankRequest; store and data say
    where these are now.
    """
    table = scores if isinstance(scores, ScoreTable) else read_scores(scores)
    table, _ = filter_scores(table, where, store, data)
    table = table.by_row()  # ties go to the earlier record
    budget(ratio, 0)  # says so if it is no ratio
    steps = None
    if table.has_step_scores:
        steps = (table.flat("step_score"), table.flat("step_num_tokens"), table.num_steps)
    found = audit_lengths(table.value, table.lengths, steps, float(ratio))
    told = [conclude_audit(found, str(ratio))]
    groups: tuple[GroupAudit, ...] = ()
    if by is not None:
        groups = _audit_groups(table, groups_of(table, by, store, data), ratio)
        told.append(rise_and_fall(by, {each.group: (each.best, each.num_samples) for each in groups}))
    measured = {field.name: getattr(found, field.name) for field in fields(LengthAudit)}
    return Audit(**measured, groups=groups, conclusion=" ".join(told))


def _audit_groups(table: ScoreTable, groups: Sequence[object], ratio: Ratio) -> tuple[GroupAudit, ...]:
    controlled = residuals(table.value, table.lengths, list(table.lengths))
    by_value, by_rest = (rank(value, table.row) for value in (table.value, controlled))
    num_best = budget(ratio, len(by_value))
    rows = (by_value, by_value[:num_best], by_rest[:num_best])
    pool, best, after = (group_sizes(groups, each) for each in rows)
    return tuple(GroupAudit(name, size, best[name], after[name]) for name, size in pool.most_common())
