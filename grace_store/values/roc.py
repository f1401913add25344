"""How well scores tell right from wrong: areas under the ROC over chosen pairs, with intervals over questions.

An area is the share of pairs of a right and a wrong item in which the right item has the larger score; a tie counts
half, and 0.5 is chance. Only pairs inside one cell are compared, so that place and length do not differ within a pair.
Intervals draw whole questions, with replacement, because items of one question are not independent. numpy only.
"""

import math
from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray, Numbers
from grace_store.base.finding import Estimate
from grace_store.values.length_bias import mean_ranks

CHANCE = 0.5
NUM_LENGTHS = 4
"""Number of groups of similar length at each place."""
MANY_QUESTIONS = 2000
"""Above this number of questions draws are computed to first order: the error is far below the width of an interval."""
ENTRIES_AT_ONCE = 1 << 21
"""Weights of items that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class LabelledItems:
    """Steps or traces with a label, and the question that each belongs to, numbered from 0."""

    is_right: BoolArray
    question: IntArray
    cell: IntArray
    """Place and length of the item, as one number."""

    def taken(self, chosen: BoolArray) -> "LabelledItems":
        """Return some of the items."""
        return LabelledItems(self.is_right[chosen], self.question[chosen], self.cell[chosen])


def question_draws(num_questions: int, draws: int, seed: int) -> FloatArray:
    """Return how often each question is drawn, (draws, questions), each row adding up to the number of questions."""
    generator = np.random.Generator(np.random.Philox(seed))
    drawn = np.empty((draws, num_questions), dtype=np.float64)
    for row in drawn:
        row[:] = np.bincount(generator.integers(0, num_questions, num_questions), minlength=num_questions)
    return drawn


def cells_of(place: Numbers, length: Numbers) -> IntArray:
    """Return the cell of each item; a cell holds a quarter of the items at one place, of similar length.

    >>> cells_of(np.array([0, 0, 0, 0, 1]), np.array([5, 40, 9, 22, 7]))
    array([0, 3, 1, 2, 6])
    """
    cell = np.zeros(len(place), dtype=np.int64)
    for number, each in enumerate(np.unique(place)):
        here = np.flatnonzero(place == each)
        share = (mean_ranks(length[here].astype(np.float64)) + 0.5) / len(here)
        cell[here] = number * NUM_LENGTHS + np.floor(share * NUM_LENGTHS).astype(np.int64)
    return cell


def area_across(score: FloatArray, items: LabelledItems, drawn: FloatArray, *, fixed: bool = False) -> Estimate:
    """Return the area over all pairs, or over pairs of the same cell (fixed); items without a score do not count."""
    finite = np.isfinite(score)
    items, score = items.taken(finite), score[finite]
    cell = items.cell if fixed else np.zeros(len(score), dtype=np.int64)
    runs = _Runs.of(score, cell)
    right = items.is_right[runs.order].astype(np.float64)
    wins, pairs = runs.weighted(right[None], 1 - right[None])
    question = items.question[runs.order]
    if not pairs[0]:
        found = np.zeros(0)
    elif drawn.shape[1] > MANY_QUESTIONS:
        # To first order in how often questions are drawn: one pass for all draws.
        area = float(_ratio(wins, pairs)[0])
        item_wins, item_pairs = runs.of_items(right)
        slope = np.bincount(question, item_wins - area * item_pairs, drawn.shape[1]) / (item_pairs.sum() / 2)
        found = area + drawn @ slope
    else:
        found = np.full(len(drawn), np.nan)
        step = max(1, ENTRIES_AT_ONCE // max(len(right), 1))
        for start in range(0, len(drawn), step):
            weight = drawn[start : start + step][:, question]
            found[start : start + step] = _ratio(*runs.weighted(weight * right, weight * (1 - right)))
    return _area(wins[0], pairs[0], found)


def area_within(score: FloatArray, items: LabelledItems, drawn: FloatArray, *, fixed: bool = False) -> Estimate:
    """Return the area over pairs of the same question, or of the same question and cell (fixed)."""
    finite = np.isfinite(score)
    items, score = items.taken(finite), score[finite]
    num_cells = int(items.cell.max(initial=0)) + 1 if fixed else 1
    group = items.question * num_cells + (items.cell if fixed else 0)
    runs = _Runs.of(score, group)
    right = items.is_right[runs.order].astype(np.float64)[None]
    wins, pairs = runs.by_group(right, 1 - right)
    question = runs.group_key // num_cells
    total = [np.bincount(question, each[0], drawn.shape[1]) for each in (wins, pairs)]
    return _area(float(total[0].sum()), float(total[1].sum()), _ratio(drawn @ total[0], drawn @ total[1]))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Items in the order of group and score, cut into runs of items with equal group and score."""

    order: IntArray
    start: IntArray
    """Index of the first item of each run."""
    first_run: IntArray
    """The first run of each group."""
    group_key: IntArray

    @classmethod
    def of(cls, score: FloatArray, group: IntArray) -> "_Runs":
        order = np.lexsort((score, group))
        ordered, keys = score[order], group[order]
        new_group = np.concatenate([[True], keys[1:] != keys[:-1]]) if len(order) else np.zeros(0, np.bool_)
        new_run = new_group | np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(order) else new_group
        start, first = np.flatnonzero(new_run), np.flatnonzero(new_group)
        return cls(order, start, np.searchsorted(start, first), keys[first])

    def by_group(self, right: FloatArray, wrong: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the won pairs and all pairs of each group, (draws, groups), from the weights of items in order."""
        if not len(self.start):
            none = np.zeros((len(right), 0))
            return none, none
        rights, wrongs = (np.add.reduceat(each, self.start, axis=1) for each in (right, wrong))
        below = np.cumsum(wrongs, axis=1) - wrongs
        sizes = np.diff(np.append(self.first_run, len(self.start)))
        below -= np.repeat(below[:, self.first_run], sizes, axis=1)
        wins = np.add.reduceat(rights * (below + wrongs / 2), self.first_run, axis=1)
        totals = [np.add.reduceat(each, self.first_run, axis=1) for each in (rights, wrongs)]
        return wins, totals[0] * totals[1]

    def of_items(self, right: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return for each item, in order, the number of its pairs that are won, and the number of its pairs."""
        rights, wrongs = (np.add.reduceat(each, self.start) for each in (right, 1 - right))
        sizes = np.diff(np.append(self.first_run, len(self.start)))
        upto = [np.cumsum(each) for each in (rights, wrongs)]
        before = [
            np.repeat((each - own)[self.first_run], sizes) for each, own in zip(upto, (rights, wrongs), strict=True)
        ]
        total = [np.repeat(np.add.reduceat(each, self.first_run), sizes) for each in (rights, wrongs)]
        below = upto[1] - wrongs - before[1] + wrongs / 2
        above = total[0] - (upto[0] - before[0]) + rights / 2
        run = np.repeat(np.arange(len(self.start)), np.diff(np.append(self.start, len(right))))
        is_right = right > 0
        return np.where(is_right, below[run], above[run]), np.where(is_right, total[1][run], total[0][run])

    def weighted(self, right: FloatArray, wrong: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the won pairs and all pairs over all groups, (draws,)."""
        wins, pairs = self.by_group(right, wrong)
        return wins.sum(axis=1), pairs.sum(axis=1)


def _ratio(wins: FloatArray, pairs: FloatArray) -> FloatArray:
    ratio: FloatArray = np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return ratio


def _area(wins: float, pairs: float, draws: FloatArray) -> Estimate:
    found = draws[np.isfinite(draws)]
    area = float(wins / pairs) if pairs else np.nan
    return Estimate.from_draws(area, found, round(float(pairs)), p_value=two_sided(area, CHANCE, found))


def two_sided(found: float, chance: float, draws: FloatArray) -> float:
    """Return the two-sided p-value against chance, by a normal distribution with the draws' spread; NaN without draws.

    >>> round(two_sided(0.6, 0.5, np.array([0.55, 0.65])), 4)
    0.0455
    """
    if not len(draws):
        return np.nan
    distance, spread = abs(found - chance), float(draws.std())
    if not spread:
        return 0.0 if distance else 1.0
    return math.erfc(distance / spread / math.sqrt(2))


# ---------------------------------------------------------------- the first wrong step
# ProcessBench's F1: the judge calls the first step with a score at or below a threshold wrong. Without such a step the
# judge calls the trace right. F1 is the harmonic mean of two shares: wrong traces whose first wrong step is found
# exactly, and right traces in which no step is called wrong.


CHANCES = np.linspace(0.0005, 0.9995, 1000)
"""Probabilities that are tried for a blind judge."""


@dataclass(frozen=True, slots=True)
class LabelledTraces:
    """Traces with their first wrong step, and the question that each belongs to, numbered from 0."""

    offsets: IntArray
    """(n + 1,) index of each trace's first step in a flat column, and the number of all steps."""
    first_wrong: IntArray
    """Number of the first wrong step, from 0; -1 for a right trace."""
    question: IntArray

    @property
    def is_wrong(self) -> BoolArray:
        return self.first_wrong >= 0


def find_first_errors(score: FloatArray, traces: LabelledTraces, drawn: FloatArray, seed: int) -> Estimate:
    """Return the F1 of a flat column of step scores; a step with a small score is suspect, one without a score is not.

    The seed splits questions into two halves. Each half is judged by the threshold that is best on the other half.
    drawn holds how often each question is drawn, (draws, questions).
    """
    least, most = _hit_ranges(score, traces)
    num_questions = drawn.shape[1]
    half = (np.random.Generator(np.random.Philox(seed)).permutation(num_questions) % 2 == 0)[traces.question]
    hit = np.zeros(len(traces.question), dtype=np.bool_)
    for mine in (half, ~half):
        threshold = _best_threshold(least[~mine], most[~mine], traces.is_wrong[~mine])
        hit[mine] = (least[mine] <= threshold) & (threshold < most[mine])
    counts = []
    for label in (traces.is_wrong, ~traces.is_wrong):
        both = (np.bincount(traces.question[each], minlength=num_questions) for each in (hit & label, label))
        counts.append([each.astype(np.float64) for each in both])
    draws = _harmonic(*(_ratio(drawn @ hits, drawn @ number) for hits, number in counts))
    found, alone = (_ratio(hits.sum(keepdims=True), number.sum(keepdims=True)) for hits, number in counts)
    return Estimate.from_draws(float(_harmonic(found, alone)[0]), draws[np.isfinite(draws)], len(traces.question))


def chance_of_first_errors(traces: LabelledTraces) -> float:
    """Return the F1 of a judge that calls each step wrong with the same probability, for the best probability.

    With probability q, the judge finds the wrong step i (from 0) with q (1 - q)^i, and calls a right trace of n steps
    right with (1 - q)^n. The judge never finds a wrong answer after right steps.
    """
    num_steps, is_wrong = np.diff(traces.offsets), traces.is_wrong
    before = traces.first_wrong[is_wrong & (traces.first_wrong < num_steps)]
    steps = num_steps[~is_wrong]
    if not is_wrong.any() or not len(steps):
        return np.nan
    found = np.array([(q * (1 - q) ** before).sum() for q in CHANCES]) / is_wrong.sum()
    alone = np.array([((1 - q) ** steps).mean() for q in CHANCES])
    return float(_harmonic(found, alone).max())


def _hit_ranges(score: FloatArray, traces: LabelledTraces) -> tuple[FloatArray, FloatArray]:
    """Return (least, most): a threshold t judges a trace correctly if least <= t < most."""
    scored = np.where(np.isfinite(score), score, np.inf)
    num_traces = len(traces.first_wrong)
    least, most = np.full(num_traces, -np.inf), np.full(num_traces, np.inf)
    for trace, wrong in enumerate(traces.first_wrong.tolist()):
        steps = scored[traces.offsets[trace] : traces.offsets[trace + 1]]
        before = steps if wrong < 0 else steps[:wrong]
        most[trace] = before.min(initial=np.inf)
        if wrong >= 0:
            least[trace] = steps[wrong] if wrong < len(steps) else np.inf
    return least, most


def _best_threshold(least: FloatArray, most: FloatArray, is_wrong: BoolArray) -> float:
    """Return the threshold with the best F1. The scores of wrong steps are enough to try."""
    can_hit = is_wrong & (least < most)
    tried = np.unique(least[can_hit])
    if not len(tried) or is_wrong.all():
        return -np.inf
    starts, ends, lowest = np.sort(least[can_hit]), np.sort(most[can_hit]), np.sort(most[~is_wrong])
    found = np.searchsorted(starts, tried, "right") - np.searchsorted(ends, tried, "right")
    alone = len(lowest) - np.searchsorted(lowest, tried, "right")
    return float(tried[np.argmax(_harmonic(found / is_wrong.sum(), alone / len(lowest)))])


def _harmonic(one: FloatArray, other: FloatArray) -> FloatArray:
    total = one + other
    # The mean of two zeros is 0; NaN stays NaN.
    mean: FloatArray = np.divide(2 * one * other, total, out=np.where(total == 0, 0.0, np.nan), where=total > 0)
    return mean
