"""What GRACE's values are made of: a part from the answer and a part from history that add up to each value."""

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray, Numbers, offsets_of, sum_by_sample
from grace_store.values.methods.method import ScoreSpec

ADDED_UP = ("mean", "last", "length_weighted")
"""Aggregations that weigh steps by what is known before their scores; min and quantiles look at the scores."""


def value_parts(
    spec: ScoreSpec, num_steps: IntArray, step_tokens: Numbers | None, answer: FloatArray, history: FloatArray
) -> FloatArray | None:
    """Return (2, n): what the alignments with answer and history add to each value; None if values are no such sum.

    Alignments and tokens of steps lie flat. A first step has no history: all of its score is alignment with the answer.

    >>> parts = value_parts(ScoreSpec(), np.array([2]), None, np.array([0.5, 1.0]), np.array([np.nan, 0.5]))
    >>> parts.round(3).tolist()
    [[0.6], [0.075]]
    """
    weight = _step_weights(spec, num_steps, step_tokens)
    if weight is None:
        return None
    is_first = _place_in_sample(num_steps) == 0
    alpha = 0.0 if spec.without_answer else spec.alpha
    of_answer = np.where(is_first, 0.0 if spec.without_answer else 1.0, alpha)
    return np.stack(
        [
            sum_by_sample(num_steps, weight * of_answer * answer),
            sum_by_sample(num_steps, np.where(is_first, 0.0, weight * (1 - alpha) * history)),
        ]
    )


def _step_weights(spec: ScoreSpec, num_steps: IntArray, step_tokens: Numbers | None) -> FloatArray | None:
    """Return how much each step counts in its sample's value; None where that is not known without the scores."""
    if spec.aggregation not in ADDED_UP or (spec.aggregation == "length_weighted" and step_tokens is None):
        return None
    place = _place_in_sample(num_steps)
    counts = (place > 0) if spec.without_answer else np.ones(len(place), dtype=np.bool_)
    if spec.aggregation == "last":
        counts &= place == np.repeat(num_steps, num_steps) - 1
    weight = counts.astype(np.float64)
    if step_tokens is not None and spec.aggregation == "length_weighted":
        weight *= step_tokens.astype(np.float64)
    total = np.repeat(sum_by_sample(num_steps, weight), num_steps)
    shares: FloatArray = np.divide(weight, total, out=np.full(len(weight), np.nan), where=total > 0)
    return shares


def _place_in_sample(num_steps: IntArray) -> IntArray:
    """Return the number of every step in its sample, from 0."""
    starts = np.repeat(offsets_of(num_steps)[:-1], num_steps)
    return np.arange(len(starts)) - starts
