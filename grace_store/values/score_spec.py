"""The settings of GRACE, which change values, and what they mean: the weights of earlier steps, and aggregations.

Knows weights and scores, not vectors.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, Self, get_args

import numpy as np
from pydantic import AfterValidator, model_validator

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.values.methods.method import MethodSpec

# ---------------------------------------------------------------- history: the weights of earlier steps


History = str | FloatArray | Callable[[int], FloatArray]
"""A name ("uniform", "window:W", "ema:B"), weights (K, K) or larger, or a function from K to weights (K, K)."""


class NamedHistory(NamedTuple):
    """A history understood; parameter is W, B, or nothing (0)."""

    kind: Literal["uniform", "window", "ema"]
    parameter: float = 0.0

    @property
    def decay(self) -> float | None:
        """How much a step's history keeps of the one before it, or None where it is no such recursion."""
        return {"uniform": 1.0, "ema": self.parameter}.get(self.kind)

    def __str__(self) -> str:
        return self.kind if self.kind == "uniform" else f"{self.kind}:{self.parameter!r}".removesuffix(".0")


@lru_cache(maxsize=256)
def parse_history(text: str) -> NamedHistory:
    """Understand a history's name.

    >>> parse_history("ema:0.8")
    NamedHistory(kind='ema', parameter=0.8)
    """
    kind, colon, parameter = text.strip().partition(":")
    if kind == "uniform" and not colon:
        return NamedHistory("uniform")
    if kind == "window" and colon:
        if not (parameter.isascii() and parameter.isdigit() and int(parameter) >= 1):
            raise SettingError(f"history {text!r}: a window is a whole number of steps, at least 1, as in window:3")
        return NamedHistory("window", int(parameter))
    if kind == "ema" and colon:
        try:
            decay = float(parameter)
        except ValueError:
            decay = math.nan
        if not 0 <= decay < 1:
            raise SettingError(f"history {text!r}: an ema's decay is at least 0 and below 1, as in ema:0.8")
        return NamedHistory("ema", decay)
    raise SettingError(f"history {text!r} is none of uniform, window:W, ema:B")


def history_weights(history: History, num_steps: int) -> FloatArray:
    """Return the weights (K, K), row k those of the steps before step k: row 0 is 0, all others add up to 1.

    Weights given from Python need not add up to 1, only be at least 0; of larger ones the leading part is used.

    >>> history_weights("ema:0.5", 3)
    array([[0.        , 0.        , 0.        ],
           [1.        , 0.        , 0.        ],
           [0.33333333, 0.66666667, 0.        ]])
    """
    if isinstance(history, str):
        weights = _named_weights(parse_history(history), num_steps)
    else:
        weights = _given_weights(history(num_steps) if callable(history) else history, num_steps)
    weights[1:] /= weights[1:].sum(axis=1, keepdims=True)
    return weights


def _named_weights(history: NamedHistory, num_steps: int) -> FloatArray:
    step = np.arange(num_steps)
    age = step[:, None] - 1 - step[None, :]
    if history.kind == "window":
        return ((age >= 0) & (age < history.parameter)).astype(np.float64)
    # 0.0 ** 0 is 1, so that ema:0 is the previous step alone; the future's powers are thrown away.
    powers: FloatArray = np.power(1.0 if history.kind == "uniform" else history.parameter, np.maximum(age, 0))
    return np.where(age >= 0, powers, 0.0)


def _given_weights(given: FloatArray, num_steps: int) -> FloatArray:
    weights = np.array(given, dtype=np.float64)
    if weights.ndim != 2 or min(weights.shape) < num_steps:
        raise SettingError(f"history weights of shape {weights.shape} do not reach {num_steps} steps")
    weights = weights[:num_steps, :num_steps].copy()
    if np.triu(weights).any():
        raise SettingError("history weights give weight to a step itself or to later ones: keep row k below column k")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise SettingError("history weights must be finite and at least 0")
    if not (weights[1:] > 0).any(axis=1).all():
        step = 1 + int(np.flatnonzero(~(weights[1:] > 0).any(axis=1))[0])
        raise SettingError(f"history weights leave step {step + 1} without a history: its row is all 0")
    return weights


# ---------------------------------------------------------------- from a sample's step scores to its value


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


# ---------------------------------------------------------------- settings


def check_alpha(alpha: float) -> float:
    """Return alpha if it is a balance, refuse it otherwise."""
    if not (math.isfinite(alpha) and 0 <= alpha <= 1):
        raise SettingError(f"alpha {alpha:g} is not between 0 (history alone) and 1 (answer alone)")
    return alpha


class ScoreSpec(MethodSpec):
    """How Grams become values. GRACE without history is alpha = 1.

    >>> ScoreSpec(history="ema:.80").history
    'ema:0.8'
    """

    method: Literal["grace"] = "grace"
    alpha: Annotated[float, AfterValidator(check_alpha)] = 0.7
    """Weight of the alignment with the answer, 0 to 1; the alignment with the history has the rest."""
    history: Annotated[str, AfterValidator(lambda text: str(parse_history(text)))] = "uniform"
    """Weights of the earlier steps: uniform, window:W (the last W steps) or ema:B (decaying by B a step)."""
    target: Literal["answer", "trace", "suffix", "group"] = "answer"
    """What steps are aligned with: the answer, all tokens of steps and answer (trace), the tokens after the step
    (suffix), or the mean direction of the answers of the question's other traces (group, with `score` alone)."""
    without_answer: bool = False
    """Score by the alignment with history alone; a sample with one step has no value then."""
    aggregation: Annotated[str, AfterValidator(lambda text: str(parse_aggregation(text)))] = "mean"
    """How step scores become a value: mean, min, last, length_weighted (by tokens) or quantile:Q."""

    @model_validator(mode="after")
    def _answer_left_out(self) -> Self:
        for name in ("alpha", "target") if self.without_answer else ():
            given = getattr(self, name)
            if given != type(self).model_fields[name].default:
                raise SettingError(f"without_answer scores by history alone, so {name} {given} would be ignored")
        return self
