"""GRACE: from Grams to step scores to values. Knows Grams and settings, no files.

V is affine in alpha, so one pass over the Grams gives the values for every alpha: the mean over all K steps is
``first + alpha * answer + (1 - alpha) * history``, where first is a_1 / K and the others are sums over k > 1
of a_k / K and h_k / K. Scoring uses the same formula, so that a score and a sweep agree to the last bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from grace_store.base.arrays import FlagArray, FloatArray, IntArray, Numbers, offsets_of, sum_by_sample
from grace_store.base.errors import SettingError
from grace_store.base.states import Flag
from grace_store.values.alignment import Cosines, History, Target, history_cosines, point_one_way, target_cosines
from grace_store.values.gram import Block, GramColumns, is_step, pack
from grace_store.values.methods.method import Aggregation, ScoreSpec, check_alpha, parse_aggregation


@dataclass(frozen=True, slots=True)
class RaggedScores:
    """The scores of n samples; steps are flat, and sample i owns offsets[i]..offsets[i + 1]."""

    step_score: FloatArray
    answer_alignment: FloatArray
    history_alignment: FloatArray
    """NaN at each sample's first step."""
    value: FloatArray
    """(n,)"""
    flags: FlagArray
    """(n,), bits of Flag."""
    offsets: IntArray
    """(n + 1,), from 0 to the number of steps."""

    @classmethod
    def empty(cls, num_steps: Numbers) -> Self:
        """Return arrays that are still to be filled."""
        offsets = offsets_of(num_steps)
        steps = (np.empty(int(offsets[-1])) for _ in range(3))
        flags = np.empty(len(num_steps), dtype=np.uint8)
        return cls(next(steps), next(steps), next(steps), np.empty(len(num_steps)), flags, offsets)


@dataclass(frozen=True, slots=True)
class AlignmentMeans:
    """The mean alignments of n samples, which give the values for several histories and any alpha."""

    first: FloatArray
    """a_1 / K, (n,)."""
    answer: FloatArray
    """The sum over k > 1 of a_k / K, (n,)."""
    history: FloatArray
    """The sum over k > 1 of h_k / K, (histories, n)."""
    flags: FlagArray
    """(histories, n), bits of Flag."""

    def value(self, history: int, alpha: float) -> FloatArray:
        """Return the values (n,) for the history with this index and one alpha."""
        return _balance(self.first, self.answer, self.history[history], check_alpha(alpha))


def _balance(first: FloatArray, answer: FloatArray, history: FloatArray, alpha: float) -> FloatArray:
    return (first + alpha * answer) + (1.0 - alpha) * history


def alignment_means(
    num_steps: Numbers, packed: Numbers, num_tokens: Numbers, histories: Sequence[History], target: Target = "answer"
) -> AlignmentMeans:
    """Return the mean alignments for these histories in one pass.

    num_steps is (n,); the packed Grams and token counts of consecutive samples are concatenated, answers last.
    """
    block = Block(num_steps, packed, num_tokens, tokens=target != "answer")
    num, shape = len(num_steps), (len(histories), len(num_steps))
    means = AlignmentMeans(np.empty(num), np.empty(num), np.empty(shape), np.empty(shape, dtype=np.uint8))
    for chunk in block.chunks():
        answer = target_cosines(chunk.gram, target)
        first, rest = _answer_means(chunk.gram, answer)
        means.first[chunk.sample], means.answer[chunk.sample] = first[1:], rest[1:]
        for index, history in enumerate(histories):
            past = history_cosines(chunk.gram, history)
            means.history[index, chunk.sample] = _history_mean(chunk.gram, past)[1:]
            means.flags[index, chunk.sample] = _flags(answer, past)
    means.first[block.not_finite] = np.nan
    means.flags[:, block.not_finite] = Flag.NOT_FINITE
    return means


def score_ragged(
    num_steps: Numbers,
    packed: Numbers,
    num_tokens: Numbers,
    spec: ScoreSpec,
    *,
    custom_history: History | None = None,
    target_cosine: FloatArray | None = None,
) -> RaggedScores:
    """Score consecutive samples with any numbers of steps.

    num_steps is (n,); the packed Grams and token counts are concatenated, answers last. custom_history, which only
    Python can give, replaces the history of the spec. target_cosine, one number for each step, replaces the cosines
    with the target, if the target is outside the sample.

    >>> scores = score_ragged(np.array([1]), np.array([4.0, 3.0, 9.0]), np.array([5, 2]), ScoreSpec())
    >>> scores.value, scores.offsets
    (array([0.5]), array([0, 1]))
    """
    block = Block(num_steps, packed, num_tokens)
    scores = RaggedScores.empty(num_steps)
    for chunk in block.chunks():
        gram, sample = chunk.gram, chunk.sample
        if target_cosine is None:
            answer = target_cosines(gram, spec.target)
        else:
            met_none = np.zeros(len(gram.num_steps), dtype=np.bool_)
            answer = Cosines(chunk.columns_of(target_cosine, scores.offsets), met_none)
        past = history_cosines(gram, spec.history if custom_history is None else custom_history)
        step_score, later_answer = answer.value.copy(), answer.value[1:]
        step_score[1:] = past.value
        if not spec.without_answer:
            step_score[1:] = spec.alpha * later_answer + (1.0 - spec.alpha) * past.value
        scores.value[sample] = _balance(*_answer_means(gram, answer), _history_mean(gram, past), spec.alpha)[1:]
        scores.flags[sample] = _flags(answer, past)
        scores.flags[sample] |= point_one_way(gram)[1:] * np.uint8(Flag.SAME_DIRECTION)

        step, column = np.nonzero(gram.present[:, 1:])
        place = scores.offsets[sample[column]] + step
        scores.step_score[place] = step_score[step, column + 1]
        scores.answer_alignment[place] = answer.value[step, column + 1]
        later = step > 0
        scores.history_alignment[place[later]] = past.value[step[later] - 1, column[later] + 1]
    scores.history_alignment[scores.offsets[:-1]] = np.nan
    if spec.without_answer:
        scores.step_score[scores.offsets[:-1]] = np.nan
    if spec.without_answer or spec.aggregation != "mean":
        step_tokens = num_tokens[is_step(num_steps)].astype(np.float64)
        scores.value[:] = aggregate(
            scores.step_score, block.num_steps, step_tokens, parse_aggregation(spec.aggregation)
        )
    scores.flags[:] |= np.isnan(scores.value) * np.uint8(Flag.NO_VALUE)
    if (bad := block.not_finite).any():
        for found in (scores.step_score, scores.answer_alignment, scores.history_alignment):
            found[np.repeat(bad, np.diff(scores.offsets))] = np.nan
        scores.value[bad] = np.nan
        scores.flags[bad] = Flag.NOT_FINITE
    return scores


def score_grams(grams: Sequence[FloatArray], num_tokens: Sequence[Numbers], spec: ScoreSpec) -> RaggedScores:
    """Score samples from their full Grams, each (K + 1, K + 1), and their segments' token counts.

    >>> score_grams([np.array([[4.0, 3.0], [3.0, 9.0]])], [np.array([5, 2])], ScoreSpec()).answer_alignment
    array([0.5])
    """
    num_steps = np.array([len(gram) - 1 for gram in grams], dtype=np.int64)
    packed = np.concatenate([pack(gram[None])[0] for gram in grams])
    return score_ragged(num_steps, packed, np.concatenate(list(num_tokens)), spec)


def _flags(answer: Cosines, past: Cosines) -> FlagArray:
    flags = (answer.met_zero | past.met_zero) * np.uint8(Flag.ZERO_VECTOR)
    flags |= (answer.met_rough | past.met_rough) * np.uint8(Flag.CANCELLING)
    return flags[1:]


def _answer_means(gram: GramColumns, answer: Cosines) -> tuple[FloatArray, FloatArray]:
    return answer.value[0] / gram.num_steps, answer.value[1:].sum(axis=0) / gram.num_steps


def _history_mean(gram: GramColumns, past: Cosines) -> FloatArray:
    return np.asarray(past.value.sum(axis=0) / gram.num_steps)


def aggregate(
    step_score: FloatArray, num_steps: IntArray, num_tokens: FloatArray, aggregation: Aggregation
) -> FloatArray:
    """Return one value for each sample, (n,), from the scores and token counts of its steps, both flat.

    Steps without a score (NaN) do not count. A quantile between two scores is interpolated. A sample without steps
    that count, or without tokens if tokens are the weights, has no value: NaN.

    >>> by_length = parse_aggregation("length_weighted")
    >>> aggregate(np.array([1.0, 4.0]), np.array([2]), np.array([2.0, 1.0]), by_length)
    array([2.])
    """
    known = np.isfinite(step_score)
    kept = step_score if known.all() else np.where(known, step_score, 0.0)
    if aggregation.kind == "mean" and known.all():
        return ratio(sum_by_sample(num_steps, kept), num_steps.astype(np.float64))
    if aggregation.kind in ("mean", "length_weighted"):
        weight = known * (num_tokens if aggregation.kind == "length_weighted" else 1.0)
        return ratio(sum_by_sample(num_steps, kept * weight), sum_by_sample(num_steps, weight))
    offsets = offsets_of(num_steps)
    if aggregation.kind == "last":
        # The last step that counts: no step after it does.
        number = np.where(known, np.arange(len(known)), -1)
        last = np.maximum.reduceat(number, offsets[:-1]) if len(num_steps) else number
        return np.where(last >= offsets[:-1], step_score[last], np.nan)
    score = np.where(known, step_score, np.nan)
    if aggregation.kind == "min":
        return np.fmin.reduceat(score, offsets[:-1]) if len(num_steps) else score
    # One row for each sample; steps that are missing or have no score are sorted to its end.
    ordered = np.full((len(num_steps), int(num_steps.max(initial=1))), np.nan)
    ordered[np.arange(ordered.shape[1]) < num_steps[:, None]] = score
    ordered.sort(axis=1)
    last = np.maximum(sum_by_sample(num_steps, known).astype(np.int64) - 1, 0)
    place, sample = aggregation.quantile * last, np.arange(len(num_steps))
    below = place.astype(np.int64)
    low, high = ordered[sample, below], ordered[sample, np.minimum(below + 1, last)]
    return np.asarray(low + (place - below) * (high - low))


def ratio(total: FloatArray, weight: FloatArray) -> FloatArray:
    """Return total / weight; NaN where the weight is 0."""
    return np.divide(total, weight, out=np.full_like(total, np.nan), where=weight > 0)


ADDED_UP = ("mean", "last", "length_weighted")
"""Aggregations with weights of steps that do not depend on scores; those of min and quantiles do."""


def value_parts(
    spec: ScoreSpec, num_steps: IntArray, step_tokens: Numbers | None, answer: FloatArray, history: FloatArray
) -> FloatArray | None:
    """Return (2, n): the parts of each value from the answer and from history; None if values are not such a sum.

    Alignments and tokens of steps are flat. A first step has no history, so its score is alignment with the answer.

    >>> parts = value_parts(ScoreSpec(), np.array([2]), None, np.array([0.5, 1.0]), np.array([np.nan, 0.5]))
    >>> parts.round(3).tolist()
    [[0.6], [0.075]]
    """
    how = spec.step_aggregation.kind
    if how not in ADDED_UP or (how == "length_weighted" and step_tokens is None):
        return None
    starts = np.repeat(offsets_of(num_steps)[:-1], num_steps)
    place = np.arange(len(starts)) - starts  # number of every step in its sample, from 0
    is_first = place == 0
    counts = ~is_first if spec.without_answer else np.ones(len(place), dtype=np.bool_)
    if how == "last":
        counts &= place == np.repeat(num_steps, num_steps) - 1
    weight = counts.astype(np.float64)
    if step_tokens is not None and how == "length_weighted":
        weight *= step_tokens.astype(np.float64)
    weight = ratio(weight, np.repeat(sum_by_sample(num_steps, weight), num_steps))
    alpha = 0.0 if spec.without_answer else spec.alpha
    of_answer = np.where(is_first, 0.0 if spec.without_answer else 1.0, alpha)
    return np.stack(
        [
            sum_by_sample(num_steps, weight * of_answer * answer),
            sum_by_sample(num_steps, np.where(is_first, 0.0, weight * (1 - alpha) * history)),
        ]
    )


def combine_signals(values: FloatArray, weights: Sequence[float] | None = None) -> FloatArray:
    """Return the weighted mean over signals of values (signals, ...), equal weights unless given.

    A sample without a value in one signal has none.

    >>> combine_signals(np.array([[0.0, 1.0], [1.0, np.nan]]), [1, 3])
    array([0.75,  nan])
    """
    weight = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weight.shape != (len(values),):
        raise SettingError(
            f"{len(weight)} weights were given for {len(values)} signals: give one weight per signal, or no weights"
        )
    if not (np.isfinite(weight).all() and (weight > 0).all()):
        raise SettingError(f"signal weights {weight.tolist()} are not all finite and above 0")
    total = np.zeros(values.shape[1:])
    for share, value in zip(weight / weight.sum(), values, strict=True):
        total += share * value
    return total


def placed(values: FloatArray, place: IntArray | None, num_samples: int) -> FloatArray:
    """Return an array of num_samples on the last axis with values at these places, NaN elsewhere; None for all places.

    >>> placed(np.array([1.0, 2.0]), np.array([0, 2]), 3)
    array([ 1., nan,  2.])
    """
    if place is None:
        return values
    out = np.full((*values.shape[:-1], num_samples), np.nan)
    out[..., place] = values
    return out


def combine_scores(
    num_steps: Numbers, parts: Sequence[RaggedScores], places: Sequence[IntArray | None], weights: Sequence[float]
) -> RaggedScores:
    """Return the weighted mean of signals' scores; a sample that a signal lacks has a flag, and NaN for all scores."""
    if len(parts) == 1 and places[0] is None:
        return parts[0]
    scores = RaggedScores.empty(num_steps)
    num_samples = len(num_steps)
    scores.flags[:] = 0
    missing = np.zeros(num_samples, dtype=np.bool_)
    steps = []
    for part, place in zip(parts, places, strict=True):
        mine = slice(None) if place is None else place
        has = np.zeros(num_samples, dtype=np.bool_)
        has[mine] = True
        missing |= ~has
        scores.flags[mine] |= part.flags
        steps.append(None if place is None else np.flatnonzero(np.repeat(has, np.diff(scores.offsets))))
    scores.flags[missing] |= np.uint8(Flag.MISSING_SIGNAL)
    total = int(scores.offsets[-1])
    for name in ("step_score", "answer_alignment", "history_alignment"):
        each = [placed(getattr(part, name), step, total) for part, step in zip(parts, steps, strict=True)]
        getattr(scores, name)[:] = combine_signals(np.stack(each), weights)
    values = [placed(part.value, place, num_samples) for part, place in zip(parts, places, strict=True)]
    scores.value[:] = combine_signals(np.stack(values), weights)
    return scores
