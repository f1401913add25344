"""How far values follow length, and values with that taken out. numpy only.

Three lengths are looked at: tokens in a step (the mean over a sample's steps), tokens in the response, and K. They
are used as logarithms: doubling a length counts the same wherever it starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, Numbers
from grace_store.values.intervals import Interval, explained_interval, z_for
from grace_store.values.order_statistics import stable_order

Length = Literal["step_length", "response_length", "num_steps"]
LENGTHS: tuple[Length, ...] = ("step_length", "response_length", "num_steps")

RESOLUTION = 1e-9
"""A standard deviation below this is rounding: the numbers do not vary."""
MIN_AUDITED = 8
"""Below this many samples three lengths and a constant fit any values: what is found says nothing."""
MAX_RANKED = 1 << 22
"""Steps beyond this many are thinned out evenly before they are ranked."""


@dataclass(frozen=True, slots=True)
class LengthBias:
    """How values go with one length. Correlations are NaN where one side does not vary."""

    pearson: float
    """With the logarithm of the length."""
    spearman: float
    """With the length's rank."""
    partial: float
    """Pearson's, after the other two lengths are taken out of both sides."""
    spearman_after_control: float
    """What is left of Spearman's when all three lengths are taken out of the value."""
    kept_over_all: float
    """Mean length of the samples with the largest values over that of all: 1 is no preference."""
    kept_over_all_after_control: float
    kept_by_chance: float
    """How far random subsets of that size are from 1, to either side: by 95 % none of the three lengths is further."""
    spread_after_control: float
    """Pearson's of the logarithm with the size of what is left of the value, whatever its sign: above 0, longer ones
    spread more."""
    curve_after_control: float
    """Pearson's of what is left of the value with the squared distance of the logarithm from its mean."""

    @property
    def varies(self) -> bool:
        """Whether both the values and this length differ between samples."""
        return self.pearson == self.pearson


@dataclass(frozen=True, slots=True)
class StepLengthBias:
    """How step scores go with the number of tokens in the step."""

    pooled: float
    """Pearson's with the logarithm, over all steps of all samples."""
    within_sample: float
    """The same after each sample's own means are taken out: do longer steps of one trace score higher?"""
    spearman: float
    num_steps: int


@dataclass(frozen=True, slots=True)
class LengthShare:
    """How much of how values differ lengths explain, and no more: a tenth of an audit's work."""

    num_samples: int
    """Samples with a value; the others do not count."""
    variance_explained: float
    """As in an audit, and so are the others."""
    explained_between: Interval
    pearson: Mapping[Length, float]


@dataclass(frozen=True, slots=True)
class LengthAudit:
    """How values follow length, and what remains after taking it out."""

    num_samples: int
    """Samples with a value; the others do not count."""
    ratio: float
    variance_explained: float
    """Share of the values' variance that the three lengths explain together (R squared)."""
    explained_between: Interval
    """Where that share lies for all samples like these, by 95 %."""
    lengths: Mapping[Length, LengthBias]
    steps: StepLengthBias | None

    @property
    def pearson(self) -> dict[Length, float]:
        """Pearson's correlation with the logarithm of each length; NaN where one side does not vary."""
        return {name: bias.pearson for name, bias in self.lengths.items()}

    @property
    def has_enough_samples(self) -> bool:
        """Whether the numbers say anything."""
        return self.num_samples >= MIN_AUDITED


def lengths_of(num_steps: Numbers, num_tokens: Numbers, num_step_tokens: Numbers | None) -> dict[Length, FloatArray]:
    """Return the lengths of samples: all three, or the two that are known without the tokens of steps."""
    steps = num_steps.astype(np.float64)
    known: dict[Length, FloatArray] = {"response_length": num_tokens.astype(np.float64), "num_steps": steps}
    if num_step_tokens is None:
        return known
    return {"step_length": num_step_tokens.astype(np.float64) / np.maximum(steps, 1.0), **known}


def residuals(values: FloatArray, lengths: Mapping[Length, FloatArray], control: Sequence[Length]) -> FloatArray:
    """Return the values with the part that is linear in the logarithms of some lengths taken out, the mean kept.

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


def explained_by_lengths(values: FloatArray, lengths: Mapping[Length, FloatArray]) -> LengthShare:
    """Return how much of how values differ the lengths that are known explain."""
    finite = np.isfinite(values)
    value = values if finite.all() else values[finite]
    logs = {name: _log(lengths[name][finite]) for name in LENGTHS if name in lengths}
    return _share(value, logs, _without(value, list(logs.values())))


def _share(value: FloatArray, logs: Mapping[Length, FloatArray], controlled: FloatArray) -> LengthShare:
    """Return the same for finite values, from what is left of them without the lengths."""
    pearson = {name: correlation(value, log) for name, log in logs.items()}
    spread = float(value.var()) if len(value) else 0.0
    explained = 1.0 - float(controlled.var()) / spread if spread > 0 else float("nan")
    num_varying = sum(each == each for each in pearson.values())
    return LengthShare(len(value), explained, explained_interval(explained, len(value), num_varying), pearson)


def audit_lengths(
    values: FloatArray,
    lengths: Mapping[Length, FloatArray],
    steps: tuple[FloatArray, Numbers, Numbers] | None = None,
    ratio: float = 0.2,
) -> LengthAudit:
    """Return how values follow the lengths that are known.

    steps, if given, is (step scores, step token counts, num_steps), the first two flat over all samples. ratio is
    the share whose mean length is compared with that of all.
    """
    finite = np.isfinite(values)
    value = values[finite]
    length = {name: lengths[name][finite] for name in LENGTHS if name in lengths}
    logs = {name: _log(each) for name, each in length.items()}
    controlled = _without(value, list(logs.values()))
    share = _share(value, logs, controlled)
    kept, kept_after = _largest(value, ratio), _largest(controlled, ratio)
    ranks, ranks_after = mean_ranks(value), mean_ranks(controlled)
    biases: dict[Length, LengthBias] = {}
    for name in length:
        ranked = mean_ranks(length[name])
        others = [logs[other] for other in logs if other != name]
        away = logs[name] - logs[name].mean() if len(value) else logs[name]
        biases[name] = LengthBias(
            pearson=share.pearson[name],
            spearman=correlation(ranks, ranked),
            partial=correlation(_without(value, others), _without(logs[name], others)),
            spearman_after_control=correlation(ranks_after, ranked),
            kept_over_all=kept_over_all(length[name], kept),
            kept_over_all_after_control=kept_over_all(length[name], kept_after),
            kept_by_chance=kept_by_chance(length[name], kept),
            spread_after_control=correlation(np.abs(controlled), logs[name]),
            curve_after_control=correlation(controlled, away**2),
        )
    by_step = None if steps is None else _audit_steps(*steps)
    return LengthAudit(len(value), ratio, share.variance_explained, share.explained_between, biases, by_step)


def _audit_steps(step_score: FloatArray, step_tokens: Numbers, num_steps: Numbers) -> StepLengthBias:
    logs = _log(step_tokens.astype(np.float64))
    finite = np.isfinite(step_score)
    sample = np.repeat(np.arange(len(num_steps)), num_steps.astype(np.int64))
    inside = [_centred(each[finite], sample[finite], len(num_steps)) for each in (step_score, logs)]
    score, log = step_score[finite], logs[finite]
    thin = slice(None, None, -(-len(score) // MAX_RANKED) or 1)
    return StepLengthBias(
        pooled=correlation(score, log),
        within_sample=correlation(*inside),
        spearman=rank_correlation(score[thin], log[thin]),
        num_steps=len(score),
    )


def _centred(values: FloatArray, sample: Numbers, num_samples: int) -> FloatArray:
    count = np.maximum(np.bincount(sample, minlength=num_samples), 1)
    means = np.bincount(sample, values, num_samples) / count
    centred: FloatArray = values - means[sample]
    return centred


def correlation(x: FloatArray, y: FloatArray) -> float:
    """Return Pearson's correlation of two finite arrays; NaN if there are fewer than two or one does not vary.

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
    """Return Spearman's correlation of two finite arrays, ties sharing their mean rank.

    >>> rank_correlation(np.array([1.0, 5.0, 9.0]), np.array([1.0, 2.0, 40.0]))
    1.0
    """
    return correlation(mean_ranks(x), mean_ranks(y))


def mean_ranks(values: FloatArray) -> FloatArray:
    """Return the ranks from 0 of values, ties sharing the mean of theirs.

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
    """Return what a least-squares fit of the columns and a constant leaves of the values."""
    if not len(values):
        return values
    centred = [column - column.mean() for column in columns]
    design = np.stack([column / (np.sqrt((column**2).mean()) or 1.0) for column in centred], axis=1)
    target = values - values.mean()
    # Lengths are nearly dependent (response = K times step): small directions are left alone.
    weights = np.linalg.lstsq(design.T @ design, design.T @ target, rcond=1e-10)[0]
    left: FloatArray = target - design @ weights
    return left


def _log(length: FloatArray) -> FloatArray:
    log: FloatArray = np.log(np.maximum(length, 0.5))
    return log


def _largest(values: FloatArray, ratio: float) -> BoolArray:
    kept = np.zeros(len(values), dtype=np.bool_)
    kept[stable_order(-values)[: int(np.ceil(ratio * len(values) - 1e-9))]] = True
    return kept


def kept_over_all(length: FloatArray, kept: BoolArray) -> float:
    """Return the mean length of what is kept over that of all; NaN if nothing is kept.

    >>> kept_over_all(np.array([10.0, 30.0]), np.array([False, True]))
    1.5
    """
    if not kept.any() or not length.mean():
        return float("nan")
    return float(length[kept].mean() / length.mean())


def kept_by_chance(length: FloatArray, kept: BoolArray) -> float:
    """Return how far from 1 that ratio is for random subsets of as many samples; NaN if nothing is kept.

    By 95 % it is further for none of three lengths.
    """
    num, num_kept = len(length), int(np.count_nonzero(kept))
    if not num_kept or num < 2 or not length.mean():
        return float("nan")
    return float(z_for(len(LENGTHS)) * length.std() / length.mean() * np.sqrt((num - num_kept) / (num - 1) / num_kept))
