"""What the demo shows: which planted flaws were found, by what, and the samples from best to worst."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.base.documents import read_document
from grace_store.base.finding import Cell, Column, Estimate, Finding, Table
from grace_store.base.states import HYGIENE_FLAGS
from grace_store.base.text import counted
from grace_store.choose.duplicate_table import read_duplicates
from grace_store.choose.select import read_subset
from grace_store.pool.records import SampleRecords, read_field
from grace_store.scoring.provenance import noted_pool, open_store_of
from grace_store.scoring.score_table import ScoreTable, read_scores
from grace_store.study.judge import FEWEST_LABELS, NUM_WRONG
from grace_store.study.judge_conclusion import FEWEST_PAIRS, GRACE, SURE
from grace_store.values.roc import CHANCE

CLEAN = "clean"
"""What the field that names flaws says of a trace without one."""
COUNTS = {
    "num_traces": "traces",
    "num_flagged": "flagged",
    "num_chosen": "in the subset",
    "num_chosen_unflagged": "without flagged ones",
}
"""What is counted of each kind of trace, with headings."""
SEES, MISTAKES = "seen by", "taken for good by"
Areas = Mapping[str, Mapping[str, Estimate]]
"""For each kind of flaw, measures of signals with the share of pairs in which a right step scores better."""


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
    """Compare what commands found with what was planted. unflagged is a subset chosen with --exclude-flagged.

    kind is the field of the records that names the flaw, copy_of the one with the id of the sample that a copy repeats.
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
    kinds: Mapping[str, Mapping[str, int]],
    *,
    seen_by: Areas,
    mistaken_by: Areas,
    value: Estimate,
    copies: Mapping[str, int | None],
) -> Finding:
    """Return what the numbers mean. kinds counts the traces of each kind and its flawed steps, the clean ones first.

    seen_by and mistaken_by are the measures that surely score flawed steps below right ones, and above, the largest
    area first. value is how well GRACE's value tells flawed traces from clean ones.
    """
    flaws = {name: each for name, each in kinds.items() if name != CLEAN}
    told = [_of_flags(kinds, flaws), *_of_copies(copies), _of_values(value), _of_signals(flaws, seen_by, mistaken_by)]
    return Finding(
        study="planted",
        conclusion="\n".join([*told, _of_subsets(kinds, flaws)]),
        numbers={**copies, "value": value},
        tables={"kinds": _kinds_table(kinds), "steps": _steps_table(flaws, seen_by, mistaken_by)},
    )


def _kinds_table(kinds: Mapping[str, Mapping[str, int]]) -> Table:
    headings = {"kind": "kind", **COUNTS}
    return Table(
        title="Traces of each kind",
        columns={name: Column(heading=heading) for name, heading in headings.items()},
        rows=tuple({"kind": name, **each} for name, each in kinds.items()),
    )


def _steps_table(flaws: Mapping[str, Mapping[str, int]], seen_by: Areas, mistaken_by: Areas) -> Table:
    rows: list[dict[str, Cell]] = []
    for name, each in flaws.items():
        same: dict[str, Cell] = {"kind": name, "num_steps": each["num_steps"]}
        areas = {SEES: seen_by.get(name, {}), MISTAKES: mistaken_by.get(name, {})}
        found = [(how, measure, area) for how, some in areas.items() for measure, area in some.items()]
        rows += [same | {"how": how, "measure": measure, "area": area} for how, measure, area in found]
        if not found:
            rows.append(same | {"how": "seen by none" if _has_enough(each) else "too few steps", "measure": ""})
    return Table(
        title="What signals see of flawed steps",
        columns={
            "kind": Column(heading="kind"),
            "num_steps": Column(heading="steps"),
            "how": Column(heading="are"),
            "measure": Column(heading="measure"),
            "area": Column(heading="area, 95 %", digits=2, chance=CHANCE),
        },
        rows=tuple(rows),
        about="area: share of pairs in which a right step scores better; 0.50 is chance.",
    )


# ---------------------------------------------------------------- what the judgement says


def _num_steps(judged: Finding, kind: str) -> int:
    """Return how many steps have a flaw; it may be in the answer instead."""
    number = judged.tables["steps_by_kind"].row(measure=NUM_WRONG).get(kind, 0)
    assert isinstance(number, int)
    return number


def _has_enough(counts: Mapping[str, int]) -> bool:
    return counts["num_steps"] >= FEWEST_LABELS


def _sure_areas(judged: Finding, kind: str, *, is_seen: bool) -> dict[str, Estimate]:
    """Return the measures that surely see the steps of a flaw, or surely take them for good, the surest first."""
    areas = {name: area for name, area in _areas(judged, kind) if area.num >= FEWEST_PAIRS}
    if _num_steps(judged, kind) < FEWEST_LABELS:
        return {}
    sure = {name: area for name, area in areas.items() if (area.low > CHANCE if is_seen else area.high < CHANCE)}
    # The best of several is looked for: each has to be that much surer.
    found = {name: area for name, area in sure.items() if (area.p_value or 0) * len(areas) <= SURE}
    return dict(sorted(found.items(), key=lambda item: -abs(item[1].value - CHANCE)))


def _areas(judged: Finding, kind: str) -> Iterator[tuple[str, Estimate]]:
    """Yield what each measure of a signal sees; without the signal's name where there is only one."""
    assert judged.pool is not None
    key = "of" if len(judged.pool.signals) == 1 else "measure"
    names = {row["measure"]: str(row[key]) for row in judged.tables["steps"] if row.get("signal")}
    for row in judged.tables["steps_by_kind"]:
        if row["measure"] in names and isinstance(cell := row.get(kind), Estimate):
            yield names[row["measure"]], cell


def _copies_found(path: Path | None, copies: Mapping[str, str]) -> dict[str, int | None]:
    """Return how many copies are in one group with what they repeat, and how many groups have no copy."""
    if path is None:
        return {"num_copies_found": None, "num_other_groups": 0}
    table = read_duplicates(path)
    group = dict(zip(table.sample_id, table.group.tolist(), strict=True))
    found = {copy: group[copy] for copy, first in copies.items() if group[copy] >= 0 and group[copy] == group[first]}
    return {"num_copies_found": len(found), "num_other_groups": table.num_groups - len(set(found.values()))}


# ---------------------------------------------------------------- in words


def _of_flags(kinds: Mapping[str, Mapping[str, int]], flaws: Mapping[str, Mapping[str, int]]) -> str:
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


def _sum(kinds: Mapping[str, Mapping[str, int]], name: str) -> int:
    return sum(each[name] for each in kinds.values())


def _of_copies(copies: Mapping[str, int | None]) -> list[str]:
    if copies["num_copies_found"] is None:
        return []
    others = counted(copies["num_other_groups"] or 0, "group")
    told = f"The search for duplicates found {copies['num_copies_found']} of {copies['num_copies']} copies"
    return [f"{told}, and {others} of traces that nobody copied."]


def _of_values(value: Estimate) -> str:
    shown = f"a clean trace has the higher value than a flawed one in {value.text(2)} of all pairs; 0.50 is chance"
    if value.low > CHANCE:
        return f"GRACE's values tell flawed traces from clean ones: {shown}."
    if value.high < CHANCE:
        return f"GRACE's values put flawed traces above clean ones: {shown}. Do not choose by them alone here."
    return f"GRACE's values do not tell flawed traces from clean ones here: {shown}."


def _of_signals(flaws: Mapping[str, Mapping[str, int]], seen_by: Areas, mistaken_by: Areas) -> str:
    firsts = [(kind, *next(iter(seen_by[kind].items()))) for kind in flaws if seen_by.get(kind)]
    enough = [kind for kind, each in flaws.items() if _has_enough(each)]
    parts = {
        "Steps that a stored signal sees": [f"{kind} by {name} {area.text(2)}" for kind, name, area in firsts],
        "Steps that no stored signal sees": [kind for kind in enough if not seen_by.get(kind)],
        "Steps that GRACE takes for good ones": [kind for kind in flaws if GRACE in mistaken_by.get(kind, {})],
        "Too few flawed steps to say": [kind for kind in flaws if kind not in enough],
    }
    return " ".join(f"{what}: {', '.join(named)}." for what, named in parts.items() if named)


def _of_subsets(kinds: Mapping[str, Mapping[str, int]], flaws: Mapping[str, Mapping[str, int]]) -> str:
    before, after = (f"{_sum(flaws, name)} of {_sum(kinds, name)}" for name in ("num_chosen", "num_chosen_unflagged"))
    left = [name for name, each in flaws.items() if each["num_chosen_unflagged"]]
    rest = f" Those left are of kinds that flags miss: {', '.join(left)}." if left else ""
    return f"Chosen by value, {before} traces are flawed; with --exclude-flagged, {after}.{rest}"


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
