"""The order of many numbers, and the k-th smallest of them: exactly, and faster than by comparing. numpy only.

Where a number lies between the least and the largest is told by a whole number, its place, which may be counted, and
sorted digit by digit as numpy does with 16 bits. Only numbers of equal places are compared with each other, and numbers
that are unevenly spread cost time, never exactness.
"""

import math

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray, Numbers

MAX_PLACES = 1 << 16
"""How many places numbers are counted by, or as many as there are numbers, if that is less."""


class OrderStatistics:
    """Answers which of some numbers, none of them NaN, is the k-th smallest."""

    def __init__(self, values: FloatArray) -> None:
        self._values = values
        self._place = _places(values, min(MAX_PLACES, len(values)), "u2")
        self._num_up_to = np.cumsum(np.bincount(self._place))
        """How many numbers have a place up to each."""

    def __len__(self) -> int:
        return len(self._values)

    def kth(self, rank: int) -> float:
        """Return the number that would be at a rank, from 0, were all of them sorted."""
        return float(self._some(rank, 1)[0])

    def quantile(self, share: float) -> float:
        """Return a quantile as numpy defines it: between two numbers, linearly; NaN of none."""
        if not len(self._values):
            return math.nan
        rank = share * (len(self._values) - 1)
        below = math.floor(rank)
        first, *last = self._some(below, 1 if rank == below else 2).tolist()
        return float(first + (last[0] - first) * (rank - below) if last else first)

    def _some(self, rank: int, count: int) -> FloatArray:
        """Return the numbers at a rank and the next ones."""
        low, high = np.searchsorted(self._num_up_to, [rank, rank + count - 1], side="right").tolist()
        between = self._values.compress((self._place >= low) & (self._place <= high))
        first = rank - (int(self._num_up_to[low - 1]) if low else 0)
        return np.partition(between, range(first, first + count))[first : first + count]


def stable_order(values: FloatArray) -> IntArray:
    """Return what ``np.argsort(values, kind="stable")`` does, in about a third of the time.

    >>> stable_order(np.array([0.5, 0.9, 0.1, 0.5]))
    array([2, 0, 3, 1])
    """
    low, high = _places(values, 1 << 32, "<u4").view("<u2").reshape(-1, 2).T
    order = np.argsort(low, kind="stable")
    order = order[np.argsort(high[order], kind="stable")]
    # Hardly any are out of place by now, which this sort makes use of.
    return order[np.argsort(values[order], kind="stable")]


def _places(values: FloatArray, num_places: int, dtype: str) -> Numbers:
    """Return where numbers lie between the least and the largest, from 0; all at 0 if that cannot be told."""
    least, most = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    scale = (num_places - 1) / (most - least) if most > least else 0.0
    if not 0 < scale < math.inf:
        return np.zeros(len(values), dtype)
    # Rounding keeps the order of numbers, and cannot reach the next whole number above the last place.
    place = np.subtract(values, least, dtype=np.float64)
    place *= scale
    return place.astype(dtype)
