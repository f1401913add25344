"""From a sample's step scores to its value. Knows nothing of where the scores come from."""

import math
from typing import Literal, NamedTuple, get_args

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import SettingError

Kind = Literal["mean", "min", "last", "length_weighted", "quantile"]


class Aggregation(NamedTuple):
    """An aggregation understood; quantile is Q, or nothing (0)."""

    kind: Kind
    quantile: float = 0.0

    def __str__(self) -> str:
        return f"quantile:{self.quantile!r}".removesuffix(".0") if self.kind == "quantile" else self.kind


_PLAIN: dict[str, Aggregation] = {kind: Aggregation(kind) for kind in get_args(Kind) if kind != "quantile"}


def parse_aggregation(text: str) -> Aggregation:
    """Understand an aggregation's name.

    >>> parse_aggregation("quantile:0.25")
    Aggregation(kind='quantile', quantile=0.25)
    """
    kind, colon, parameter = text.strip().partition(":")
    if not colon and kind in _PLAIN:
        return _PLAIN[kind]
    if kind != "quantile" or not colon:
        raise SettingError(f"aggregation {text!r} is none of {', '.join(_PLAIN)}, quantile:Q")
    try:
        quantile = float(parameter)
    except ValueError:
        quantile = math.nan
    if not 0 <= quantile <= 1:
        raise SettingError(f"aggregation {text!r}: a quantile lies between 0 and 1, as in quantile:0.25")
    return Aggregation("quantile", quantile)


def aggregate(
    step_score: FloatArray, num_steps: IntArray, num_tokens: FloatArray, aggregation: Aggregation
) -> FloatArray:
    """Return one value a sample, (n,), from its step scores and the steps' token counts, both (steps, n).

    A sample's first num_steps rows count, and the others must be 0. A quantile between two steps' scores is
    interpolated. A sample without steps, or by length without tokens, has no value: NaN.

    >>> by_length = parse_aggregation("length_weighted")
    >>> aggregate(np.array([[1.0], [4.0]]), np.array([2]), np.array([[2.0], [1.0]]), by_length)
    array([2.])
    """
    if len(step_score) == 0:
        return np.full(len(num_steps), np.nan)
    if aggregation.kind == "mean":
        return _ratio(step_score.sum(axis=0), num_steps.astype(np.float64))
    if aggregation.kind == "length_weighted":
        return _ratio((step_score * num_tokens).sum(axis=0), num_tokens.sum(axis=0))
    if aggregation.kind == "last":
        value = _pick(step_score, num_steps - 1)
    else:
        # min is the quantile 0. Steps a sample has not are sorted behind those it has.
        present = np.arange(len(step_score))[:, None] < np.maximum(num_steps, 1)
        ordered = np.sort(np.where(present, step_score, np.inf), axis=0)
        value = _quantile(ordered, num_steps, aggregation.quantile)
    value[num_steps == 0] = np.nan
    return value


def _ratio(total: FloatArray, weight: FloatArray) -> FloatArray:
    return np.divide(total, weight, out=np.full_like(total, np.nan), where=weight > 0)


def _pick(rows: FloatArray, row: IntArray) -> FloatArray:
    picked: FloatArray = np.take_along_axis(rows, np.maximum(row, 0)[None], axis=0)[0]
    return picked


def _quantile(ordered: FloatArray, num_steps: IntArray, quantile: float) -> FloatArray:
    last = np.maximum(num_steps - 1, 0)
    place = quantile * last
    below = place.astype(np.int64)
    low, high = _pick(ordered, below), _pick(ordered, np.minimum(below + 1, last))
    return low + (place - below) * (high - low)
