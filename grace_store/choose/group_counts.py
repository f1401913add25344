"""How many samples of each group are chosen, and in words, which groups rise and fall by that."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grace_store.base.arrays import IntArray
from grace_store.base.finding import Estimate
from grace_store.base.text import about, one_line, percent
from grace_store.values.length_bias import difference_interval

CLEAR = 0.1
"""A difference between shares that is known to this, to either side, is known well enough."""

NO_VALUE = "(none)"
"""What stands for a field that a record lacks."""

Counts = Mapping[str, tuple[int, int]]
"""Of every group, how many samples are chosen, and of how many."""


@dataclass(frozen=True, slots=True)
class GroupCount:
    """How many samples of one group there were to choose from, and how many were chosen."""

    group: str
    pool: int
    """Samples that have a value."""
    chosen: int
    by_value: int
    """How many of as many would be chosen by value alone."""

    @property
    def share(self) -> float:
        return self.chosen / self.pool if self.pool else math.nan


def group_name(group: object) -> str:
    """Return a group in words.

    >>> group_name(("math", None)), group_name(True)
    ('math, (none)', 'True')
    """
    parts = group if isinstance(group, tuple) else (group,)
    return ", ".join(NO_VALUE if part is None else one_line(part) for part in parts)


def group_sizes(groups: Sequence[object], rows: IntArray) -> Counter[str]:
    """Return how many of some rows are in each group, by its name."""
    return Counter(group_name(groups[i]) for i in rows.tolist())


Moved = tuple[str, float, float, Estimate]
"""A group whose share is compared with that of all others: its name, both shares, and their difference."""


def rise_and_fall(by: str, counts: Counts, *, would: bool = False) -> str:
    """Return which groups are chosen clearly more and less often than the others, or why that cannot be said."""
    moved = _compared(counts)
    if not moved:
        return f"All samples have the same {one_line(by)}."
    risers = sorted((each for each in moved if each[-1].low > 0), key=lambda each: -each[-1].value)
    fallers = sorted((each for each in moved if each[-1].high < 0), key=lambda each: each[-1].value)
    if not risers and not fallers:
        verbs = "would rise or fall by value alone" if would else "rise or fall"
        return _no_difference(by, moved, sum(pool for _, pool in counts.values()), verbs)
    told = [_told(some, verb, would) for some, verb in ((risers, "rise"), (fallers, "fall")) if some]
    if len(moved) == 2:  # of two groups, one says all
        told = told[:1]
    return f"By {'value alone' if would else one_line(by)}, {' and '.join(told)}."


def _compared(counts: Counts) -> list[Moved]:
    chosen, pool = (sum(each[place] for each in counts.values()) for place in (0, 1))
    inside = {name: each for name, each in counts.items() if 0 < each[1] < pool}
    comparisons = 1 if len(inside) == 2 else len(inside)
    found = []
    for name, (mine, size) in inside.items():
        rest = (chosen - mine, pool - size)
        share, others = mine / size, rest[0] / rest[1]
        low, high = difference_interval((mine, size), rest, comparisons)
        found.append((name, share, others, Estimate(value=share - others, low=low, high=high, num=pool)))
    return found


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
