"""The length audit of a scores table."""

from pathlib import Path

from grace_store.artifacts.score_table import ScoreTable, read_scores
from grace_store.values.length_bias import LengthAudit, audit_lengths
from grace_store.values.ranking import Ratio, budget


def audit(scores: ScoreTable | str | Path, *, ratio: Ratio = "0.2") -> LengthAudit:
    """Return how far values follow the length of steps, of the response, and the number of steps."""
    table = scores if isinstance(scores, ScoreTable) else read_scores(scores)
    budget(ratio, 0)  # says so if it is no ratio
    steps = None
    if table.has_step_scores:
        steps = (table.flat("step_score"), table.flat("step_num_tokens"), table.num_steps)
    return audit_lengths(table.value, table.lengths, steps, float(ratio))
