"""The page's comparisons: of score tables with each other, and of the values of groups of traces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.base.finding import Estimate
from grace_store.base.text import duration, one_line, size
from grace_store.choose.choice_conclusion import group_name
from grace_store.choose.select import select
from grace_store.pages.figures import BOXES, intervals, matrix_map, value_boxes
from grace_store.pages.sections import Cell, Section
from grace_store.run.status import SignalStatus, Status
from grace_store.scoring.notes import ScoresNote, check_plan_of
from grace_store.scoring.provenance import filter_scores
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.backend import run_logs
from grace_store.store.opened import Store
from grace_store.values.agreement import jaccard
from grace_store.values.intervals import ratio_over_questions, sums_by_question
from grace_store.values.length_bias import mean_ranks, rank_correlation

if TYPE_CHECKING:
    from grace_store.pages.report_inputs import ReportRequest

MAX_CORRELATED = 1 << 17
MAX_FIELD_GROUPS = 24
NUM_NUMBER_GROUPS = 5
"""Number of groups for a field with many different numbers."""

# ---------------------------------------------------------------- score tables


def name_tables(tables: Sequence[ScoreTable]) -> dict[str, ScoreTable]:
    """Return tables by names that are made from their files and methods."""
    named: dict[str, ScoreTable] = {}
    for table in tables:
        method = table.method
        name = f"{table.path.stem} ({method})" if table.path and method not in table.path.stem else method
        named[name if name not in named else f"{name}, table {len(named) + 1}"] = table
    return named


def methods_section(store: Store, tables: Mapping[str, ScoreTable], status: Status, ratio: str) -> Section:
    """Return the part of the page that compares score tables. For a single table, it shows only the cost."""
    section = Section("methods", "Methods", "The choice and the cost of each method.")
    for table in tables.values():
        check_plan_of(table.note, store)
    chosen = [
        set(select(table, ratio=ratio).row.tolist()) if np.isfinite(table.value).any() else set()
        for table in tables.values()
    ]
    settings = [table.note.spec.model_dump(mode="json").items() for table in tables.values()]
    rows: list[dict[str, Cell]] = [
        {
            "table": name,
            "settings": ", ".join(f"{key} {value}" for key, value in spec if value not in (None, False, [], "")),
            "signals": ", ".join(table.note.signals),
            "with a value": int(np.isfinite(table.value).sum()),
            f"best {ratio}": len(mine),
            **cost_of(table.note, store, status.signals),
        }
        for (name, table), mine, spec in zip(tables.items(), chosen, settings, strict=True)
    ]
    section.records(
        "Cost of each method",
        rows,
        "A proxy signal or a loss needs one forward pass for each sample. A gradient signal needs one backward pass "
        "for each vector. Random choice and lengths need no model. Warm-up and target set are not counted. Stored: "
        "all bytes of the signals that the method reads. Run time: the sum over workers in the store's run logs, with "
        "the time to load the model.",
    )
    if len(tables) < 2:
        section.text("Give --scores several times to compare methods.")
        return section
    names = list(tables)
    overlap = np.array([[jaccard(len(a & b), len(a), len(b)) for b in chosen] for a in chosen])
    caption = "Number of samples that both methods choose, divided by the number that at least one chooses."
    picture = matrix_map(overlap, names, "Jaccard")
    section.matrix("method-overlap", f"Overlap of the best {ratio}", picture, names, caption)
    picture = matrix_map(_rank_correlations([*tables.values()]), names, "Spearman", lowest=-1.0)
    caption = "Over the samples that have a value in both tables."
    section.matrix("method-rank-correlation", "Rank correlation", picture, names, caption)
    return section


def _rank_correlations(tables: Sequence[ScoreTable]) -> FloatArray:
    """Return Spearman's correlation of each pair of tables, over the samples that have a value in both."""
    matrix = np.ones((len(tables), len(tables)))
    for i, first in enumerate(tables):
        for j, second in enumerate(tables[:i]):
            _, here, there = np.intersect1d(first.row, second.row, return_indices=True)
            x, y = first.value[here], second.value[there]
            both = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
            both = both[:: -(-len(both) // MAX_CORRELATED) or 1]
            matrix[i, j] = matrix[j, i] = rank_correlation(x[both], y[both])
    return matrix


def cost_of(note: ScoresNote, store: Store, signals: Mapping[str, SignalStatus]) -> dict[str, Cell]:
    """Return the cost of the signals of a table, as cells of the page. A score that needs no model costs nothing."""
    num_forward = num_backward = num_bytes = 0
    seconds: float | None = 0.0
    spent = seconds_by_signal(store)
    for name in note.signals if note.spec.reads_model else ():
        num_tried = signals[name].num_done + sum(signals[name].set_aside.values())
        num_forward += num_tried
        spec = store.signal(name).signal.spec
        if spec.kind != "proxy":  # one backward pass for each gradient vector
            num_backward += num_tried
            if not spec.is_per_sample:
                all_steps = store.column("sample_num_steps").sum(dtype="int64")
                num_backward += int(all_steps * num_tried / store.plan.num_samples)
        num_bytes += signals[name].num_bytes
        seconds = None if seconds is None or name not in spent else seconds + spent[name]
    return {
        "forward passes": num_forward,
        "backward passes": num_backward,
        "stored": size(num_bytes),
        "run time": "not logged" if seconds is None else duration(seconds),
    }


def seconds_by_signal(store: Store) -> dict[str, float]:
    """Return the time that runs worked on each signal, by their logs: from the start to the last committed unit."""
    spent: dict[str, float] = {}
    for log in run_logs(store.backend):
        signal: str | None = None
        began = 0.0
        for line in log.splitlines():
            try:
                event = json.loads(line)
            except ValueError:  # the last line of a killed run may be incomplete
                continue
            if not isinstance(event, dict) or "time" not in event:
                continue
            at = datetime.fromisoformat(event["time"]).timestamp()
            if event.get("event") == "Started":
                signal, began = event["signal"], at
            elif event.get("event") in ("UnitCommitted", "Finished") and signal is not None:
                spent[signal] = spent.get(signal, 0.0) + at - began
                began = at
    return spent


# ---------------------------------------------------------------- groups of traces


def groups_section(
    store: Store, tables: Mapping[str, ScoreTable], main: ScoreTable, chosen: BoolArray, request: ReportRequest
) -> Section:
    """Return the part of the page that compares the values of groups. Fields of the records make the groups.

    chosen has True for the chosen samples of the main table.
    """
    _, groups, _ = filter_scores(main, None, store.location, request.data, request.labels)
    lead = "How values depend on fields of the records. Scores never read these fields."
    section = Section("groups", "Kinds of traces", lead)
    values = {name: table.values_of(main.row) for name, table in tables.items()}
    for field in request.by:
        found, shown = groups.groups(field), one_line(field)
        if (numbers := _numbers(found)) is not None:
            section.table(
                f"Value and {shown}",
                ["table", "samples", "Spearman"],
                [
                    [name, int(both.sum()), rank_correlation(value[both], numbers[both])]
                    for name, value in values.items()
                    for both in [np.isfinite(value) & np.isfinite(numbers)]
                ],
            )
            more = " Groups of about the same size, in the order of the numbers."
            _draw(section, shown, _quantile_groups(numbers), main, chosen, more)
            continue
        label = np.array([group_name(value) for value in found], dtype=object)
        names, counts = np.unique(label, return_counts=True)
        largest: list[str] = names[np.argsort(-counts, kind="stable")][:MAX_FIELD_GROUPS].tolist()
        more = f" The {MAX_FIELD_GROUPS} largest of {len(names)} groups." if len(names) > MAX_FIELD_GROUPS else ""
        members = {name: label == name for name in largest}
        section.records(
            f"Values by {shown}",
            [{shown: name} | _group_row(main.value, member, chosen) for name, member in members.items()],
            "Over the pool's share: 1 means that samples of the group are chosen as often as all samples. Chance above "
            "the rest: the probability that a sample of the group has a larger value than a sample outside the group. "
            f"0.5 means no difference.{more}",
        )
        _draw(section, shown, members, main, chosen, more)
        if len(values) > 1:
            rows = [[name, *(chance_above(each, mine) for each in values.values())] for name, mine in members.items()]
            section.table(f"Chance above the rest, by {shown} and method", [shown, *values], rows)
    return section


def _numbers(values: Sequence[object]) -> FloatArray | None:
    """Return a field's numbers, with NaN for missing ones; None for other fields and for few different numbers."""
    is_number = not any(isinstance(value, bool) or not isinstance(value, int | float | None) for value in values)
    if not is_number or len(set(values)) <= MAX_FIELD_GROUPS:
        return None
    try:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    except OverflowError:  # an integer too large for a float is an identifier
        return None


def _quantile_groups(numbers: FloatArray) -> dict[str, BoolArray]:
    """Return the members of groups of about the same size, from the smallest numbers to the largest, by range."""
    known = numbers[np.isfinite(numbers)]
    edges = np.unique(np.quantile(known, np.linspace(0, 1, NUM_NUMBER_GROUPS + 1)[1:-1], method="lower"))
    place = np.searchsorted(edges, numbers)
    members = [np.isfinite(numbers) & (place == i) for i in range(len(edges) + 1)]
    return {f"{numbers[each].min():g} to {numbers[each].max():g}": each for each in members if each.any()}


def _group_row(value: FloatArray, member: BoolArray, chosen: BoolArray) -> dict[str, Cell]:
    found = value[member & np.isfinite(value)]
    share, of_all = float(chosen[member].mean()), float(chosen.mean())
    return {
        "samples": int(member.sum()),
        "median value": float(np.median(found)) if len(found) else None,
        "chosen": f"{100 * share:.0f} %",
        "over the pool's share": share / of_all if of_all else None,
        "chance above the rest": chance_above(value, member),
    }


def _draw(
    section: Section, field: str, members: Mapping[str, BoolArray], main: ScoreTable, chosen: BoolArray, more: str
) -> None:
    sizes = [f"{name} ({int(member.sum()):,})" for name, member in members.items()]
    number = len(section.figures) // 2 + 1
    value, question = main.value, main.question
    picture = value_boxes(sizes, [value[member] for member in members.values()], "")
    section.figure(f"value-by-field-{number}", f"Values by {field}", picture, f"{BOXES}{more}")
    shares = {
        name: chosen_share(chosen[member], None if question is None else question[member])
        for name, member in zip(sizes, members.values(), strict=True)
    }
    picture = intervals(shares, "share that is chosen", (float(chosen.mean()), "all samples"), tickformat=".0%")
    caption = "In brackets: the number of samples in the group. Lines: 95 % intervals over questions."
    section.figure(f"chosen-by-field-{number}", f"Share chosen by {field}", picture, caption)


def chosen_share(chosen: BoolArray, question: IntArray | None = None) -> Estimate:
    """Return the chosen share of a group, with its interval over questions; no interval for few questions.

    >>> chosen_share(np.array([True] + [False] * 9)).text(2)
    '0.10 (0.00 to 0.79)'
    """
    chosen_in, num_in = sums_by_question(question, [chosen, np.ones(len(chosen))])
    return ratio_over_questions(chosen_in, num_in, len(chosen))


def chance_above(value: FloatArray, member: BoolArray) -> float | None:
    """Return the probability that a member has a larger value than a non-member. A tie counts half.

    Return None if all members or all non-members have no value.

    >>> chance_above(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False]))
    0.75
    """
    finite = np.isfinite(value)
    mine, ranks = member[finite], mean_ranks(value[finite])
    num, others = int(mine.sum()), int((~mine).sum())
    if not num or not others:
        return None
    return float((ranks[mine].sum() - num * (num - 1) / 2) / (num * others))
