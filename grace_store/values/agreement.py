"""How far two ways of scoring agree: in the order of samples, and in what they choose. Knows no store and no model.

Orders are compared by rank correlation (Spearman's), subsets by Jaccard's index: those in both over those in either.
Intervals come from a seeded bootstrap over samples: steps of one sample go together, so samples are drawn, not steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict

from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.base.documents import Number
from grace_store.values.length_bias import rank_correlation
from grace_store.values.ranking import Ratio, budget, rank, top_mask

COVERED = (0.025, 0.975)
WIDE, NARROW = 0.1, 0.05
"""How far to either side an interval may reach before it says too little, and one that says enough."""


def middle_of(draws: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Return what 2.5 % of the draws are below and above; NaN for both without any.

    >>> middle_of(range(41))
    (1.0, 39.0)
    """
    if not len(draws):
        return np.nan, np.nan
    low, high = np.quantile(np.asarray(draws, dtype=np.float64), COVERED).tolist()
    return low, high


def reach(low: float, high: float) -> float:
    """Return how far an interval reaches to either side, in the mean; infinite for one that is not known.

    >>> reach(0.25, 0.5)
    0.125
    """
    return (high - low) / 2 if math.isfinite(high - low) else math.inf


def num_wanted(num_samples: int, reached: float, wanted: float = NARROW) -> int:
    """Return about how many samples would narrow an interval to a reach, rounded up to tens.

    >>> num_wanted(64, 0.1)
    260
    """
    return math.ceil(num_samples * max(reached / wanted, 1.0) ** 2 / 10) * 10


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


@dataclass(frozen=True, slots=True)
class Agreement:
    """A rank correlation, where 95 % of the draws lie, and over how many pairs it is taken."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")  # where a document holds it

    correlation: Number
    low: Number
    high: Number
    num_pairs: int


def agreement(one: FloatArray, other: FloatArray, offsets: IntArray, *, draws: int = 200, seed: int = 0) -> Agreement:
    """Compare two flat columns of which sample i owns offsets[i]..offsets[i + 1]; pairs that lack one do not count."""
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
    return Agreement(rank_correlation(first, second), *middle_of(defined), len(first))


@dataclass(frozen=True, slots=True)
class Survival:
    """How much two subsets share, and where 95 % of the draws lie."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")  # where a document holds it

    jaccard: Number
    low: Number
    high: Number
    num_samples: int
    """Samples that have a value in both."""
    num_chosen: int

    @property
    def share_kept(self) -> float:
        """The share of the first subset that is in the second, which is as large."""
        return 2 * self.jaccard / (1 + self.jaccard)


def survival(value: FloatArray, other: FloatArray, ratio: Ratio, *, draws: int = 200, seed: int = 0) -> Survival:
    """Compare the best of two columns of values over the same samples; the interval draws the samples again."""
    both = np.flatnonzero(np.isfinite(value) & np.isfinite(other))
    value, other = value[both], other[both]
    count = budget(ratio, len(both))
    first, second = top_mask(value, count), top_mask(other, count)
    orders = (rank(value), rank(other))
    generator = np.random.Generator(np.random.Philox(seed))
    found = [_drawn_jaccard(generator, orders, count) for _ in range(draws if count else 0)]
    return Survival(_shared(first, second), *middle_of(found), len(both), count)


def _drawn_jaccard(generator: np.random.Generator, orders: tuple[IntArray, IntArray], count: int) -> float:
    """Return the overlap among as many samples drawn with replacement, each counting as often as it was drawn."""
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
) -> Survival:
    """Compare the best by value with the best by the mean of steps drawn again from each sample's own.

    step_score lies flat, sample i owning offsets[i]..offsets[i + 1]; a step without a score counts in no mean.
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
    return Survival(float(np.mean(found)) if found else np.nan, *middle_of(found), len(usable), count)


def _shared(first: BoolArray, second: BoolArray) -> float:
    return jaccard(*(int(np.count_nonzero(mask)) for mask in (first & second, first, second)))
