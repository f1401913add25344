"""Agreement of two scorings, in the order of samples and in the best samples. Knows no store and no model.

Orders are compared by rank correlation (Spearman's), subsets by the Jaccard index: intersection over union.
Intervals come from a seeded bootstrap over samples, because the steps of one sample are not independent.
"""

import math

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.base.finding import Estimate
from grace_store.values.length_bias import rank_correlation
from grace_store.values.ranking import Ratio, budget, rank, top_mask


def jaccard(num_both: int, num_one: int, num_other: int) -> float:
    """Return the overlap of two subsets from their sizes and the number of common samples; NaN if both are empty.

    >>> jaccard(2, 3, 3)
    0.5
    """
    num_either = num_one + num_other - num_both
    return num_both / num_either if num_either else math.nan


def jaccard_by_chance(num_samples: int, num_chosen: int) -> float:
    """Return the mean overlap of two independent random subsets, to first order.

    >>> round(jaccard_by_chance(100, 20), 4)
    0.1111
    """
    share = num_chosen / num_samples
    return share / (2 - share)


def agreement(one: FloatArray, other: FloatArray, offsets: IntArray, *, draws: int = 200, seed: int = 0) -> Estimate:
    """Return the rank correlation of two flat columns, where sample i owns offsets[i]..offsets[i + 1].

    Entries that are not finite in both columns do not count.
    """
    both = np.isfinite(one) & np.isfinite(other)
    kept = np.concatenate([[0], np.cumsum(both)])[offsets]
    first, second = one[both], other[both]
    generator = np.random.Generator(np.random.Philox(seed))
    found = []
    for _ in range(draws):
        chosen = generator.integers(0, len(offsets) - 1, len(offsets) - 1)
        index = np.concatenate([np.arange(kept[i], kept[i + 1]) for i in chosen.tolist()])
        found.append(rank_correlation(first[index], second[index]))
    defined = [value for value in found if np.isfinite(value)]
    return Estimate.from_draws(rank_correlation(first, second), defined, len(first))


def share_kept(jaccard: float) -> float:
    """Return the share of a subset that is in another subset of the same size, from their Jaccard index."""
    return 2 * jaccard / (1 + jaccard)


def survival(value: FloatArray, other: FloatArray, ratio: Ratio, *, draws: int = 200, seed: int = 0) -> Estimate:
    """Return the overlap of the best samples by two columns of values, with a bootstrap interval over samples."""
    both = np.flatnonzero(np.isfinite(value) & np.isfinite(other))
    value, other = value[both], other[both]
    count = budget(ratio, len(both))
    first, second = top_mask(value, count), top_mask(other, count)
    orders = (rank(value), rank(other))
    generator = np.random.Generator(np.random.Philox(seed))
    found = [_drawn_jaccard(generator, orders, count) for _ in range(draws if count else 0)]
    return Estimate.from_draws(_shared(first, second), found, len(both))


def _drawn_jaccard(generator: np.random.Generator, orders: tuple[IntArray, IntArray], count: int) -> float:
    """Return the overlap in a bootstrap sample, where each sample counts as often as it was drawn."""
    size = len(orders[0])
    times = np.bincount(generator.integers(0, size, size), minlength=size)
    shares = []
    for order in orders:
        drawn = times[order]
        before = np.cumsum(drawn) - drawn
        share = np.empty(size)
        share[order] = np.clip(count - before, 0, drawn)
        shares.append(share)
    return float(np.minimum(*shares).sum() / np.maximum(*shares).sum())


def step_survival(
    value: FloatArray, step_score: FloatArray, offsets: IntArray, ratio: Ratio, *, draws: int = 200, seed: int = 0
) -> Estimate:
    """Return the overlap of the best samples by value with the best by the mean of redrawn steps.

    Steps are drawn with replacement from each sample's own steps. step_score is flat, and sample i owns
    offsets[i]..offsets[i + 1]; a step without a score does not count.
    """
    scored = np.isfinite(step_score)
    before = np.concatenate([[0], np.cumsum(scored)])
    num_scored = before[offsets[1:]] - before[offsets[:-1]]
    usable = np.flatnonzero(np.isfinite(value) & (num_scored > 0))
    flat = step_score[scored]
    first, count_of = before[offsets[:-1]][usable], num_scored[usable]
    starts = np.cumsum(count_of) - count_of
    origin, width = np.repeat(first, count_of), np.repeat(count_of, count_of)
    count = budget(ratio, len(usable))
    chosen = top_mask(value[usable], count)
    generator = np.random.Generator(np.random.Philox(seed))
    found = []
    for _ in range(draws if len(usable) else 0):
        drawn = flat[origin + (generator.random(len(origin)) * width).astype(np.int64)]
        found.append(_shared(chosen, top_mask(np.add.reduceat(drawn, starts) / count_of, count)))
    return Estimate.from_draws(float(np.mean(found)) if found else np.nan, found, len(usable))


def _shared(first: BoolArray, second: BoolArray) -> float:
    return jaccard(*(int(np.count_nonzero(mask)) for mask in (first & second, first, second)))
