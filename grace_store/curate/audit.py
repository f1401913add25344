"""The length audit of a scores table."""

from collections.abc import Sequence
from pathlib import Path

from grace_store.artifacts.filtered_scores import filter_scores
from grace_store.artifacts.score_table import ScoreTable, read_scores
from grace_store.values.length_bias import LengthAudit, audit_lengths
from grace_store.values.ranking import Ratio, budget


def audit(
    scores: ScoreTable | str | Path,
    *,
    ratio: Ratio = "0.2",
    where: str | None = None,
    store: str | None = None,
    data: Sequence[str] | None = None,
) -> LengthAudit:
    """Return how far values follow the length of steps, of the response, and the number of steps.

    where is a condition in SQL that samples have to meet, as in RankRequest; store and data say where these are now.
    """
    table = scores if isinstance(scores, ScoreTable) else read_scores(scores)
    table, _ = filter_scores(table, where, store, data)
    budget(ratio, 0)  # says so if it is no ratio
    steps = None
    if table.has_step_scores:
        steps = (table.flat("step_score"), table.flat("step_num_tokens"), table.num_steps)
    return audit_lengths(table.value, table.lengths, steps, float(ratio))
