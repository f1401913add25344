"""Agreement of two scorings, in the order of samples and in the best samples. Knows no store and no model.

Orders are compared by rank correlation (Spearman's), subsets by the Jaccard index: intersection over union.
Intervals are over questions, because traces of one question, and steps of one trace, are not independent.
"""

import math

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray, renumber
from grace_store.base.finding import Estimate
from grace_store.values.intervals import MAX_PARTS, estimate, number_parts, share_interval
from grace_store.values.length_bias import rank_correlation
from grace_store.values.ranking import OrderStatistics, Ratio, budget, comparable, top_mask


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


def agreement(one: FloatArray, other: FloatArray, offsets: IntArray, question: IntArray | None = None) -> Estimate:
    """Return the rank correlation of two flat columns, where sample i owns offsets[i]..offsets[i + 1].

    Entries that are not finite in both columns do not count. question has the question of each sample; None if every
    sample has a question of its own.
    """
    both = np.isfinite(one) & np.isfinite(other)
    place = np.repeat(number_parts(question, len(offsets) - 1), np.diff(offsets))[both]
    first, second = one[both], other[both]
    value, known = rank_correlation(first, second), np.unique(place)
    without = [rank_correlation(first[place != part], second[place != part]) for part in known.tolist()]
    parts = (value - np.nan_to_num(without, nan=value)) * (len(known) - 1) / max(len(known), 1)
    return estimate(value, parts, len(first), scale="correlation")


def share_kept(jaccard: float) -> float:
    """Return the share of a subset that is in another subset of the same size, from their Jaccard index."""
    return 2 * jaccard / (1 + jaccard)


def survival(value: FloatArray, other: FloatArray, ratio: Ratio, question: IntArray | None = None) -> Estimate:
    """Return the overlap of the best samples by two columns of values; question is as for agreement."""
    both = np.flatnonzero(np.isfinite(value) & np.isfinite(other))
    value, other = value[both], other[both]
    count = budget(ratio, len(both))
    mine = np.arange(len(both)) if question is None else renumber(question[both])
    first, second = (top_mask(comparable(each, mine), count) for each in (value, other))
    at_first, at_second = (near_threshold(OrderStatistics(each), each, count) for each in (value, other))
    return overlap((first, second), (at_first, at_second), mine, len(both))


def overlap(
    chosen: tuple[BoolArray, BoolArray | FloatArray],
    near: tuple[BoolArray, BoolArray | float],
    question: IntArray,
    num: int,
    part: IntArray | None = None,
) -> Estimate:
    """Return the overlap of two choices of equal size, the best by two columns of values, with its interval.

    The second choice may be a probability for each sample. Both thresholds would differ in another pool. A sample more
    above a threshold takes one at the threshold out, so the share of the other choice around a threshold counts
    against the choices. near has the samples around each threshold; the share of the first choice may take the place
    of the second. Questions are numbered from 0, without gaps. part is their part, if it is known; num is the number of
    samples that were chosen from.
    """
    first, second = chosen
    size = [float(each.sum()) for each in chosen]
    if not all(size):
        return Estimate(value=math.nan, num=num)
    at_first = float(second[near[0]].mean())
    at_second = near[1] if isinstance(near[1], float) else float(first[near[1]].mean())
    shared, mean_size = first * second, sum(size) / 2
    both = float(shared.sum())
    error = shared - at_first * first - at_second * second
    mean = (both - at_first * size[0] - at_second * size[1]) / len(first)
    part = question % MAX_PARTS if part is None else part
    parts = np.asarray(np.bincount(part, (error - mean) / mean_size), dtype=np.float64)
    share = estimate(both / mean_size, parts, num, scale="share")
    low, high = (end / (2 - end) for end in (share.low, share.high))
    if both == mean_size and share.is_known:  # the choices are the same, so parts do not vary
        num_questions = int(np.count_nonzero(np.bincount(question[first])))
        share_low = share_interval(num_questions, num_questions)[0]
        low = share_low / (2 - share_low)
    return Estimate(value=both / (sum(size) - both), low=low, high=high, num=num)


def near_threshold(order: OrderStatistics, values: FloatArray, count: int) -> BoolArray:
    """Return which values are next to the threshold of the best count values: about sqrt(n) to either side.

    order is of the finite values.
    """
    if not len(order):
        return np.zeros(len(values), dtype=np.bool_)
    reach = max(5, math.isqrt(len(order)))
    low, high = (order.kth(min(max(len(order) - count + by, 0), len(order) - 1)) for by in (-reach, reach - 1))
    return (values >= low) & (values <= high)


def step_survival(
    value: FloatArray,
    step_score: FloatArray,
    offsets: IntArray,
    ratio: Ratio,
    question: IntArray | None = None,
    *,
    draws: int = 200,
    seed: int = 0,
) -> Estimate:
    """Return the mean overlap of the best samples by value with the best by the mean of redrawn steps.

    Steps are drawn with replacement from each sample's own steps. step_score is flat, and sample i owns
    offsets[i]..offsets[i + 1]; a step without a score does not count. question is as for agreement.
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
    mine = np.arange(len(usable)) if question is None else renumber(question[usable])
    chosen = top_mask(comparable(value[usable], mine), count)
    generator = np.random.Generator(np.random.Philox(seed))
    times, around = np.zeros(len(usable)), 0.0
    for _ in range(draws if len(usable) else 0):
        drawn = np.add.reduceat(flat[origin + (generator.random(len(origin)) * width).astype(np.int64)], starts)
        drawn /= count_of
        times += top_mask(drawn, count)
        around += float(chosen[near_threshold(OrderStatistics(drawn), drawn, count)].mean()) / draws
    at_chosen = near_threshold(OrderStatistics(value[usable]), value[usable], count)
    return overlap((chosen, times / draws), (at_chosen, around), mine, len(usable))
