"""How well scores tell right from wrong: areas under the ROC over chosen pairs, with intervals over questions.

An area is the share of pairs of a right and a wrong item in which the right item has the larger score; a tie counts
half, and 0.5 is chance. Only pairs inside one cell are compared, so that place and length do not differ within a pair.
Intervals are over whole questions, because items of one question are not independent. numpy only.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray, Numbers
from grace_store.base.finding import Estimate
from grace_store.values.intervals import estimate, ratio_over_questions, sums_by_question
from grace_store.values.length_bias import mean_ranks
from grace_store.values.ranking import comparable, stable_order

CHANCE = 0.5
NUM_LENGTHS = 4
"""Number of groups of similar length at each place."""


@dataclass(frozen=True, slots=True)
class LabelledItems:
    """Steps or traces with a label, and the question that each belongs to, numbered from 0."""

    is_right: BoolArray
    question: IntArray
    cell: IntArray
    """Place and length of the item, as one number."""

    def taken(self, chosen: BoolArray) -> "LabelledItems":
        return LabelledItems(self.is_right[chosen], self.question[chosen], self.cell[chosen])


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


def area_across(score: FloatArray, items: LabelledItems, *, fixed: bool = False) -> Estimate:
    """Return the area over all pairs, or over pairs of the same cell (fixed); items without a score do not count."""
    finite = np.isfinite(score)
    items, score = items.taken(finite), comparable(score, items.question)[finite]
    runs = _Runs.of(score, items.cell if fixed else np.zeros(len(score), dtype=np.int64))
    wins, pairs = runs.of_items(items.is_right[runs.order].astype(np.float64))
    num_pairs = float(pairs.sum()) / 2  # each pair is counted at both of its items
    area = float(wins.sum()) / 2 / num_pairs if num_pairs else math.nan
    parts = sums_by_question(items.question[runs.order], [(wins - area * pairs) / num_pairs if num_pairs else pairs])[0]
    return estimate(area, parts, round(num_pairs), scale="share", chance=CHANCE)


def area_within(score: FloatArray, items: LabelledItems, *, fixed: bool = False) -> Estimate:
    """Return the area over pairs of the same question, or of the same question and cell (fixed)."""
    finite = np.isfinite(score)
    items, score = items.taken(finite), comparable(score, items.question)[finite]
    num_cells = int(items.cell.max(initial=0)) + 1 if fixed else 1
    runs = _Runs.of(score, items.question * num_cells + (items.cell if fixed else 0))
    counts = runs.of_items(items.is_right[runs.order].astype(np.float64))
    won, pairs = sums_by_question(items.question[runs.order], [each / 2 for each in counts])
    return ratio_over_questions(won, pairs, round(float(pairs.sum())), chance=CHANCE)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Items in the order of group and score, cut into runs of items with equal group and score."""

    order: IntArray
    start: IntArray
    """Index of the first item of each run."""
    first_run: IntArray
    """The first run of each group."""

    @classmethod
    def of(cls, score: FloatArray, group: IntArray) -> "_Runs":
        order = stable_order(score)
        order = order[stable_order(group[order])]
        ordered, keys = score[order], group[order]
        new_group = np.concatenate([[True], keys[1:] != keys[:-1]]) if len(order) else np.zeros(0, np.bool_)
        new_run = new_group | np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(order) else new_group
        start, first = np.flatnonzero(new_run), np.flatnonzero(new_group)
        return cls(order, start, np.searchsorted(start, first))

    def of_items(self, right: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return for each item, in order, the number of its pairs that are won, and the number of its pairs."""
        if not len(right):
            return right, right
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


# ---------------------------------------------------------------- the first wrong step
# ProcessBench's F1: the judge calls the first step with a score at or below a threshold wrong. Without such a step the
# judge calls the trace right. F1 is the harmonic mean of two shares: wrong traces whose first wrong step is found
# exactly, and right traces in which no step is called wrong.


CHANCES = np.linspace(0.0005, 0.9995, 1000)
"""Probabilities that are tried for a blind judge."""


@dataclass(frozen=True)
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

    @cached_property
    def blind_f1(self) -> float:
        """The F1 of a blind judge."""
        return chance_of_first_errors(self)


def find_first_errors(score: FloatArray, traces: LabelledTraces, seed: int) -> Estimate:
    """Return the F1 of a flat column of step scores; a step with a small score is suspect, one without a score is not.

    The seed splits questions into two halves. Each half is judged by the threshold that is best on the other half. The
    p-value is against a blind judge.
    """
    least, most = _hit_ranges(score, traces)
    num_questions = int(traces.question.max(initial=-1)) + 1
    half = (np.random.Generator(np.random.Philox(seed)).permutation(num_questions) % 2 == 0)[traces.question]
    hit = np.zeros(len(traces.question), dtype=np.bool_)
    for mine in (half, ~half):
        threshold = _best_threshold(least[~mine], most[~mine], traces.is_wrong[~mine])
        hit[mine] = (least[mine] <= threshold) & (threshold < most[mine])
    labels = (traces.is_wrong, ~traces.is_wrong)
    shares = np.array([hit[label].mean() if label.any() else np.nan for label in labels])
    value = float(_harmonic(*shares[:, None])[0])
    # The slopes of a harmonic mean of two shares are twice the squared shares of the other in their sum.
    slopes = 2 * (shares[::-1] / shares.sum()) ** 2 if shares.sum() > 0 else np.zeros(2)
    terms = zip(slopes, shares, labels, strict=True)
    part = sum(slope * label * (hit - share) / max(label.sum(), 1) for slope, share, label in terms)
    parts = sums_by_question(traces.question, [np.asarray(part)])[0]
    return estimate(value, parts, len(traces.question), scale="share", chance=traces.blind_f1)


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
    return float(_harmonic(found, np.array([((1 - q) ** steps).mean() for q in CHANCES])).max())


def _hit_ranges(score: FloatArray, traces: LabelledTraces) -> tuple[FloatArray, FloatArray]:
    """Return (least, most): a threshold t judges a trace correctly if least <= t < most."""
    scored = np.where(np.isfinite(score), comparable(score), np.inf)
    num_traces = len(traces.first_wrong)
    least, most = np.full(num_traces, -np.inf), np.full(num_traces, np.inf)
    for trace, wrong in enumerate(traces.first_wrong.tolist()):
        steps = scored[traces.offsets[trace] : traces.offsets[trace + 1]]
        most[trace] = (steps if wrong < 0 else steps[:wrong]).min(initial=np.inf)
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
    return np.asarray(np.divide(2 * one * other, total, out=np.where(total == 0, 0.0, np.nan), where=total > 0))
