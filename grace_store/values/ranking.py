"""Rankings and subsets from values: each subset is a prefix of one ranking, so a smaller one lies in a larger one.

Sorting is exact, and faster than a sort by comparisons. A number is first mapped to a whole number, its place between
the least and the largest number. numpy sorts places of 16 bits by their digits. Only numbers with equal places are
compared. Unevenly spread numbers take longer, and the result stays exact. Knows no files.
"""

import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Literal

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray, Numbers, ascend, offsets_of, renumber
from grace_store.base.errors import SettingError

# ---------------------------------------------------------------- order statistics


MAX_PLACES = 1 << 16
"""Largest number of different places."""


class OrderStatistics:
    """The k-th smallest of some numbers without NaN, for any k."""

    def __init__(self, values: FloatArray) -> None:
        self._values = values
        self._place = _places(values, min(MAX_PLACES, len(values)), "u2")
        self._num_up_to = np.cumsum(np.bincount(self._place))
        """Number of values up to each place."""

    def __len__(self) -> int:
        return len(self._values)

    def kth(self, rank: int) -> float:
        """Return the number at a rank, from 0, of the sorted numbers."""
        return float(self._some(rank, 1)[0])

    def quantile(self, share: float) -> float:
        """Return a quantile as numpy defines it, interpolated linearly; NaN without numbers."""
        if not len(self._values):
            return math.nan
        rank = share * (len(self._values) - 1)
        below = math.floor(rank)
        first, *last = self._some(below, 1 if rank == below else 2).tolist()
        return float(first + (last[0] - first) * (rank - below) if last else first)

    def _some(self, rank: int, count: int) -> FloatArray:
        """Return count numbers from a rank on."""
        low, high = np.searchsorted(self._num_up_to, [rank, rank + count - 1], side="right").tolist()
        between = self._values.compress((self._place >= low) & (self._place <= high))
        first = rank - (int(self._num_up_to[low - 1]) if low else 0)
        return np.partition(between, range(first, first + count))[first : first + count]


def stable_order(values: Numbers) -> IntArray:
    """Return the result of ``np.argsort(values, kind="stable")`` in about a third of the time.

    >>> stable_order(np.array([0.5, 0.9, 0.1, 0.5]))
    array([2, 0, 3, 1])
    """
    low, high = _places(values, 1 << 32, "<u4").view("<u2").reshape(-1, 2).T
    order = np.argsort(low, kind="stable")
    order = order[np.argsort(high[order], kind="stable")]
    # The last sort is fast, because nearly all numbers are in order.
    return order[np.argsort(values[order], kind="stable")]


def _places(values: Numbers, num_places: int, dtype: str) -> Numbers:
    """Return the places of numbers between the least and the largest, from 0; all 0 if the numbers have no range."""
    least, most = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    scale = (num_places - 1) / (most - least) if most > least else 0.0
    if not 0 < scale < math.inf:
        return np.zeros(len(values), dtype)
    # Rounding keeps the order of numbers, and never exceeds the last place.
    place = np.subtract(values, least, dtype=np.float64)
    place *= scale
    return place.astype(dtype)


# ---------------------------------------------------------------- the noise floor
# Float32 arithmetic in another batch changes a value by about 1e-7 of its size. Values are compared without this noise.


DIGITS = 20
"""Binary digits of values that count in comparisons, below their 90 % quantile: a grid of about a millionth."""


def grid_step(values: FloatArray) -> float:
    """Return the distance of the grid that values are compared on.

    >>> grid_step(np.array([0.7, -0.2, np.nan])) == 2**-20
    True
    """
    finite = np.abs(_finite(values))
    # Not the largest value: one outlier would make the grid too coarse for all others.
    most = OrderStatistics(finite).quantile(0.9) if len(finite) else 0.0
    return max(math.ldexp(1.0, math.frexp(most or 1.0)[1] - DIGITS), 2.0**-1000)


def _finite(values: FloatArray) -> FloatArray:
    """Return the finite values; the same array if all are."""
    known = np.isfinite(values)
    return values if known.all() else values[known]


def find_twins(values: FloatArray, question: IntArray, row: Numbers | None = None) -> IntArray:
    """Return for each sample the earliest trace of its question with the same value, by row or by index without rows.

    In the order of values, neighbours closer than a step of the grid have the same value. So copies of a trace have
    the same value on whichever sides of a grid line they lie.

    >>> find_twins(np.array([0.3, 0.5, 0.3 + 1e-7, 0.3]), np.array([4, 4, 4, 7]))
    array([0, 1, 0, 3])
    """
    twin, numbered = np.arange(len(values)), renumber(question)
    some = np.flatnonzero(np.bincount(numbered)[numbered] > 1)  # most questions may have one trace
    order = some[stable_order(values[some])]
    order = order[stable_order(question[order])]
    is_near = np.diff(values[order]) < grid_step(values)
    is_near &= question[order][1:] == question[order][:-1]
    if is_near.any():
        run = np.concatenate([[0], np.cumsum(~is_near)])
        in_run = np.append(is_near, False) | np.append(False, is_near)
        order, run = order[in_run], run[in_run]
        order = order[np.lexsort((order if row is None else row[order], run))]
        twin[order] = order[np.searchsorted(run, run)]  # the first of each run
    return twin


def comparable(
    values: FloatArray, question: IntArray | None = None, row: Numbers | None = None, plain: FloatArray | None = None
) -> FloatArray:
    """Return values for comparisons: on a grid, and equal for twins, if questions are known. NaN and infinity stay.

    plain has the values before they were compared within questions, in which twins are found.

    >>> values = comparable(np.array([0.3, 0.5, 0.3 + 1e-7]), np.array([4, 4, 4]))
    >>> bool(values[0] == values[2]), values.round(3)
    (True, array([0.3, 0.5, 0.3]))
    """
    step = grid_step(values)
    if question is not None:
        values = values[find_twins(values if plain is None else plain, question, row)]
    return on_grid(values, step)


def on_grid(values: FloatArray, step: float) -> FloatArray:
    """Return the values rounded to multiples of a step."""
    rounded: FloatArray = values * (1 / step)  # steps are powers of two, so this is exact
    np.rint(rounded, out=rounded)
    rounded *= step
    return rounded


# ---------------------------------------------------------------- rankings


Ratio = str | Decimal | float
Balance = Literal["equal", "sqrt", "proportional"]
Length = Literal["step_length", "response_length", "num_steps"]
"""Lengths that can be removed from values before ranking."""


def lengths_of(num_steps: Numbers, num_tokens: Numbers, num_step_tokens: Numbers | None) -> dict[Length, FloatArray]:
    """Return the lengths of samples: all three, or two if the tokens of steps are not known."""
    steps = num_steps.astype(np.float64)
    known: dict[Length, FloatArray] = {"response_length": num_tokens.astype(np.float64), "num_steps": steps}
    if num_step_tokens is None:
        return known
    return {"step_length": num_step_tokens.astype(np.float64) / np.maximum(steps, 1.0), **known}


def budget(ratio: Ratio, num_samples: int) -> int:
    """Return ceil(ratio * num_samples), exactly as the ratio is written in decimal.

    >>> budget("0.2", 15), budget(0.07, 100)
    (3, 7)
    """
    return math.ceil(_exact(ratio) * num_samples)


def _exact(ratio: Ratio) -> Fraction:
    try:
        # The text of a float is the decimal that the user wrote; its binary value is not.
        written = Decimal(str(ratio))
    except InvalidOperation:
        written = Decimal("NaN")
    if not (written.is_finite() and 0 < written <= 1):
        raise SettingError(f"ratio {ratio} is not a number above 0 and at most 1, such as 0.2")
    return Fraction(written)


def rank(values: FloatArray, row: Numbers | None = None) -> IntArray:
    """Return the indices of all finite values, the largest first; ties are ordered by row, or by index without rows.

    >>> rank(np.array([0.5, np.nan, 0.9, 0.5]))
    array([2, 0, 3])
    """
    finite = np.flatnonzero(np.isfinite(values))
    # A stable order is enough if rows ascend, as in most tables.
    if row is None or ascend(row):
        return finite[stable_order(-values[finite])]
    return finite[np.lexsort((row[finite], -values[finite]))]


def at_least(values: FloatArray, threshold: float, ranking: IntArray) -> IntArray:
    """Return the prefix of a ranking of these values that reaches the threshold, both on the grid of the values.

    >>> at_least(np.array([0.1, 0.3, np.inf, 0.2]), 0.2, np.array([1, 3, 0]))
    array([1, 3])
    """
    if not math.isfinite(threshold):
        raise SettingError(f"threshold {threshold} is not a number")
    step = grid_step(values)
    return ranking[np.round(values[ranking] / step) >= float(np.round(threshold / step))]


def top_mask(values: FloatArray, count: int, row: Numbers | None = None) -> BoolArray:
    """Return a mask of the first count indices of rank(values, row), without sorting all values.

    >>> top_mask(np.array([0.5, np.nan, 0.9, 0.5]), 2)
    array([ True, False,  True, False])
    """
    finite = _finite(values)
    usable = values if finite is values else np.where(np.isfinite(values), values, -np.inf)
    order = OrderStatistics(finite)
    if not 0 <= count <= len(order):
        raise SettingError(f"count {count} is not between 0 and {len(order)}, the number of samples with a value")
    if count == 0:
        return np.zeros(len(values), dtype=np.bool_)
    least = order.kth(len(order) - count)
    mask: BoolArray = usable >= least
    if num_more := int(np.count_nonzero(mask)) - count:
        ties = np.flatnonzero(usable == least)
        mask[(ties if row is None else ties[np.argsort(row[ties])])[-num_more:]] = False
    return mask


def num_tied(values: FloatArray, ranking: IntArray, count: int, stratum: IntArray | None = None) -> int:
    """Return how many samples after the first count of a ranking have the value of the last of their stratum before.

    >>> num_tied(np.array([0.5, 0.9, 0.5, 0.5]), np.array([1, 0, 2, 3]), 2)
    2
    """
    group = np.zeros(len(values), dtype=np.int64) if stratum is None else stratum
    last = np.full(len(values), np.nan)
    last[group[ranking[:count]]] = values[ranking[:count]]  # the best come first, so the last one stays
    return int((values[ranking[count:]] == last[group[ranking[count:]]]).sum())


def stratified_rank(values: FloatArray, stratum: Sequence[object], row: Numbers | None = None) -> IntArray:
    """Return a ranking of all finite values in which every prefix has the strata in their natural shares.

    The j-th best, from 0, of a stratum of n samples is due at (j + 1/2) / n. Samples are ranked by their due time, and
    by value where due times are equal. So subsets are nested, and a stratum is off by hardly more than one sample.

    >>> stratified_rank(np.array([0.9, 0.8, 0.7, 0.1, 0.2, 0.3]), ["a", "a", "a", "b", "b", "b"])
    array([0, 5, 1, 4, 2, 3])
    """
    ranking = rank(values, row)
    codes: dict[object, int] = {}
    code = np.array([codes.setdefault(stratum[index], len(codes)) for index in ranking.tolist()], dtype=np.int64)
    return ranking[balanced_order(code, "proportional")]


def balanced_order(stratum: IntArray, balance: Balance) -> IntArray:
    """Return an order of samples, given the best first, in which every prefix has the strata in balance.

    stratum holds whole numbers from 0. The j-th best of a stratum of n, from 0, is due at j + 1/2 (equal),
    (j + 1/2) / sqrt(n) (sqrt) or (j + 1/2) / n (proportional); equal due times go by value. When a stratum has no
    samples left, the others get its share.

    >>> balanced_order(np.array([0, 0, 0, 0, 1]), "equal")
    array([0, 4, 1, 2, 3])
    """
    size = np.bincount(stratum)[stratum]
    by_stratum = np.argsort(stratum, kind="stable")
    turn = np.empty(len(stratum), dtype=np.int64)
    turn[by_stratum] = np.arange(len(stratum)) - offsets_of(np.bincount(stratum))[stratum[by_stratum]]
    # Squares instead of roots: equal fractions are equal floats, and different ones differ below 2**24.
    due = {
        "equal": 2 * turn + 1,
        "sqrt": (2 * turn + 1.0) ** 2 / size,
        "proportional": (2 * turn + 1) / (2 * size),
    }[balance]
    return np.argsort(due, kind="stable")
