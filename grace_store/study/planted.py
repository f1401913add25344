"""The demo's finding: which planted flaws were found by flags, signals and the subset. Also ranks its records."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.base.documents import read_document
from grace_store.base.finding import Cell, Column, Estimate, Finding, Table, make_columns
from grace_store.base.states import HYGIENE_FLAGS
from grace_store.base.text import counted
from grace_store.choose.duplicate_table import read_duplicates
from grace_store.choose.select import read_subset
from grace_store.pool.records import SampleRecords
from grace_store.scoring.provenance import noted_pool, open_store_of
from grace_store.scoring.score_table import ScoreTable, read_scores
from grace_store.study.judge import FEWEST_LABELS, NUM_WRONG
from grace_store.study.judge_conclusion import FEWEST_PAIRS, GRACE, SURE
from grace_store.values.roc import CHANCE

CLEAN = "clean"
"""The value of the field of flaws for a trace without a flaw."""
COUNTS = make_columns(
    num_traces="traces",
    num_flagged="flagged",
    num_chosen="in the subset",
    num_chosen_unflagged="without flagged ones",
)
"""Columns with the counts of each kind of trace."""
Areas = Mapping[str, Mapping[str, Estimate]]
"""For each kind of flaw, the areas of measures: the share of pairs in which a right step scores better."""
Kinds = Mapping[str, Mapping[str, int]]
"""Counts of traces and flawed steps by kind of trace."""


def find_planted(
    scores: Path,
    judgement: Path,
    subset: Path,
    unflagged: Path,
    duplicates: Path | None = None,
    *,
    kind: str = "quality",
    copy_of: str = "copy_of",
) -> Finding:
    """Compare the results of commands with the planted flaws. unflagged is a subset chosen with --exclude-flagged.

    kind is the field of the records that names the flaw; copy_of is the field with the id of the original of a copy.
    """
    table = read_scores(scores, steps=False)
    store = open_store_of(table, None)
    fields = SampleRecords(store, positions=store.positions_of(table.row)).fields([kind, copy_of])
    kinds = [str(each) for each in fields[kind]]
    flagged = np.flatnonzero(table.is_flagged(HYGIENE_FLAGS))
    chosen = [read_subset(path).chosen for path in (subset, unflagged)]
    counts = [Counter(kinds[place] for place in places) for places in (range(len(kinds)), flagged, *chosen)]
    names = sorted(counts[0], key=lambda name: (name != CLEAN, -counts[1][name] / counts[0][name], name))
    judged = read_document(judgement, Finding)
    originals = dict(zip(table.sample_id, fields[copy_of], strict=True))
    copies = {sample: str(first) for sample, first in originals.items() if first is not None}
    by_kind = {name: dict(zip(COUNTS, (each[name] for each in counts), strict=True)) for name in names}
    for name, each in by_kind.items():
        each["num_steps"] = _num_steps(judged, name)
    value = judged.tables["traces"].row(of=GRACE)["all_pairs"]
    assert isinstance(value, Estimate)
    found = planted_finding(
        by_kind,
        seen_by={name: _sure_areas(judged, name, is_seen=True) for name in names},
        mistaken_by={name: _sure_areas(judged, name, is_seen=False) for name in names},
        value=value,
        copies={"num_copies": len(copies), **_copies_found(duplicates, copies)},
    )
    return found.model_copy(update={"pool": noted_pool(table.note)})


def planted_finding(
    kinds: Kinds,
    *,
    seen_by: Areas,
    mistaken_by: Areas,
    value: Estimate,
    copies: Mapping[str, int | None],
) -> Finding:
    """Return the finding of the demo from counts and areas; clean traces are the first of kinds.

    seen_by has the measures that score flawed steps below right ones with confidence, mistaken_by those that score
    them above, the largest area first. value is the area of GRACE's value for flawed against clean traces.
    """
    flaws = {name: each for name, each in kinds.items() if name != CLEAN}
    told = [_of_flags(kinds, flaws)]
    if copies["num_copies_found"] is not None:
        found = f"The search for duplicates found {copies['num_copies_found']} of {copies['num_copies']} copies"
        told.append(f"{found}, and {counted(copies['num_other_groups'] or 0, 'group')} of traces that nobody copied.")
    told += [_of_values(value), _of_signals(flaws, seen_by, mistaken_by), _of_subsets(kinds, flaws)]
    kinds_table = Table(
        title="Traces of each kind",
        columns=make_columns(kind="kind", **COUNTS),
        rows=tuple({"kind": name, **each} for name, each in kinds.items()),
    )
    return Finding(
        study="planted",
        conclusion="\n".join(told),
        numbers={**copies, "value": value},
        tables={"kinds": kinds_table, "steps": _steps_table(flaws, seen_by, mistaken_by)},
    )


def _steps_table(flaws: Kinds, seen_by: Areas, mistaken_by: Areas) -> Table:
    rows: list[dict[str, Cell]] = []
    for name, each in flaws.items():
        same: dict[str, Cell] = {"kind": name, "num_steps": each["num_steps"]}
        areas = {"seen by": seen_by.get(name, {}), "taken for good by": mistaken_by.get(name, {})}
        found = [(how, measure, area) for how, some in areas.items() for measure, area in some.items()]
        rows += [same | {"how": how, "measure": measure, "area": area} for how, measure, area in found]
        if not found:
            rows.append(same | {"how": "seen by none" if _has_enough(each) else "too few steps", "measure": ""})
    return Table(
        title="What signals see of flawed steps",
        columns=make_columns(kind="kind", num_steps="steps", how="are", measure="measure")
        | {"area": Column(heading="area, 95 %", digits=2, chance=CHANCE)},
        rows=tuple(rows),
        about="area: share of pairs in which a right step scores better; 0.50 is chance.",
    )


# ---------------------------------------------------------------- numbers from the judgement


def _num_steps(judged: Finding, kind: str) -> int:
    """Return the number of steps with a flaw; the flaw may be in the answer instead."""
    number = judged.tables["steps_by_kind"].row(measure=NUM_WRONG).get(kind, 0)
    assert isinstance(number, int)
    return number


def _has_enough(counts: Mapping[str, int]) -> bool:
    return counts["num_steps"] >= FEWEST_LABELS


def _sure_areas(judged: Finding, kind: str, *, is_seen: bool) -> dict[str, Estimate]:
    """Return the measures that rate flawed steps low (or high, unless is_seen) with confidence, the surest first.

    The names of measures lack the name of the signal if there is only one.
    """
    if _num_steps(judged, kind) < FEWEST_LABELS:
        return {}
    assert judged.pool is not None
    key = "of" if len(judged.pool.signals) == 1 else "measure"
    names = {row["measure"]: str(row[key]) for row in judged.tables["steps"] if row.get("signal")}
    areas = {
        names[row["measure"]]: area
        for row in judged.tables["steps_by_kind"]
        if row["measure"] in names and isinstance(area := row.get(kind), Estimate) and area.num >= FEWEST_PAIRS
    }
    sure = {name: area for name, area in areas.items() if (area.low > CHANCE if is_seen else area.high < CHANCE)}
    # Corrected for the number of measures.
    found = {name: area for name, area in sure.items() if (area.p_value or 0) * len(areas) <= SURE}
    return dict(sorted(found.items(), key=lambda item: -abs(item[1].value - CHANCE)))


def _copies_found(path: Path | None, copies: Mapping[str, str]) -> dict[str, int | None]:
    """Return the number of copies in one group with their originals, and the number of groups without a copy."""
    if path is None:
        return {"num_copies_found": None, "num_other_groups": 0}
    table = read_duplicates(path)
    group = dict(zip(table.sample_id, table.group.tolist(), strict=True))
    found = {copy: group[copy] for copy, first in copies.items() if group[copy] >= 0 and group[copy] == group[first]}
    return {"num_copies_found": len(found), "num_other_groups": table.num_groups - len(set(found.values()))}


# ---------------------------------------------------------------- in words


def _of_flags(kinds: Kinds, flaws: Kinds) -> str:
    clean = {name: each for name, each in kinds.items() if name not in flaws}
    flagged = {name: (each["num_flagged"], each["num_traces"]) for name, each in flaws.items()}
    parts = {
        "All of": [name for name, (num, of) in flagged.items() if num == of],
        "Some of": [f"{name} ({num} of {of})" for name, (num, of) in flagged.items() if 0 < num < of],
        "None of": [name for name, (num, _) in flagged.items() if not num],
    }
    listed = " ".join(f"{which} {', '.join(names)}." for which, names in parts.items() if names)
    return (
        f"Flags found {_sum(flaws, 'num_flagged')} of {_sum(flaws, 'num_traces')} flawed traces, and "
        f"{_sum(clean, 'num_flagged')} of {_sum(clean, 'num_traces')} clean ones. {listed}"
    )


def _sum(kinds: Kinds, name: str) -> int:
    return sum(each[name] for each in kinds.values())


def _of_values(value: Estimate) -> str:
    shown = f"a clean trace has the higher value than a flawed one in {value.text(2)} of all pairs; 0.50 is chance"
    if value.low > CHANCE:
        return f"GRACE's values tell flawed traces from clean ones: {shown}."
    if value.high < CHANCE:
        return f"GRACE's values put flawed traces above clean ones: {shown}. Do not choose by them alone here."
    return f"GRACE's values do not tell flawed traces from clean ones here: {shown}."


def _of_signals(flaws: Kinds, seen_by: Areas, mistaken_by: Areas) -> str:
    firsts = [(kind, *next(iter(seen_by[kind].items()))) for kind in flaws if seen_by.get(kind)]
    enough = [kind for kind, each in flaws.items() if _has_enough(each)]
    parts = {
        "Steps that a stored signal sees": [f"{kind} by {name} {area.text(2)}" for kind, name, area in firsts],
        "Steps that no stored signal sees": [kind for kind in enough if not seen_by.get(kind)],
        "Steps that GRACE takes for good ones": [kind for kind in flaws if GRACE in mistaken_by.get(kind, {})],
        "Too few flawed steps to say": [kind for kind in flaws if kind not in enough],
    }
    return " ".join(f"{what}: {', '.join(named)}." for what, named in parts.items() if named)


def _of_subsets(kinds: Kinds, flaws: Kinds) -> str:
    before, after = (f"{_sum(flaws, name)} of {_sum(kinds, name)}" for name in ("num_chosen", "num_chosen_unflagged"))
    left = [name for name, each in flaws.items() if each["num_chosen_unflagged"]]
    rest = f" Those left are of kinds that flags miss: {', '.join(left)}." if left else ""
    return f"Chosen by value, {before} traces are flawed; with --exclude-flagged, {after}.{rest}"


def ranked_records(scores: ScoreTable | str | Path, fields: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a row for every sample with a value, the best first: id, value, and fields of its record by name."""
    table = scores if isinstance(scores, ScoreTable) else read_scores(scores, steps=False)
    store = open_store_of(table, None)
    positions = store.positions_of(table.row)
    found = SampleRecords(store, positions=positions).fields(list(fields.values()))
    columns = {name: found[field] for name, field in fields.items()}
    ids, value = table.sample_id, table.value
    return [
        {"sample_id": ids[i], "value": float(value[i])} | {name: column[i] for name, column in columns.items()}
        for i in table.ranked(value).tolist()
    ]
