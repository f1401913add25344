"""Do models trained on a subset differ from those trained on random ones? The test and its interval. numpy only.

Every given subset and every random draw is trained once with every seed, and all models are measured on the same
held-out items. The mean of a subset over the seeds so far is compared with the means of the draws over the same seeds.
If a subset is as good as one more random draw, these means are exchangeable, whatever seeds and items do: so Student's
t with the draws' own spread keeps its error rate, at any number of seeds. What the interval covers:

    draws   s^2 (1 + 1/D), where s^2 is the variance between the means of the D draws: 1 for the subset itself, which is
            one outcome of its way of choosing, 1/D for the mean of the draws; what seeds add to a mean is part of s^2
    items   what the way of choosing changes more in some items than in others, beyond what draws do

Both reaches are Student's, and their squares add up: so the interval is never narrower than the draws alone make it.
Looks are taken after each seed. Look r of R may spend (2r - 1) / R^2 of the error rate, later ones more than earlier
ones; these shares add up to 1, so the error rate holds wherever a trial stops.

Two given subsets are compared in the same way over the seeds that both have, each counting as one draw: 2 s^2, or the
sum of the two variances where their random draws are others. All pairs together spend 5 % of their own, by the same
shares of looks: which look is the last that both have depends on what was found.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.finding import Estimate
from grace_store.values.length_bias import ERROR

POWER = 0.8
"""How often a difference of the size that is called detectable is found."""
MIN_DRAWS = 2
"""Without a spread between draws nothing can be told from chance."""
FEWEST_ITEMS = 8
"""Held-out items that models are measured on at least."""
_ANGLES = np.linspace(0.0, math.pi / 2, 4001)
_MOST_FREEDOM = 1000
"""Beyond this, Student's t is the normal distribution, and angles would lie too far apart."""


Compared = tuple[Estimate, float]
"""What a subset's models have more than those of random draws or of another subset, with its interval, over how many
items; and how large a true difference is that is found in 80 % of such trials."""


def is_clear(difference: Estimate) -> bool:
    """Return whether the interval leaves no doubt which is larger; never where nothing differed between the draws."""
    return difference.half_width > 0 and (difference.low > 0 or difference.high < 0)


def difference_text(difference: Estimate) -> str:
    """Return a difference with its interval, as sentences have it.

    >>> difference_text(Estimate(value=0.0123, low=0.006, high=0.0189))
    '+0.0123, 0.0060 to 0.0189'
    """
    low, high = (shown(difference, each) for each in (difference.low, difference.high))
    return f"{shown(difference, difference.value, '+')}, {low} to {high}"


def shown(difference: Estimate, value: float, sign: str = "-") -> str:
    """Return a number with the digits that the interval of a difference leaves it, at least three."""
    reach = difference.half_width
    digits = max(3, math.ceil(-math.log10(reach)) + 1) if reach > 0 else 3
    return f"{value:{sign}.{min(digits, 9)}f}"


def error_of_look(look: int, num_looks: int, num_subsets: int) -> float:
    """Return the error rate that one subset may spend at a look, from 1, so that all looks at all subsets spend 5 %.

    >>> round(error_of_look(1, 1, 1), 6), round(sum(error_of_look(look, 3, 1) for look in (1, 2, 3)), 6)
    (0.05, 0.05)
    """
    share = (2 * look - 1) / num_looks**2
    return -math.expm1(math.log1p(-ERROR * share) / num_subsets)


@functools.cache
def t_quantile(error: float, degrees_of_freedom: int) -> float:
    """Return what Student's t exceeds, to either side, with this probability.

    >>> round(t_quantile(0.05, 4), 3)
    2.776
    """
    # With t = sqrt(df) tan(angle), the density is a power of the cosine.
    freedom = min(degrees_of_freedom, _MOST_FREEDOM)
    density = np.cos(_ANGLES) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = float(np.interp((1 - error) * below[-1], below, _ANGLES))
    return math.sqrt(freedom) * math.tan(angle)


def compare_with_draws(subset: FloatArray, draws: FloatArray, item_weight: FloatArray, error: float) -> Compared:
    """Compare a subset's mean over seeds for each item, shape (I,), with those of random draws, shape (D, I).

    The mean over items is what is compared; item_weight, of mean 1, says which share of it an item is expected to have
    (its tokens, where it is a sum of losses over the mean number of tokens).
    """
    difference = float(subset.mean() - draws.mean())
    spread = ((1 + 1 / len(draws), draws),)
    return _difference(difference, subset - draws.mean(axis=0), spread, item_weight, error)


def compare_subsets(
    first: FloatArray, second: FloatArray, draws: Sequence[FloatArray], item_weight: FloatArray, error: float
) -> Compared:
    """Compare two subsets' means over the same seeds for each item, shape (I,): below 0 the first has less.

    draws are the random draws, shape (D, I), that are like both, or those like the first and those like the second.
    """
    fold = 2 / len(draws)
    spreads = [(fold, each) for each in draws]
    return _difference(float(first.mean() - second.mean()), first - second, spreads, item_weight, error)


def _difference(
    difference: float,
    deviation: FloatArray,
    spreads: Sequence[tuple[float, FloatArray]],
    item_weight: FloatArray,
    error: float,
) -> Compared:
    """Return a difference with its interval, from what it is for each item, and draws with how often they count."""
    num_items = len(deviation)
    between = [(fold * float(draws.mean(axis=1).var(ddof=1)), len(draws) - 1) for fold, draws in spreads]
    of_draws = sum(fold * _of_draws(draws, item_weight) for fold, draws in spreads)
    items = max(0.0, _item_variance(deviation, item_weight, 1) - of_draws)
    parts = (*between, (items / num_items, num_items - 1))
    reach = _reach(parts, error)
    found = Estimate(value=difference, low=difference - reach, high=difference + reach, num=num_items)
    return found, reach + _reach(parts, 2 * (1 - POWER))


def _reach(parts: Sequence[tuple[float, int]], error: float) -> float:
    """Return how far an interval reaches whose variance has parts, each with its degrees of freedom."""
    return math.sqrt(sum(t_quantile(error, freedom) ** 2 * variance for variance, freedom in parts))


def _of_draws(draws: FloatArray, item_weight: FloatArray) -> float:
    """Return how much draws differ from their mean in some items more than in others."""
    return _item_variance(draws - draws.mean(axis=0), item_weight, len(draws) - 1)


def _item_variance(deviation: FloatArray, item_weight: FloatArray, num_free: int) -> float:
    """Return the variance over items of deviations, beyond their mean in proportion to the items' weights."""
    rest = deviation - deviation.mean(axis=-1, keepdims=True) * item_weight
    num_items: int = deviation.shape[-1]
    return float((rest**2).sum()) / (num_free * (num_items - 1))
