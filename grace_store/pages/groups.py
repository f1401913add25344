"""What a known property of the records has to do with their values: which kinds of traces rise, and which fall."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import BoolArray, FloatArray
from grace_store.base.finding import Estimate
from grace_store.base.text import one_line
from grace_store.choose.choice_conclusion import group_name
from grace_store.pages.figures import BOXES, intervals, value_boxes
from grace_store.pages.sections import Cell, Section
from grace_store.scoring.provenance import groups_of
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.opened import Store
from grace_store.values.length_bias import mean_ranks, rank_correlation, share_interval

MAX_FIELD_GROUPS = 24
NUM_NUMBER_GROUPS = 5
"""Groups that a field of many numbers is drawn in."""


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table of scores under the name the page calls it by."""

    name: str
    table: ScoreTable

    @property
    def settings(self) -> str:
        """What the table's settings are, in words."""
        spec = self.table.note.spec.model_dump(mode="json")
        return ", ".join(f"{key} {value}" for key, value in spec.items() if value not in (None, False, [], ""))


@dataclass(frozen=True, slots=True)
class Compared:
    """Tables of scores, the one that the page is about, and which of its samples are chosen."""

    methods: Sequence[NamedTable]
    main: NamedTable
    chosen: BoolArray

    def values(self, method: NamedTable) -> FloatArray:
        """Return a method's values in the order of the main one's samples, NaN where it has none."""
        value = np.full(len(self.main.table), np.nan)
        _, here, there = np.intersect1d(self.main.table.row, method.table.row, return_indices=True)
        value[here] = method.table.value[there]
        return value


def groups_section(
    store: Store, compared: Compared, fields: Sequence[str], data: Sequence[str] | None = None
) -> Section:
    """Return how values differ between the groups that fields of the records make; data is where the dataset is now."""
    lead = "What fields of the records have to do with their values. Scores never read these fields."
    section = Section("groups", "Kinds of traces", lead)
    for field in fields:
        found = groups_of(compared.main.table, field, store.location, data)
        if (numbers := _numbers(found)) is not None:
            _numeric(section, field, numbers, compared)
        else:
            labels = np.array([group_name(value) for value in found], dtype=object)
            _grouped(section, field, labels, compared)
    return section


def _numbers(values: Sequence[object]) -> FloatArray | None:
    """Return a field's numbers, NaN where there is none; None if it is no number or has few enough values to group."""
    is_number = not any(isinstance(value, bool) or not isinstance(value, int | float | None) for value in values)
    if not is_number or len(set(values)) <= MAX_FIELD_GROUPS:
        return None
    try:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    except OverflowError:  # an integer that no float can hold is a name, not an amount
        return None


def _numeric(section: Section, field: str, numbers: FloatArray, compared: Compared) -> None:
    rows: list[list[Cell]] = []
    for method in compared.methods:
        value = compared.values(method)
        both = np.isfinite(value) & np.isfinite(numbers)
        rows.append([method.name, int(both.sum()), rank_correlation(value[both], numbers[both])])
    section.table(f"Value and {one_line(field)}", ["table", "samples", "Spearman"], rows)
    _draw(section, field, _fifths(numbers), compared, " Groups of about the same size, by the number.")


def _fifths(numbers: FloatArray) -> dict[str, BoolArray]:
    """Return groups of about the same size, from the smallest numbers to the largest, by what they go from and to."""
    known = numbers[np.isfinite(numbers)]
    edges = np.unique(np.quantile(known, np.linspace(0, 1, NUM_NUMBER_GROUPS + 1)[1:-1], method="lower"))
    place = np.searchsorted(edges, numbers)
    members = [np.isfinite(numbers) & (place == i) for i in range(len(edges) + 1)]
    return {f"{numbers[each].min():g} to {numbers[each].max():g}": each for each in members if each.any()}


def _draw(section: Section, field: str, members: Mapping[str, BoolArray], compared: Compared, more: str) -> None:
    """Draw the values of each group, and the share of it that is chosen."""
    value, chosen, shown = compared.main.table.value, compared.chosen, one_line(field)
    sizes = [f"{name} ({int(member.sum()):,})" for name, member in members.items()]
    number = len(section.figures) // 2 + 1
    picture = value_boxes(sizes, [value[member] for member in members.values()], "")
    section.figure(f"value-by-field-{number}", f"Values by {shown}", picture, f"{BOXES}{more}")
    shares = {name: chosen_share(chosen[member]) for name, member in zip(sizes, members.values(), strict=True)}
    picture = intervals(shares, "share that is chosen", (float(chosen.mean()), "all samples"), tickformat=".0%")
    caption = "In brackets: how many samples a group has. Lines: 95 % intervals, wider for smaller groups."
    section.figure(f"chosen-by-field-{number}", f"Share chosen by {shown}", picture, caption)


def chosen_share(chosen: BoolArray) -> Estimate:
    """Return the share of a group that is chosen, with Wilson's interval, which holds for small groups too.

    >>> found = chosen_share(np.array([True] + [False] * 9))
    >>> found.value, round(found.low, 3), round(found.high, 3)
    (0.1, 0.018, 0.404)
    """
    low, high = share_interval(int(chosen.sum()), len(chosen))
    return Estimate(value=float(chosen.mean()), low=low, high=high, num=len(chosen))


def _grouped(section: Section, field: str, label: npt.NDArray[np.object_], compared: Compared) -> None:
    names, counts = np.unique(label, return_counts=True)
    largest: list[str] = names[np.argsort(-counts, kind="stable")][:MAX_FIELD_GROUPS].tolist()
    members = {name: label == name for name in largest}
    more = f" The {MAX_FIELD_GROUPS} largest of {len(names)} groups." if len(names) > MAX_FIELD_GROUPS else ""
    value = compared.main.table.value
    section.records(
        f"Values by {one_line(field)}",
        [{one_line(field): name} | _described(value, member, compared.chosen) for name, member in members.items()],
        "Over the pool's share: 1 is as often chosen as the others. Chance above the rest: that a sample of the group "
        f"has a larger value than one outside it; 0.5 is no difference.{more}",
    )
    _draw(section, field, members, compared, more)
    if len(compared.methods) > 1:
        values = [compared.values(method) for method in compared.methods]
        section.table(
            f"Chance above the rest, by {one_line(field)} and method",
            [one_line(field), *(method.name for method in compared.methods)],
            [[name, *(chance_above(each, member) for each in values)] for name, member in members.items()],
        )


def _described(value: FloatArray, member: BoolArray, chosen: BoolArray) -> dict[str, Cell]:
    found = value[member & np.isfinite(value)]
    share, of_all = float(chosen[member].mean()), float(chosen.mean())
    return {
        "samples": int(member.sum()),
        "median value": float(np.median(found)) if len(found) else None,
        "chosen": f"{100 * share:.0f} %",
        "over the pool's share": share / of_all if of_all else None,
        "chance above the rest": chance_above(value, member),
    }


def chance_above(value: FloatArray, member: BoolArray) -> float | None:
    """Return how likely a member's value is larger than another's, ties half; None if either has no value.

    >>> chance_above(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False]))
    0.75
    """
    finite = np.isfinite(value)
    mine, ranks = member[finite], mean_ranks(value[finite])
    num, others = int(mine.sum()), int((~mine).sum())
    if not num or not others:
        return None
    return float((ranks[mine].sum() - num * (num - 1) / 2) / (num * others))
