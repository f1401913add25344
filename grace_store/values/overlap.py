"""How much two subsets share: Jaccard's index, those in both over those in either."""

from __future__ import annotations

import math


def jaccard(num_both: int, num_one: int, num_other: int) -> float:
    """Return the overlap of two subsets from how many are in both, and in each; NaN if both are empty.

    >>> jaccard(2, 3, 3)
    0.5
    """
    num_either = num_one + num_other - num_both
    return num_both / num_either if num_either else math.nan


def jaccard_by_chance(num_samples: int, num_chosen: int) -> float:
    """Return what two independent random subsets share in the mean, to first order.

    >>> round(jaccard_by_chance(100, 20), 4)
    0.1111
    """
    share = num_chosen / num_samples
    return share / (2 - share)
