"""What is said of planted flaws follows from the numbers, whichever way they fall."""

from __future__ import annotations

import pytest

from grace_store.curate.planted import PlantedFindings, PlantedKind
from grace_store.values.roc import Area


def area(middle: float, reach: float = 0.05) -> Area:
    return Area(middle, middle - reach, middle + reach, 0.001, 40, 10, 400)


def kind(name: str, num_flagged: int, num_chosen: int, num_left: int, **seen: dict[str, Area]) -> PlantedKind:
    counts = {
        "num_traces": 4,
        "num_steps": 9 if seen else 4,
        "num_flagged": num_flagged,
        "num_chosen": num_chosen,
        "num_chosen_unflagged": num_left,
    }
    return PlantedKind(kind=name, is_flaw=name != "clean", **counts, **({"seen_by": {}, "mistaken_by": {}} | seen))


def findings(value: Area, *flaws: PlantedKind, num_copies_found: int | None = 2) -> PlantedFindings:
    kinds = (kind("clean", 0, 2, 3), *flaws)
    copies = {"num_copies": 3, "num_copies_found": num_copies_found, "num_other_groups": 1}
    return PlantedFindings(kinds=kinds, value=value, **copies)


LOOPING = kind("looping", 4, 3, 0, mistaken_by={"grace": area(0.1)})
FILLER = kind("filler", 0, 1, 2, seen_by={"loss": area(0.9), "entropy": area(0.8)})
CUT_OFF = kind("cut_off", 1, 0, 0)


def test_found_and_missed_are_told_apart() -> None:
    flags, copies, values, signals, subsets = findings(area(0.5), LOOPING, FILLER, CUT_OFF).sentences()
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


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.7, "tell flawed traces from clean ones: "), (0.3, "put flawed traces above clean ones: ")],
)
def test_values_are_called_what_they_are(value: float, told: str) -> None:
    assert any(f"GRACE's values {told}" in each for each in findings(area(value), FILLER).sentences())


def test_what_was_not_looked_for_or_not_seen_is_not_claimed() -> None:
    conclusion = findings(area(0.5), CUT_OFF, num_copies_found=None).conclusion
    assert "copies" not in conclusion
    assert "Too few flawed steps to say: cut_off." in conclusion
    assert "sees" not in conclusion
