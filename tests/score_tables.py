"""Tables of scores in memory, made of nothing but values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from grace_store.scoring.notes import ScoredSignal, ScoresNote
from grace_store.scoring.score_table import ScoreTable, scores_schema
from grace_store.values.methods.method import ScoreSpec

NOTE = ScoresNote(
    spec=ScoreSpec(),
    store="s.zarr",
    plan_sha256="0",
    num_units=1,
    signals={"base": ScoredSignal(sha256="1", num_units=1, weight=1.0)},
    partial=False,
)


def table_of(values, num_steps=None, num_tokens=None, question=None) -> ScoreTable:
    """Return a table of samples with these values and nothing else of interest."""
    num = len(values)
    steps = np.array(num_steps if num_steps is not None else [1] * num)
    tokens = np.array(num_tokens if num_tokens is not None else [10] * num)
    columns = {
        "sample_id": [f"s{i}" for i in range(num)],
        "row": list(range(num)),
        "num_steps": steps,
        "num_tokens": tokens + 1,
        "value": pa.array(values, pa.float64(), from_pandas=True),
        **{name: [[0.0] * int(k) for k in steps] for name in ("step_score", "answer_alignment", "history_alignment")},
        "step_num_tokens": [[int(t) // int(k)] * int(k) for k, t in zip(steps, tokens, strict=True)],
        "flags": [[]] * num,
        "question": list(range(num)) if question is None else question,
    }
    return ScoreTable(pa.table(columns, schema=scores_schema(NOTE).remove_metadata()), NOTE)
