"""What is said of planted flaws follows from the numbers, whichever way they fall."""

from __future__ import annotations

import json

import pytest

from grace_store.base.finding import Estimate, Finding
from grace_store.scoring.score_table import read_scores
from grace_store.study.planted import planted_finding, ranked_records


def area(middle: float, reach: float = 0.05) -> Estimate:
    return Estimate(value=middle, low=middle - reach, high=middle + reach, num=400, p_value=0.001)


def counts(num_flagged: int, num_chosen: int, num_left: int, num_steps: int = 9) -> dict[str, int]:
    chosen = {"num_chosen": num_chosen, "num_chosen_unflagged": num_left}
    return {"num_traces": 4, "num_flagged": num_flagged, **chosen, "num_steps": num_steps}


KINDS = {
    "clean": counts(0, 2, 3, 0),
    "looping": counts(4, 3, 0),
    "filler": counts(0, 1, 2),
    "cut_off": counts(1, 0, 0, num_steps=4),
}
AREAS = {
    "seen_by": {"filler": {"loss": area(0.9), "entropy": area(0.8)}},
    "mistaken_by": {"looping": {"grace": area(0.1)}},
}


def findings(value: Estimate, *flaws: str, num_copies_found: int | None = 2) -> Finding:
    kinds = {name: KINDS[name] for name in ("clean", *flaws)}
    copies = {"num_copies": 3, "num_copies_found": num_copies_found, "num_other_groups": 1}
    return planted_finding(kinds, value=value, copies=copies, **AREAS)


def test_found_and_missed_are_told_apart() -> None:
    found = findings(area(0.5), "looping", "filler", "cut_off")
    flags, copies, values, signals, subsets = found.conclusion.splitlines()
    assert flags == (
        "Flags found 5 of 12 flawed traces, and 0 of 4 clean ones. All of looping. Some of cut_off (1 of 4). "
        "None of filler."
    )
    assert copies == "The search for duplicates found 2 of 3 copies, and 1 group of traces that nobody copied."
    assert values.startswith("GRACE's values do not tell flawed traces from clean ones here: a clean trace")
    assert signals == (
        "Steps that a stored signal sees: filler by loss 0.90 (0.85 to 0.95). Steps that no stored signal sees: "
        "looping. Steps that GRACE takes for good ones: looping. Too few flawed steps to say: cut_off."
    )
    assert subsets == (
        "Chosen by value, 4 of 6 traces are flawed; with --exclude-flagged, 2 of 5. Those left are of kinds that flags "
        "miss: filler."
    )
    steps = found.tables["steps"]
    assert [(row["kind"], row["how"], row["measure"]) for row in steps] == [
        ("looping", "taken for good by", "grace"),
        ("filler", "seen by", "loss"),
        ("filler", "seen by", "entropy"),
        ("cut_off", "too few steps", ""),
    ]
    assert sum(found.tables["kinds"].column("num_chosen")) == 6


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.7, "tell flawed traces from clean ones: "), (0.3, "put flawed traces above clean ones: ")],
)
def test_values_are_called_what_they_are(value: float, told: str) -> None:
    assert any(f"GRACE's values {told}" in each for each in findings(area(value), "filler").conclusion.splitlines())


def test_what_was_not_looked_for_or_not_seen_is_not_claimed() -> None:
    conclusion = findings(area(0.5), "cut_off", num_copies_found=None).conclusion
    assert "copies" not in conclusion
    assert "Too few flawed steps to say: cut_off." in conclusion
    assert "sees" not in conclusion


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
