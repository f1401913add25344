"""How many samples of each group are chosen, and in words, which groups rise and fall by that."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grace_store.base.arrays import IntArray
from grace_store.base.text import about, one_line, percent
from grace_store.read.kept_samples import group_name
from grace_store.values.intervals import Interval, difference_interval

CLEAR = 0.1
"""A difference between shares that is known to this, to either side, is known well enough."""

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


def group_sizes(groups: Sequence[object], rows: IntArray) -> Counter[str]:
    """Return how many of some rows are in each group, by its name."""
    return Counter(group_name(groups[i]) for i in rows.tolist())


@dataclass(frozen=True, slots=True)
class _Moved:
    """A group whose share is compared with that of all others."""

    group: str
    share: float
    others: float
    between: Interval

    @property
    def difference(self) -> float:
        return self.share - self.others

    @property
    def reach(self) -> float:
        return (self.between[1] - self.between[0]) / 2

    def __str__(self) -> str:
        least, most = sorted(abs(100 * end) for end in self.between)
        points = f"{least:.0f} to {most:.0f} points {'more' if self.difference > 0 else 'less'}"
        return f"{percent(self.share)} of it, {percent(self.others)} of the others, {points}"


def rise_and_fall(by: str, counts: Counts, *, would: bool = False) -> str:
    """Return which groups are chosen clearly more and less often than the others, or why that cannot be said."""
    moved = _compared(counts)
    if not moved:
        return f"All samples have the same {one_line(by)}."
    risers = sorted((each for each in moved if each.between[0] > 0), key=lambda each: -each.difference)
    fallers = sorted((each for each in moved if each.between[1] < 0), key=lambda each: each.difference)
    if not risers and not fallers:
        verbs = "would rise or fall by value alone" if would else "rise or fall"
        return _no_difference(by, moved, sum(pool for _, pool in counts.values()), verbs)
    told = [_told(some, verb, would) for some, verb in ((risers, "rise"), (fallers, "fall")) if some]
    if len(moved) == 2:  # of two groups, one says all
        told = told[:1]
    return f"By {'value alone' if would else one_line(by)}, {' and '.join(told)}."


def _compared(counts: Counts) -> list[_Moved]:
    chosen, pool = (sum(each[place] for each in counts.values()) for place in (0, 1))
    inside = {name: each for name, each in counts.items() if 0 < each[1] < pool}
    comparisons = 1 if len(inside) == 2 else len(inside)
    found = []
    for name, (mine, size) in inside.items():
        rest = (chosen - mine, pool - size)
        between = difference_interval((mine, size), rest, comparisons)
        found.append(_Moved(name, mine / size, rest[0] / rest[1], between))
    return found


def _told(some: Sequence[_Moved], verb: str, would: bool) -> str:
    verb = f"would {verb}" if would else f"{verb}s"
    most = f"{verb} most" if len(some) > 1 else verb
    return f"{some[0].group} {most} ({some[0]})"


def _no_difference(by: str, moved: Sequence[_Moved], num_samples: int, verbs: str) -> str:
    known = min(moved, key=lambda each: each.reach)
    if known.reach > CLEAR:
        wanted = about(num_samples * (known.reach / CLEAR) ** 2)
        return f"Too few samples to say which groups of {one_line(by)} {verbs}; about {wanted} would do."
    most = max(moved, key=lambda each: abs(each.difference))
    low, high = (round(100 * end) for end in most.between)
    furthest = f"{most.group} by {100 * most.difference:+.0f} points ({low:+d} to {high:+d})"
    return f"No groups of {one_line(by)} clearly {verbs}; the furthest is {furthest}."
