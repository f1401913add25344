"""The samples of a table of scores from best to worst, with fields of their records beside the values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grace_store.pool.records import read_field
from grace_store.scoring.provenance import open_store_of
from grace_store.scoring.score_table import ScoreTable, read_scores


def ranked_records(scores: ScoreTable | str | Path, fields: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return every sample with a value, the best first: its id, its value, and fields of its record by names given."""
    table = scores if isinstance(scores, ScoreTable) else read_scores(scores, steps=False)
    store = open_store_of(table, None)
    positions = store.positions_of(table.row)
    columns = {name: read_field(store, field, positions=positions) for name, field in fields.items()}
    ids, value = table.sample_id, table.value
    return [
        {"sample_id": ids[i], "value": float(value[i])} | {name: column[i] for name, column in columns.items()}
        for i in table.ranked(value).tolist()
    ]
