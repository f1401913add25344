"""ProcessBench's F1: does a score find the first wrong step, and find none where there is none? numpy only.

The first step whose score is at or below a threshold is taken for the wrong one; without such a step the trace is
taken for right. F1 is the harmonic mean of two shares: wrong traces whose first wrong step is found exactly, and right
traces where nothing is found.
"""

from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.base.finding import Estimate

CHANCES = np.linspace(0.0005, 0.9995, 1000)
"""Shares of steps that a blind judge might call wrong."""


@dataclass(frozen=True, slots=True)
class LabelledTraces:
    """Traces with their first wrong step, and the question that each belongs to, numbered from 0."""

    offsets: IntArray
    """Where each one's steps begin in a flat column, and where the last ones end."""
    first_wrong: IntArray
    """From 0; -1 without one."""
    question: IntArray

    @property
    def is_wrong(self) -> BoolArray:
        return self.first_wrong >= 0


def find_first_errors(score: FloatArray, traces: LabelledTraces, drawn: FloatArray, seed: int) -> Estimate:
    """Return the F1 of a flat column of step scores, small where a step is suspect; a step without one is not.

    Questions are split into two halves by the seed. Each half is judged by the threshold that is best on the other.
    drawn says how often each question is drawn, (draws, questions).
    """
    least, most = _hit_ranges(score, traces)
    half = _halves(drawn.shape[1], seed)[traces.question]
    hit = np.zeros(len(traces.question), dtype=np.bool_)
    for mine in (half, ~half):
        threshold = _best_threshold(least[~mine], most[~mine], traces.is_wrong[~mine])
        hit[mine] = (least[mine] <= threshold) & (threshold < most[mine])
    counts = [_by_question(traces, drawn.shape[1], *each) for each in _shares(traces.is_wrong, hit)]
    draws = _harmonic(*(_share(drawn @ hits, drawn @ number) for hits, number in counts))
    found, alone = (_share(hits.sum(keepdims=True), number.sum(keepdims=True)) for hits, number in counts)
    return Estimate.from_draws(float(_harmonic(found, alone)[0]), draws[np.isfinite(draws)], len(traces.question))


def chance_of_first_errors(traces: LabelledTraces) -> float:
    """Return the F1 of a judge that calls each step wrong by the same chance, whichever chance is best.

    With chance q, the wrong step i (from 0) is the first that is called so with q (1 - q)^i, and a right trace of n
    steps is left alone with (1 - q)^n. A wrong answer after right steps is never found.
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
    """Return (least, most): a trace is judged as labelled by every threshold t with least <= t < most."""
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
    """Return the threshold with the best F1; one that a wrong step just reaches, as no other can be better."""
    can_hit = is_wrong & (least < most)
    tried = np.unique(least[can_hit])
    if not len(tried) or is_wrong.all():
        return -np.inf
    starts, ends, lowest = np.sort(least[can_hit]), np.sort(most[can_hit]), np.sort(most[~is_wrong])
    found = np.searchsorted(starts, tried, "right") - np.searchsorted(ends, tried, "right")
    alone = len(lowest) - np.searchsorted(lowest, tried, "right")
    return float(tried[np.argmax(_harmonic(found / is_wrong.sum(), alone / len(lowest)))])


def _halves(num_questions: int, seed: int) -> BoolArray:
    half: BoolArray = np.random.Generator(np.random.Philox(seed)).permutation(num_questions) % 2 == 0
    return half


def _shares(is_wrong: BoolArray, hit: BoolArray) -> list[tuple[BoolArray, BoolArray]]:
    return [(hit & is_wrong, is_wrong), (hit & ~is_wrong, ~is_wrong)]


def _by_question(
    traces: LabelledTraces, num_questions: int, hit: BoolArray, counted: BoolArray
) -> tuple[FloatArray, FloatArray]:
    hits, number = (np.bincount(traces.question[each], minlength=num_questions) for each in (hit, counted))
    return hits.astype(np.float64), number.astype(np.float64)


def _share(hits: FloatArray, number: FloatArray) -> FloatArray:
    share: FloatArray = np.divide(hits, number, out=np.full(len(number), np.nan), where=number > 0)
    return share


def _harmonic(one: FloatArray, other: FloatArray) -> FloatArray:
    total = one + other
    # Where both are nothing their mean is nothing; what is unknown stays so.
    mean: FloatArray = np.divide(2 * one * other, total, out=np.where(total == 0, 0.0, np.nan), where=total > 0)
    return mean
