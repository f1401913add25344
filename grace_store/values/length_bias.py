"""How far values follow length, and values without the effect of length. numpy only.

There are three lengths: tokens in a step (the mean over a sample's steps), tokens in the response, and K. All measures
use their logarithms, so that doubling a length always counts the same.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray, Numbers
from grace_store.base.finding import Estimate
from grace_store.base.text import about, percent, percent_between
from grace_store.values.intervals import (
    ERROR,
    FEWEST_QUESTIONS,
    MAX_PARTS,
    Interval,
    number_parts,
    spread,
    sums_by_question,
    t_quantile,
)
from grace_store.values.ranking import Length, comparable, stable_order

LENGTHS: tuple[Length, ...] = ("step_length", "response_length", "num_steps")

RESOLUTION = 1e-9
"""A standard deviation below this is rounding: the numbers do not vary."""
MIN_AUDITED = 8
"""Least number of samples: with fewer, three lengths and a constant fit any values."""
MAX_RANKED = 1 << 22
"""Largest number of steps that are ranked; more steps are thinned out evenly."""


def residuals(values: FloatArray, lengths: Mapping[Length, FloatArray], control: Sequence[Length]) -> FloatArray:
    """Return the values without the part that is linear in the logarithms of some lengths; the mean stays the same.

    >>> tokens = np.array([10.0, 20.0, 40.0, 80.0])
    >>> residuals(np.log(tokens), {"response_length": tokens}, ["response_length"]).round(6)
    array([3.342306, 3.342306, 3.342306, 3.342306])
    """
    finite = np.isfinite(values)
    out = np.full(len(values), np.nan)
    if finite.any():
        found = values[finite]
        out[finite] = found.mean() + _without(found, [_log(lengths[name][finite]) for name in control])
    return out


def explained_by_lengths(
    values: FloatArray, lengths: Mapping[Length, FloatArray], question: IntArray | None = None
) -> tuple[Estimate, dict[Length, float]]:
    """Return R squared of the values on all lengths, and Pearson's correlation of the values with each length.

    Only samples with a value count. A correlation is with the logarithm of the length; NaN if one side does not vary.
    question has the number of each sample's question; None if every sample has a question of its own.
    """
    finite = np.isfinite(values)
    value = values if finite.all() else values[finite]
    logs = {name: _log(lengths[name][finite]) for name in LENGTHS if name in lengths}
    controlled = _without(value, list(logs.values()))
    pearson = {name: correlation(value, log) for name, log in logs.items()}
    variance = float(value.var()) if len(value) else 0.0
    explained = 1.0 - float(controlled.var()) / variance if variance > 0 else float("nan")
    mine = question if question is None or finite.all() else question[finite]
    low, high = _explained_interval(explained, [*logs.values(), value], mine)
    return Estimate(value=explained, low=low, high=high, num=len(value)), pearson


def _explained_interval(explained: float, columns: Sequence[FloatArray], question: IntArray | None) -> Interval:
    """Return the interval of R squared of the last column on the others; NaN for too few questions.

    R squared without each question in turn (the jackknife) gives its bias and, on Fisher's scale, its spread.
    """
    deviations = (column.std() if len(column) else 0.0 for column in columns)
    scaled = [
        (each - each.mean()) / scale for each, scale in zip(columns, deviations, strict=True) if scale > RESOLUTION
    ]
    if math.isnan(explained) or len(scaled) < 2:
        return math.nan, math.nan
    pairs = list(combinations_with_replacement([np.ones(len(columns[0])), *scaled], 2))
    place = number_parts(question, len(columns[0]))
    parts = np.array([np.bincount(place, one * other) for one, other in pairs])
    num = parts.shape[1]
    if num < FEWEST_QUESTIONS:
        return math.nan, math.nan
    without = _r_squared(parts.sum(axis=1, keepdims=True) - parts)
    fewer = min(explained, max(0.0, num * explained - (num - 1) * float(without.mean())))
    error, freedom = spread(-(num - 1) / num * _fisher(without))
    half_width = t_quantile(ERROR, freedom) * error
    low, high = (math.tanh(max(0.0, float(_fisher(fewer)) + by)) ** 2 for by in (-half_width, half_width))
    return low, max(high, explained)  # the bias of R squared is taken out of the interval, not of R squared itself


def _r_squared(sums: FloatArray) -> FloatArray:
    """Return R squared from sums of products, (products, n): upper triangles of matrices, 1 first, the value last."""
    size = (math.isqrt(8 * len(sums) + 1) - 1) // 2
    product = np.empty((sums.shape[1], size, size))
    for each, (i, j) in zip(sums, combinations_with_replacement(range(size), 2), strict=True):
        product[:, i, j] = product[:, j, i] = each
    centred = product[:, 1:, 1:] - product[:, 1:, :1] * product[:, :1, 1:] / product[:, :1, :1]
    target = centred[:, :-1, -1]
    weights = np.linalg.pinv(centred[:, :-1, :-1], rcond=1e-10, hermitian=True)
    return np.asarray(np.einsum("ni,nij,nj->n", target, weights, target) / centred[:, -1, -1])


def _fisher(r_squared: FloatArray | float) -> FloatArray:
    return np.asarray(np.arctanh(np.sqrt(np.clip(r_squared, 0.0, 1 - 1e-12))))


def length_measures(
    values: FloatArray, lengths: Mapping[Length, FloatArray], ratio: float = 0.2, question: IntArray | None = None
) -> dict[Length, dict[str, float]]:
    """Return measures of the values against each known length; correlations are NaN if one side is constant.

    pearson                      Pearson's correlation with the logarithm of the length
    spearman                     Spearman's correlation with the length
    partial                      Pearson's, after the other two lengths are removed from both sides
    spearman_after_control       Spearman's, after all three lengths are removed from the value
    kept_over_all                mean length of the best samples divided by that of all samples: 1 is no preference
    kept_over_all_after_control  the same, after all three lengths are removed from the value
    kept_by_chance               deviation from 1, to either side, that subsets chosen without regard to length stay
                                 within, with 95 % for all three lengths together
    ranks_by_chance              the same for spearman_after_control
    spread_after_control         Pearson's of the logarithm with the absolute controlled value: above 0, values of
                                 longer samples spread more
    curve_after_control          Pearson's of the controlled value with the squared distance of the logarithm from its
                                 mean
    spread_by_chance, curve_by_chance  the deviations of these two from 0 by chance, each alone

    ratio is the share of samples with the largest values. question is as for explained_by_lengths.
    """
    finite = np.isfinite(values)
    value, question = values[finite], None if question is None else question[finite]
    length = {name: lengths[name][finite] for name in LENGTHS if name in lengths}
    logs = {name: _log(each) for name, each in length.items()}
    controlled = _without(value, list(logs.values()))
    compared = [comparable(each, question) for each in (value, controlled)]
    kept, kept_after = (_largest(each, ratio) for each in compared)
    ranks, ranks_after = (mean_ranks(each) for each in compared)
    found: dict[Length, dict[str, float]] = {}
    for name in length:
        ranked = mean_ranks(length[name])
        others = [logs[other] for other in logs if other != name]
        away = logs[name] - logs[name].mean() if len(value) else logs[name]
        found[name] = {
            "pearson": correlation(value, logs[name]),
            "spearman": correlation(ranks, ranked),
            "partial": correlation(_without(value, others), _without(logs[name], others)),
            "spearman_after_control": correlation(ranks_after, ranked),
            "kept_over_all": kept_over_all(length[name], kept),
            "kept_over_all_after_control": kept_over_all(length[name], kept_after),
            "kept_by_chance": kept_by_chance(length[name], kept, question),
            "ranks_by_chance": correlation_by_chance(ranks_after, ranked, question, len(LENGTHS)),
            "spread_after_control": correlation(np.abs(controlled), logs[name]),
            "spread_by_chance": correlation_by_chance(np.abs(controlled), logs[name], question),
            "curve_after_control": correlation(controlled, away**2),
            "curve_by_chance": correlation_by_chance(controlled, away**2, question),
        }
    return found


def step_measures(step_score: FloatArray, step_tokens: Numbers, num_steps: Numbers) -> dict[str, float]:
    """Return correlations of step scores with the number of tokens in the step; both are flat over all samples.

    pooled         Pearson's with the logarithm, over all steps of all samples
    spearman       Spearman's, over all steps of all samples
    within_sample  Pearson's after the means of each sample are removed: do longer steps of one trace score higher?
    num_steps      number of steps with a score
    """
    logs = _log(step_tokens.astype(np.float64))
    finite = np.isfinite(step_score)
    sample = np.repeat(np.arange(len(num_steps)), num_steps.astype(np.int64))
    inside = [_centred(each[finite], sample[finite], len(num_steps)) for each in (step_score, logs)]
    score, log = step_score[finite], logs[finite]
    thin = slice(None, None, -(-len(score) // MAX_RANKED) or 1)
    return {
        "num_steps": len(score),
        "pooled": correlation(score, log),
        "spearman": rank_correlation(score[thin], log[thin]),
        "within_sample": correlation(*inside),
    }


def _centred(values: FloatArray, sample: Numbers, num_samples: int) -> FloatArray:
    count = np.maximum(np.bincount(sample, minlength=num_samples), 1)
    means = np.bincount(sample, values, num_samples) / count
    return np.asarray(values - means[sample])


def correlation(x: FloatArray, y: FloatArray) -> float:
    """Return Pearson's correlation of two finite arrays; NaN for fewer than two values, or if one does not vary.

    >>> round(correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 3.0])), 4)
    0.6547
    """
    if len(x) < 2:
        return float("nan")
    x, y = x - x.mean(), y - y.mean()
    if min(x @ x, y @ y) <= RESOLUTION**2 * len(x):
        return float("nan")
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def rank_correlation(x: FloatArray, y: FloatArray) -> float:
    """Return Spearman's correlation of two finite arrays; ties share their mean rank.

    >>> rank_correlation(np.array([1.0, 5.0, 9.0]), np.array([1.0, 2.0, 40.0]))
    1.0
    """
    return correlation(mean_ranks(x), mean_ranks(y))


def mean_ranks(values: FloatArray) -> FloatArray:
    """Return the ranks of values, from 0; ties share their mean rank.

    >>> mean_ranks(np.array([3.0, 1.0, 3.0]))
    array([1.5, 0. , 1.5])
    """
    order = stable_order(values)
    ordered, ranks = values[order], np.empty(len(order))
    is_new = ordered[1:] != ordered[:-1]
    if is_new.all():
        ranks[order] = np.arange(len(order))
        return ranks
    starts = np.flatnonzero(np.concatenate([[True], is_new]))
    sizes = np.diff(np.concatenate([starts, [len(order)]]))
    ranks[order] = np.repeat(starts + (sizes - 1) / 2.0, sizes)
    return ranks


def _without(values: FloatArray, columns: Sequence[FloatArray]) -> FloatArray:
    """Return the residuals of a least-squares fit of the values by the columns and a constant."""
    if not len(values) or not columns:
        return values - values.mean() if len(values) else values
    centred = [column - column.mean() for column in columns]
    design = np.stack([column / (np.sqrt((column**2).mean()) or 1.0) for column in centred], axis=1)
    target = values - values.mean()
    # Lengths are nearly dependent (response = K times step): small singular values are ignored.
    weights = np.linalg.lstsq(design.T @ design, design.T @ target, rcond=1e-10)[0]
    return np.asarray(target - design @ weights)


def _log(length: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(length, 0.5)))


def _largest(values: FloatArray, ratio: float) -> BoolArray:
    kept = np.zeros(len(values), dtype=np.bool_)
    kept[stable_order(-values)[: int(np.ceil(ratio * len(values) - 1e-9))]] = True
    return kept


def kept_over_all(length: FloatArray, kept: BoolArray) -> float:
    """Return the mean length of the kept samples divided by that of all samples; NaN if none is kept.

    >>> kept_over_all(np.array([10.0, 30.0]), np.array([False, True]))
    1.5
    """
    if not kept.any() or not length.mean():
        return float("nan")
    return float(length[kept].mean() / length.mean())


def correlation_by_chance(x: FloatArray, y: FloatArray, question: IntArray | None = None, num: int = 1) -> float:
    """Return how far from 0 the correlation of unrelated numbers stays in 95 % of pools, for num correlations together.

    Infinite if all samples are of one question; NaN if one side does not vary.
    """
    if not len(x) or min(x.std(), y.std()) <= RESOLUTION:
        return math.nan
    x, y = ((each - each.mean()) / each.std() for each in (x, y))
    error, freedom = spread(sums_by_question(question, [x * y])[0] / len(x))
    return t_quantile(ERROR / num, freedom) * error


def kept_by_chance(length: FloatArray, kept: BoolArray, question: IntArray | None = None) -> float:
    """Return the deviation from 1 of this ratio that subsets chosen without regard to length stay within.

    They do so with probability 95 % for all three lengths together; NaN if none or all are kept, or lengths are equal.
    """
    share = float(kept.mean()) if len(kept) else 0.0
    by_chance = correlation_by_chance(length, kept.astype(np.float64), question, len(LENGTHS))
    return (
        float(by_chance * length.std() / length.mean() * math.sqrt((1 - share) / share)) if by_chance > 0 else math.nan
    )


LENGTH_WORDS: dict[Length, str] = {
    "step_length": "the length of steps",
    "response_length": "the length of responses",
    "num_steps": "the number of steps",
}
MORE: dict[Length, tuple[str, str]] = {
    "step_length": ("longer steps", "shorter steps"),
    "response_length": ("longer responses", "shorter responses"),
    "num_steps": ("more steps", "fewer steps"),
}
MUCH = 0.1
"""Share of the variance from which on length explains enough to be looked at."""
WIDE = 0.1
"""Half-width from which on the interval of that share is too wide for a conclusion."""
SLIGHT = 0.02
"""Share of the variance above which the whole interval must lie, so that values are said to follow length."""
VAGUE = 0.2
"""Deviation of random subsets above which a preference for length cannot be seen."""


def is_vague(explained: Estimate) -> bool:
    """Return whether the samples are too few to say how much length explains."""
    return explained.num < MIN_AUDITED or not (explained.low >= MUCH or explained.half_width <= WIDE)


def explained_text(explained: Estimate, pearson: Mapping[Length, float] | None, of_all: str = "", by: str = "") -> str:
    """Return how many samples have a value (by a measure), and how far it follows length; lengths have no pearson."""
    have = "samples have" if explained.num > 1 or of_all else "sample has"
    told = ", which is a length" if pearson is None else _by_length(explained, pearson)
    return f"{explained.num}{of_all} {have} a value{by}{told}."


def _by_length(explained: Estimate, pearson: Mapping[Length, float]) -> str:
    if explained.num >= MIN_AUDITED and all(each != each for each in pearson.values()):
        return "; all values or all lengths are the same, so that values cannot follow length"
    # Samples that narrow the interval to WIDE, at the share in the interval that needs most of them.
    most = min(max(explained.low, 1 / 3), explained.high) if explained.is_known else 1 / 3
    wanted = 4 * (t_quantile(ERROR, MAX_PARTS) / WIDE) ** 2 * most * (1 - most) ** 2
    if explained.is_known:  # traces that share a question need more
        wanted = max(wanted, (explained.half_width / WIDE) ** 2 * explained.num)
    few, enough = ", too few to say how far values follow length", about(max(wanted, explained.num + 1))
    if explained.num < MIN_AUDITED or not explained.is_known:
        return f"{few}; about {enough} would do"
    share = f"{percent(max(explained.value, 0.0))} of how values differ (95 % interval "
    share += f"{percent_between(explained.low, explained.high)})"
    if is_vague(explained):
        return f"{few}: length explains {share}, and about {enough} samples would do"
    if explained.high <= MUCH:
        return f"; length explains little, {share}"
    if explained.low <= SLIGHT:
        return f"; values are not shown to depend on length: length explains {share}"
    varying = {name: each for name, each in pearson.items() if each == each}
    name = max(varying, key=lambda each: abs(varying[each]))
    more = MORE[name][0 if varying[name] > 0 else 1]
    return f"; length explains {share}, above all {LENGTH_WORDS[name]} (higher values go with {more})"


def chance_text(by_chance: float) -> str:
    """Return the deviation of random subsets in words."""
    return f"random choices differ by less than {math.ceil(100 * by_chance)} %"


def beyond_chance(ratio: float, chance: float) -> float:
    """Return the deviation of a ratio from 1, divided by that of random subsets."""
    return abs(ratio - 1) / chance
