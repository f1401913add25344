"""The test of a trial: do models trained on a subset differ from models trained on random subsets? numpy only.

The trial trains every given subset and every random draw once with every seed, and measures all models on the same
held-out items. The test compares the mean of a subset over the seeds so far with the means of the draws over the same
seeds. If a subset is as good as one more random draw, these means are exchangeable, whatever seeds and items do. So
Student's t with the draws' own spread keeps its error rate, at any number of seeds. The interval has three parts:

    draws   s^2 (1 + 1/D), where s^2 is the variance between the means of the D draws: 1 for the subset itself, 1/D for
            the mean of the draws; the variance between seeds is part of s^2
    seeds   by how much the subset's own trainings vary more between seeds than those of the draws do
    items   the variance over items of the subset's effect, beyond the variance of draws

Each part has a half-width by Student's t, and their squares add up, so the interval is never narrower than the draws
alone make it. The trial looks at the result after each seed but the first: one seed does not show how much the
subset's own trainings vary. By look r of R, r^2 / R^2 of the error rate may be spent, so later looks may spend more,
and the error rate holds wherever a trial stops. With a single seed, the subset's trainings are taken to vary as much
as those of the draws.

Two given subsets are compared in the same way over their common seeds, each as one draw: 2 s^2, or the sum of the two
variances if they have different random draws. All pairs together spend another 5 %, by the same shares of looks,
because the last look that both subsets have depends on the results.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.finding import Estimate
from grace_store.values.intervals import ERROR, t_quantile

POWER = 0.8
"""Probability of finding a true difference of detectable size."""
NUM_SIMULATED = 4000
"""Trials that are simulated to find the detectable difference."""
MIN_DRAWS = 2
"""Least number of draws: one draw has no spread to compare with."""
FEWEST_ITEMS = 8
"""Least number of held-out items."""

Compared = tuple[Estimate, float]
"""The difference of a subset from random draws or from another subset, with its interval and number of items; and the
detectable difference, which 80 % of such trials find."""


def is_clear(difference: Estimate) -> bool:
    """Return whether the interval excludes 0; False if the draws did not differ at all."""
    return difference.half_width > 0 and (difference.low > 0 or difference.high < 0)


def difference_text(difference: Estimate) -> str:
    """Return a difference with its interval, for a sentence.

    >>> difference_text(Estimate(value=0.0123, low=0.006, high=0.0189)), difference_text(Estimate(value=0.0123))
    ('+0.0123, 0.0060 to 0.0189', '+0.012, too early for an interval')
    """
    if not difference.is_known:
        return f"{shown(difference, difference.value, '+')}, too early for an interval"
    low, high = (shown(difference, each) for each in (difference.low, difference.high))
    return f"{shown(difference, difference.value, '+')}, {low} to {high}"


def shown(difference: Estimate, value: float, sign: str = "-") -> str:
    """Return a number with as many digits as the interval of a difference justifies, at least three."""
    half_width = difference.half_width
    digits = max(3, math.ceil(-math.log10(half_width)) + 1) if 0 < half_width < math.inf else 3
    return f"{value:{sign}.{min(digits, 9)}f}"


def error_of_look(look: int, num_looks: int, num_subsets: int) -> float:
    """Return the error rate of one subset at a look, counted from 1; all looks at all subsets together spend 5 %.

    The first of several looks spends nothing.

    >>> round(error_of_look(1, 1, 1), 6), round(sum(error_of_look(look, 3, 1) for look in (1, 2, 3)), 6)
    (0.05, 0.05)
    """
    first = min(2, num_looks)
    share = 0.0 if look < first else (look**2 - (look > first) * (look - 1) ** 2) / num_looks**2
    return -math.expm1(math.log1p(-ERROR * share) / num_subsets)


def compare_with_draws(
    subset: FloatArray, draws: FloatArray, item_weight: FloatArray, error: float, by_seed: FloatArray | None = None
) -> Compared:
    """Compare a subset's mean over seeds for each item, shape (I,), with those of random draws, shape (D, I).

    The comparison is of means over items. item_weight, of mean 1, is the expected share of each item in the mean (its
    tokens, if an item is a sum of losses divided by the mean number of tokens). by_seed has the means over items with
    each seed, first of the subset, then of the draws, shape (R, 1 + D).
    """
    difference = float(subset.mean() - draws.mean())
    spread = ((1 + 1 / len(draws), draws),)
    seeds = 0.0 if by_seed is None else seed_excess(by_seed)
    return _difference(difference, subset - draws.mean(axis=0), spread, item_weight, error, seeds)


def seed_excess(by_seed: FloatArray) -> float:
    """Return by how much the variance of a subset's mean over seeds exceeds that of a random draw, as seeds show it.

    by_seed is as in compare_with_draws. 0 with a single seed.

    >>> seed_excess(np.array([[0.0, 1.0, 1.0], [6.0, 1.0, 1.0]]))
    9.0
    """
    num_seeds, num_draws = len(by_seed), by_seed.shape[1] - 1
    if num_seeds < 2:
        return 0.0
    rest = by_seed - by_seed[:, 1:].mean(axis=1, keepdims=True)  # without what a seed does to all draws
    squares = ((rest - rest.mean(axis=0)) ** 2).sum(axis=0) / (num_seeds - 1)
    of_draws = squares[1:].sum() / (num_draws - 1)
    return max(0.0, float(squares[0] - of_draws * (1 + 1 / num_draws))) / num_seeds


def compare_subsets(
    first: FloatArray,
    second: FloatArray,
    draws: Sequence[FloatArray],
    item_weight: FloatArray,
    error: float,
    seeds: float = 0.0,
) -> Compared:
    """Compare two subsets' means over the same seeds for each item, shape (I,): below 0 the first has less.

    draws holds the random draws, shape (D, I), of both subsets, or those of the first and those of the second. seeds
    is the sum of the seed_excess of both.
    """
    spreads = [(2 / len(draws), each) for each in draws]
    return _difference(float(first.mean() - second.mean()), first - second, spreads, item_weight, error, seeds)


def _difference(
    difference: float,
    deviation: FloatArray,
    spreads: Sequence[tuple[float, FloatArray]],
    item_weight: FloatArray,
    error: float,
    seeds: float,
) -> Compared:
    """Return a difference with its interval; deviation is the difference for each item, spreads are (factor, draws)."""
    num_items = len(deviation)
    if not error:
        return Estimate(value=difference, num=num_items), math.nan
    between = [(fold * float(draws.mean(axis=1).var(ddof=1)), len(draws) - 1) for fold, draws in spreads]
    of_draws = sum(
        fold * _item_variance(draws - draws.mean(axis=0), item_weight, len(draws) - 1) for fold, draws in spreads
    )
    items = max(0.0, _item_variance(deviation, item_weight, 1) - of_draws)
    parts = (*between, (seeds, min(freedom for _, freedom in between)), (items / num_items, num_items - 1))
    half_width = math.sqrt(sum(t_quantile(error, freedom) ** 2 * variance for variance, freedom in parts))
    found = Estimate(value=difference, low=difference - half_width, high=difference + half_width, num=num_items)
    return found, _detectable(parts, error)


def _detectable(parts: Sequence[tuple[float, int]], error: float) -> float:
    """Return the difference that 80 % of trials like this one would find, by simulated trials.

    The spread of this trial is an estimate. The true variance, and the spread that another trial would see, vary about
    it as estimates of so many degrees of freedom do.
    """
    normal, squares = _simulated(tuple(freedom for _, freedom in parts))
    true = np.array([seen for seen, _ in parts])[:, None] / squares[0]
    fold = np.array([t_quantile(error, freedom) ** 2 for _, freedom in parts])
    return float(np.quantile(np.sqrt(fold @ (true * squares[1])) + np.sqrt(true.sum(axis=0)) * normal, POWER))


@functools.cache
def _simulated(freedoms: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Return normal numbers, and for two trials the squared spreads over their expected value, (2, parts, n)."""
    generator = np.random.Generator(np.random.Philox(0))
    freedom = np.array(freedoms)[:, None]
    squares = generator.chisquare(freedom, (2, len(freedoms), NUM_SIMULATED)) / freedom
    return generator.standard_normal(NUM_SIMULATED), squares


def _item_variance(deviation: FloatArray, item_weight: FloatArray, num_free: int) -> float:
    """Return the variance of deviations over items, after their mean, spread by the items' weights, is removed."""
    rest = deviation - deviation.mean(axis=-1, keepdims=True) * item_weight
    num_items: int = deviation.shape[-1]
    return float((rest**2).sum()) / (num_free * (num_items - 1))
