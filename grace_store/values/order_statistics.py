"""The k-th smallest of many numbers, exactly, in about one pass over them. numpy only.

A sorted sample says between which two numbers the k-th lies, with all but certainty; what is between them is few, and
only that is sorted. Should the sample be wrong, all are.
"""

import math

import numpy as np

from grace_store.base.arrays import FloatArray

SAMPLED = 1 << 14
"""About how many numbers are sorted to bracket the others by. With fewer than four times as many, none are."""
DEVIATIONS = 5.0
"""How far from the place expected in the sample the brackets are, in standard deviations."""


class OrderStatistics:
    """Answers which of some numbers, none of them NaN, is the k-th smallest."""

    def __init__(self, values: FloatArray) -> None:
        self._values = values
        stride = len(values) // SAMPLED
        self._sorted = np.sort(values[::stride] if stride >= 4 else values)
        self._is_whole = stride < 4

    def kth(self, place: int) -> float:
        """Return the number that would be at a place, from 0, were all of them sorted."""
        return float(self._some(place, 1)[0])

    def quantile(self, share: float) -> float:
        """Return a quantile as numpy defines it: between two numbers, linearly; NaN of none."""
        if not len(self._values):
            return math.nan
        place = share * (len(self._values) - 1)
        below = math.floor(place)
        first, *last = self._some(below, 1 if place == below else 2).tolist()
        return float(first + (last[0] - first) * (place - below) if last else first)

    def _some(self, place: int, count: int) -> FloatArray:
        """Return the numbers at a place and the next ones."""
        if self._is_whole:
            return self._sorted[place : place + count]
        low, high = self._brackets(place)
        reached = self._values >= low
        first = place - (len(reached) - int(np.count_nonzero(reached)))
        between = self._values[reached & (self._values <= high)]
        if not 0 <= first <= len(between) - count:
            first, between = place, self._values
        return np.partition(between, range(first, first + count))[first : first + count]

    def _brackets(self, place: int) -> tuple[float, float]:
        share, num = (place + 0.5) / len(self._values), len(self._sorted)
        width = DEVIATIONS * math.sqrt(num * share * (1 - share)) + 2
        below, above = math.floor(num * share - width), math.ceil(num * share + width)
        return (
            float(self._sorted[below]) if below >= 0 else -math.inf,
            float(self._sorted[above]) if above < num else math.inf,
        )
