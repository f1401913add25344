"""Intervals for shares, their differences, and what lengths explain: by formula, so a million samples cost nothing.

Each is one of 95 %; where several groups are compared at once, 95 % for all of them together. numpy is not needed.
"""

import math
from statistics import NormalDist

ERROR = 0.05
Interval = tuple[float, float]


def z_for(num_comparisons: int = 1) -> float:
    """Return how many standard errors an interval reaches to either side, also if the best of several is looked for.

    >>> round(z_for(), 2), round(z_for(5), 2)
    (1.96, 2.58)
    """
    return NormalDist().inv_cdf(1 - ERROR / 2 / max(num_comparisons, 1))


def share_interval(count: float, total: int, z: float | None = None) -> Interval:
    """Return Wilson's interval for a share; everything is possible where there is nothing to count.

    >>> [round(end, 3) for end in share_interval(8, 10)]
    [0.49, 0.943]
    """
    if not total:
        return 0.0, 1.0
    z = z_for() if z is None else z
    share, spread = count / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    reach = z * math.sqrt(share * (1 - share) / total + spread / total / 4) / (1 + spread)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def difference_interval(one: tuple[int, int], other: tuple[int, int], num_comparisons: int = 1) -> Interval:
    """Return Newcombe's interval for the difference of two shares, each given as a count and its total.

    >>> [round(end, 3) for end in difference_interval((56, 70), (48, 80))]
    [0.052, 0.334]
    """
    if not one[1] or not other[1]:
        return -1.0, 1.0
    z = z_for(num_comparisons)
    first, second = one[0] / one[1], other[0] / other[1]
    (low, high), (other_low, other_high) = share_interval(*one, z), share_interval(*other, z)
    difference = first - second
    return (
        difference - math.hypot(first - low, other_high - second),
        difference + math.hypot(high - first, second - other_low),
    )


def explained_interval(share: float, num_samples: int, num_columns: int) -> Interval:
    """Return an interval for R squared, by Fisher's transform.

    Columns explain something of anything by chance, so the lower end starts from the share without that.

    >>> [round(end, 2) for end in explained_interval(0.156, 200, 3)]
    [0.06, 0.26]
    """
    free = num_samples - num_columns - 1
    if free < 1 or share != share:
        return 0.0, 1.0
    shrunk = 1 - (1 - share) * (num_samples - 1) / free
    reach = z_for() / math.sqrt(free)
    low, high = _moved(max(shrunk, 0.0), -reach), _moved(max(share, 0.0), reach)
    return low, high


def _moved(share: float, by: float) -> float:
    """Return an R squared whose R is moved on Fisher's scale, not below 0."""
    return 1.0 if share >= 1 else math.tanh(max(0.0, math.atanh(math.sqrt(share)) + by)) ** 2
