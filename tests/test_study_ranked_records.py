"""Samples from best to worst beside fields of their records."""

from __future__ import annotations

import json

from grace_store.scoring.score_table import read_scores
from grace_store.study.planted import ranked_records


def test_records_come_best_first_with_their_fields(scored):
    table = read_scores(scored / "scores.parquet")
    lines = (scored / "traces.jsonl").read_text().splitlines()
    records = {row: json.loads(lines[row]) for row in table.row.tolist()}
    found = ranked_records(scored / "scores.parquet", {"name": "id", "nothing": "no.such.field"})
    assert [each["value"] for each in found] == sorted(table.value.tolist(), reverse=True)
    assert {each["sample_id"]: each["name"] for each in found} == {
        sample: records[row].get("id") for sample, row in zip(table.sample_id, table.row.tolist(), strict=True)
    }
    assert all(each["nothing"] is None for each in found)
