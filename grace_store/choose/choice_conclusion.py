"""The conclusion of a selection in words: length and flags of the chosen samples, and groups that rise or fall."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from grace_store.base.arrays import BoolArray, IntArray
from grace_store.base.finding import Estimate
from grace_store.base.text import about, counted, one_line, percent, percent_more
from grace_store.choose.selection import Selection
from grace_store.scoring.score_conclusion import only_traces_text, ties_text
from grace_store.scoring.score_table import ScoreTable
from grace_store.values.intervals import compare_groups
from grace_store.values.length_bias import MORE, VAGUE, WIDE, beyond_chance, chance_text, kept_by_chance, kept_over_all
from grace_store.values.ranking import Length


def conclude_choice(
    table: ScoreTable, chosen: IntArray, pool: IntArray, spec: Selection, groups: Sequence[str] = (), num_tied: int = 0
) -> str:
    """Return sentences about the chosen rows of a table: their number, their length against the pool, their flags.

    pool has the rows that could be chosen, groups sentences about groups, which come last. num_tied is as in Subset.
    """
    flags = [*_flags_of_choice(table, chosen, pool), *only_traces_text(table, chosen, "them")]
    if len(chosen) == len(pool):
        told = f"All {counted(len(pool), 'sample')} with a value are chosen"
        return " ".join([f"{told}{_among(spec)}.", *flags])
    told = f"{len(chosen)} of {counted(len(pool), 'sample')}{_among(spec)} are chosen"
    by = _best_by(spec, is_balanced=table.capability is not None)
    each = spec.by if table.capability is None else "capability"
    last = "The last one chosen has" if each is None else f"The last ones chosen of each {each} have"
    ties = ties_text(last, num_tied, "pair" if spec.is_of_pairs else "sample")
    return " ".join([f"{told}, {by}{_length_of(table, chosen, pool)}.", *flags, *ties, *groups])


def _among(spec: Selection) -> str:
    conditions = ["meet --where"] if spec.where is not None else []
    conditions += ["have a label"] if spec.right is not None else []
    conditions += ["have none of the excluded flags"] if spec.exclude_flagged else []
    conditions += ["have no item of a benchmark in them"] if spec.exclude_contaminated else []
    return f" that {' and '.join(conditions)}" if conditions else ""


def _best_by(spec: Selection, *, is_balanced: bool) -> str:
    if spec.diversity is not None:
        return f"by value and diversity ({spec.diversity.method})"
    if spec.right is not None:
        return "the best right trace of a question, each with the worst wrong one"
    if spec.margin is not None:
        return "the best trace of a question, each with the worst one that has another response"
    by = "the best by value" + (" after length is taken out" if spec.control else "")
    by += "" if spec.per_group is None else " of each question"
    if is_balanced:
        return f"{by} of each capability in turn"
    return by if spec.by is None else f"{by} within each {spec.by}"


def _length_of(table: ScoreTable, chosen: IntArray, pool: IntArray) -> str:
    """Return how the chosen rows differ in length from the pool, as the end of a sentence."""
    kept = np.isin(pool, chosen)
    lengths = {name: length[pool] for name, length in table.lengths.items()}
    question = table.question[pool]
    found = {
        name: (kept_over_all(length, kept), chance)
        for name, length in lengths.items()
        if (chance := kept_by_chance(length, kept, question)) > 0
    }
    if not found:
        return "; all are of one length"
    if any(chance == math.inf for _, chance in found.values()):
        return "; all are of one question, too few to say whether they are longer or shorter"
    name = max(found, key=lambda each: beyond_chance(*found[each]))
    if beyond_chance(*found[name]) > 1:
        return f"; they have {_than_pool(name, *found[name])}"
    vaguest = max(found, key=lambda each: found[each][1])
    if (chance := found[vaguest][1]) > VAGUE:
        words, wanted = _than_pool(vaguest, *found[vaguest]), about(len(pool) * (chance / WIDE) ** 2)
        return f"; too few to say whether they are longer or shorter: {words}. About {wanted} samples would do"
    return f"; they are neither longer nor shorter than by chance: {_than_pool(name, *found[name])}"


def _than_pool(name: Length, ratio: float, chance: float) -> str:
    return f"{percent_more(ratio, *MORE[name])} than the pool ({chance_text(chance)})"


def _flags_of_choice(table: ScoreTable, chosen: IntArray, pool: IntArray) -> list[str]:
    flagged, of_pool = (table.num_flagged(rows) for rows in (chosen, pool))
    if not flagged:
        return []
    counts = {name: int(table.is_flagged([name])[chosen].sum()) for name in table.known_trace_flags}
    named = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    is_chosen, is_flagged = np.isin(pool, chosen), table.is_flagged(table.known_trace_flags)[pool]
    favours = compare_groups(is_chosen.astype(np.int64), is_flagged, table.question[pool])[-1].low > 0
    often = f"{of_pool} in the pool, so such traces are chosen more often" if favours else f"{of_pool} in the pool"
    are = "is" if flagged == 1 else "are"
    return [f"{flagged} of them {are} flagged ({named}; {often}): `--exclude-flagged` leaves such traces out."]


CLEAR = 0.1
"""Largest half-width of the interval of a difference between shares that counts as narrow."""

NO_VALUE = "(none)"
"""The name of the group of records that lack the field."""


def group_name(group: object) -> str:
    """Return the name of a group.

    >>> group_name(("math", None)), group_name(True)
    ('math, (none)', 'True')
    """
    parts = group if isinstance(group, tuple) else (group,)
    return ", ".join(NO_VALUE if part is None else one_line(part) for part in parts)


def group_sizes(groups: Sequence[object], rows: IntArray) -> Counter[str]:
    """Return the number of rows in each group, by the group's name."""
    return Counter(group_name(groups[i]) for i in rows.tolist())


Moved = tuple[str, float, float, Estimate]
"""A group, its share of chosen samples, the share in all other groups, and the difference of the two shares."""


def rise_and_fall(
    by: str, groups: Sequence[str], is_chosen: BoolArray, question: IntArray | None = None, *, would: bool = False
) -> str:
    """Return which groups are chosen clearly more or less often than the others, or why the data does not show it.

    groups, is_chosen and question have an entry for each sample of the pool; question is None if unknown.
    """
    moved = _compared(groups, is_chosen, question)
    if not moved:
        return f"All samples have the same {one_line(by)}."
    risers = sorted((each for each in moved if each[-1].low > 0), key=lambda each: -each[-1].value)
    fallers = sorted((each for each in moved if each[-1].high < 0), key=lambda each: each[-1].value)
    if not risers and not fallers:
        verbs = "would rise or fall by value alone" if would else "rise or fall"
        return _no_difference(by, moved, len(groups), verbs)
    told = [_told(some, verb, would) for some, verb in ((risers, "rise"), (fallers, "fall")) if some]
    if len(moved) == 2:  # the second group is the opposite of the first
        told = told[:1]
    return f"By {'value alone' if would else one_line(by)}, {' and '.join(told)}."


def _compared(groups: Sequence[str], is_chosen: BoolArray, question: IntArray | None) -> list[Moved]:
    names: dict[str, int] = {}
    group = np.array([names.setdefault(name, len(names)) for name in groups], dtype=np.int64)
    if len(names) < 2:
        return []
    num, chosen = np.bincount(group), np.bincount(group, is_chosen)
    found = compare_groups(group, is_chosen, question)
    return [(name, chosen[i] / num[i], chosen[i] / num[i] - found[i].value, found[i]) for name, i in names.items()]


def _told(some: Sequence[Moved], verb: str, would: bool) -> str:
    verb = f"would {verb}" if would else f"{verb}s"
    most = f"{verb} most" if len(some) > 1 else verb
    name, share, others, difference = some[0]
    least, largest = sorted(abs(100 * end) for end in (difference.low, difference.high))
    points = f"{least:.0f} to {largest:.0f} points {'more' if difference.value > 0 else 'less'}"
    return f"{name} {most} ({percent(share)} of it, {percent(others)} of the others, {points})"


def _no_difference(by: str, moved: Sequence[Moved], num_samples: int, verbs: str) -> str:
    half_width = min(difference.half_width for *_, difference in moved)
    if half_width > CLEAR:
        wanted = about(num_samples * (half_width / CLEAR) ** 2)
        return f"Too few samples to say which groups of {one_line(by)} {verbs}; about {wanted} would do."
    name, *_, most = max(moved, key=lambda each: abs(each[-1].value))
    low, high = (round(100 * end) for end in (most.low, most.high))
    furthest = f"{name} by {100 * most.value:+.0f} points ({low:+d} to {high:+d})"
    return f"No groups of {one_line(by)} clearly {verbs}; the furthest is {furthest}."
