"""Intervals over questions: traces of one question are not independent, so only whole questions count. numpy only.

The error of an estimate is, to first order, a sum of parts, one for each question. The spread of the parts gives the
standard error. Heavy tails hide in questions that were not drawn. So the largest part counts once more (of 400 parts:
twice more, and so on), unless parts are bounded, and the degrees of freedom of Student's t fall with the kurtosis of
the parts. `python -m jobs.coverage` simulates how often intervals hold the true number; docs/auditing.md has a table.
"""

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np

from grace_store.base.arrays import Array, BoolArray, FloatArray, IntArray, renumber
from grace_store.base.finding import Estimate

ERROR = 0.05
FEWEST_QUESTIONS = 10
"""Fewest questions for an interval."""
MAX_PARTS = 1000
"""Most parts. More questions are dealt out to this many parts, which then hold several questions each."""
EXTREME = 200
"""Number of parts of which one is taken to be as large as the largest part, beside that part itself."""
Interval = tuple[float, float]
Scale = Literal["plain", "share", "correlation"]
"""The scale on which an interval is symmetric: the number itself, its logit, or Fisher's transform of it."""
_ANGLES = np.linspace(0.0, math.pi / 2, 4001)
_MOST_FREEDOM = 1000
"""Above this, Student's t is nearly normal, and the grid of angles is too coarse."""


@functools.cache
def _t_distribution(degrees_of_freedom: int) -> tuple[float, FloatArray]:
    """Return the degrees of freedom, and the probability above each angle, where t = sqrt(df) tan(angle)."""
    freedom = min(degrees_of_freedom, _MOST_FREEDOM)
    density = np.cos(_ANGLES) ** (freedom - 1)  # with this angle, the density is a power of the cosine
    above = np.concatenate([np.cumsum(((density[1:] + density[:-1]) / 2)[::-1])[::-1], [0.0]])
    return freedom, above / above[0]


def t_quantile(error: float, degrees_of_freedom: int) -> float:
    """Return the value that Student's t exceeds, to either side, with this probability.

    >>> round(t_quantile(0.05, 4), 3)
    2.776
    """
    freedom, above = _t_distribution(degrees_of_freedom)
    return math.sqrt(freedom) * math.tan(float(np.interp(error, above[::-1], _ANGLES[::-1])))


def t_error(t: float, degrees_of_freedom: int) -> float:
    """Return the probability that Student's t exceeds a value, to either side.

    >>> round(t_error(2.776, 4), 3)
    0.05
    """
    freedom, above = _t_distribution(degrees_of_freedom)
    return float(np.interp(math.atan(abs(t) / math.sqrt(freedom)), _ANGLES, above))


def number_parts(question: IntArray | None, num: int) -> IntArray:
    """Return the part of each of num samples, from 0: its question, or one of MAX_PARTS parts if there are more.

    question has any number for each question; None if every sample has a question of its own.
    """
    if question is None:
        return np.arange(num) % MAX_PARTS
    return renumber(question) % MAX_PARTS


def sums_by_question(question: IntArray | None, columns: Sequence[Array]) -> FloatArray:
    """Return the sums of columns over the samples of each part, (columns, parts); question is as in number_parts."""
    place = number_parts(question, len(columns[0]))
    return np.array([np.bincount(place, column.astype(np.float64)) for column in columns])


def spread(parts: FloatArray, *, has_tails: bool = True) -> tuple[float, int]:
    """Return the standard error of the sum of some parts, one for each question, and its degrees of freedom.

    Parts without tails have a largest possible size, as those of shares do. The standard error is infinite for fewer
    than two parts.
    """
    num = len(parts)
    if num < 2:
        return math.inf, 1
    squares = (parts - parts.mean()) ** 2
    again = max(1.0, num / EXTREME) if has_tails else 0.0
    total, fourth = (float(each.sum() + again * each.max()) for each in (squares, squares**2))
    if not total:
        return 0.0, num - 1
    kurtosis = (num + again) * fourth / total**2
    return math.sqrt(total * num / (num - 1)), min(num - 1, max(1, round(2 * num / max(kurtosis - 1, 0.1))))


def estimate(
    value: float, parts: FloatArray, num: int, *, scale: Scale = "plain", chance: float | None = None
) -> Estimate:
    """Return a number with its interval, from the parts of its error, one for each question.

    With chance, also the two-sided p-value against it. There is no interval for fewer than FEWEST_QUESTIONS parts.

    >>> estimate(0.5, np.tile([-0.01, 0.01], 50), 100, scale="share").text(2)
    '0.50 (0.31 to 0.69)'
    """
    if len(parts) < FEWEST_QUESTIONS or not math.isfinite(value):
        return Estimate(value=value, num=num)
    error, freedom = spread(parts, has_tails=scale == "plain")
    if not error:
        low, high = share_interval(value * len(parts), len(parts)) if scale == "share" else (value, value)
        p_value = None if chance is None else float(value == chance)
        return Estimate(value=value, low=low, high=high, num=num, p_value=p_value)
    place, slope = _on_scale(value, scale)
    error *= slope
    half_width = t_quantile(ERROR, freedom) * error
    low, high = (_from_scale(end, scale) for end in (place - half_width, place + half_width))
    p_value = None if chance is None else t_error((place - _on_scale(chance, scale)[0]) / error, freedom)
    return Estimate(value=value, low=low, high=high, num=num, p_value=p_value)


RANGES = {"share": (0.5, 0.5), "correlation": (0.0, 1.0)}
"""Middle and radius of the range of a number, by its scale."""


def _on_scale(number: float, scale: Scale) -> tuple[float, float]:
    """Return a number on a scale, and the slope of the scale there. The ends of the range count as close to them."""
    if scale == "plain":
        return number, 1.0
    middle, radius = RANGES[scale]
    share = min(max((number - middle) / radius, 1e-9 - 1), 1 - 1e-9)
    return math.atanh(share), 1 / radius / (1 - share**2)


def _from_scale(place: float, scale: Scale) -> float:
    if scale == "plain":
        return place
    middle, radius = RANGES[scale]
    return middle + radius * math.tanh(place)


def ratio_over_questions(
    wins: FloatArray, total: FloatArray, num: int, *, scale: Scale = "share", chance: float | None = None
) -> Estimate:
    """Return the ratio of two sums over questions, such as a mean, from the sums of each question."""
    whole = float(total.sum())
    value = float(wins.sum()) / whole if whole else math.nan
    parts = (wins - value * total) / whole if whole else total
    return estimate(value, parts[total > 0] if scale == "share" else parts, num, scale=scale, chance=chance)


def share_interval(count: float, total: float, z: float | None = None) -> Interval:
    """Return Wilson's interval for a share of independent items; 0 to 1 if total is 0.

    >>> [round(end, 3) for end in share_interval(8, 10)]
    [0.49, 0.943]
    """
    if not total:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(1 - ERROR / 2) if z is None else z
    share, width = count / total, z * z / total
    middle = (share + width / 2) / (1 + width)
    half_width = z * math.sqrt(share * (1 - share) / total + width / total / 4) / (1 + width)
    return max(0.0, middle - half_width), min(1.0, middle + half_width)


def difference_interval(one: tuple[float, float], other: tuple[float, float], z: float | None = None) -> Interval:
    """Return Newcombe's interval for the difference of two shares, each given as a count and its total.

    >>> [round(end, 3) for end in difference_interval((56, 70), (48, 80))]
    [0.052, 0.334]
    """
    if not one[1] or not other[1]:
        return -1.0, 1.0
    first, second = one[0] / one[1], other[0] / other[1]
    (low, high), (other_low, other_high) = share_interval(*one, z), share_interval(*other, z)
    difference = first - second
    return (
        difference - math.hypot(first - low, other_high - second),
        difference + math.hypot(high - first, second - other_low),
    )


def compare_groups(group: IntArray, hit: BoolArray, question: IntArray | None = None) -> list[Estimate]:
    """Return for each group, numbered from 0, its share of hits minus the share in all other groups.

    Intervals hold 95 % for all groups together: Newcombe's, with as many independent items as would give the variance
    over questions. A group of one question has the interval -1 to 1.
    """
    place = np.arange(len(group)) if question is None else renumber(question)
    all_size, all_hits = np.bincount(place), np.bincount(place, hit)
    num_questions = len(all_size)
    pair, code = np.unique(group * num_questions + place, return_inverse=True)  # the questions of each group
    mine, there = np.divmod(pair, num_questions)
    size, hits = np.bincount(code), np.bincount(code, hit)
    num, count = np.bincount(mine, size), np.bincount(mine, hits)
    others, other_count = len(group) - num, hit.sum() - count
    share, rest = count / np.maximum(num, 1), other_count / np.maximum(others, 1)
    # The parts of questions without the group, summed over all questions; then those with the group put in their place.
    without = (all_hits[there] - rest[mine] * all_size[there]) / others[mine].clip(1)
    outside = all_hits[there] - hits - rest[mine] * (all_size[there] - size)
    part = (hits - share[mine] * size) / num[mine] - outside / others[mine].clip(1)
    squares = (all_hits @ all_hits - 2 * rest * (all_hits @ all_size) + rest**2 * (all_size @ all_size)) / others.clip(
        1
    ) ** 2
    squares += np.bincount(mine, part**2 - without**2)
    variance = squares * num_questions / max(num_questions - 1, 1)
    independent = share * (1 - share) / num.clip(1) + rest * (1 - rest) / others.clip(1)
    fold = np.divide(variance, independent, out=np.ones(len(num)), where=(variance > 1e-12) & (independent > 0))
    num_in = np.bincount(mine)
    num_out = num_questions - np.bincount(mine, size == all_size[there])
    freedom = np.minimum(num_in, num_out).astype(np.int64) - 1
    comparisons = 1 if len(num) == 2 else len(num)
    found = []
    for each in range(len(num)):
        low, high = -1.0, 1.0
        if freedom[each] > 0:
            pairs = ((count[each], num[each]), (other_count[each], others[each]))
            one, other = ((hits_of / fold[each], size_of / fold[each]) for hits_of, size_of in pairs)
            low, high = difference_interval(one, other, t_quantile(ERROR / comparisons, int(freedom[each])))
        found.append(Estimate(value=float(share[each] - rest[each]), low=low, high=high, num=len(group)))
    return found
