"""Scoring methods: their settings, what they read of a store, and the columns that they add to a table. numpy only.

A new method is a module with one ``Method`` called METHOD, and its name in ``methods/__init__``. A method without
vectors is a ``Heuristic``, a method with a target set is an ``InfluenceMethod``; both need only a function for values.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from grace_store.base.arrays import Array, FloatArray, Numbers
from grace_store.base.errors import SettingError
from grace_store.base.settings import Settings


class MethodSpec(Settings):
    """The settings of a method. A setting that the method does not use is refused, not ignored."""

    method: str

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        from grace_store.values.methods import METHODS

        kind = type(self)
        known = [name for name, method in METHODS.items() if method.spec is kind]
        if self.method not in known:
            raise SettingError(f"unknown method {self.method!r}: use one of {', '.join(known)}")
        for name, setting in kind.model_fields.items():
            given = getattr(self, name)
            if name not in ("method", *METHODS[self.method].settings) and given != setting.default:
                option = name.replace("_", "-")
                raise SettingError(f"method {self.method} does not use --{option}: leave --{option} {given:g} out")
        return self


class HeuristicSpec(MethodSpec):
    """The settings of methods that need no vectors."""

    seed: int = Field(default=0, ge=0, lt=2**64)
    """Seed of the values of the method random."""


def _percent(value: float) -> float:
    if not 0 < value <= 100:
        raise SettingError(f"--vote-percent {value:g} is not above 0 and at most 100")
    return value


def _cosine(value: float) -> float:
    if not -1 <= value <= 1:
        raise SettingError(f"--join-cosine {value:g} is not between -1 and 1")
    return value


class InfluenceSpec(MethodSpec):
    """The settings of methods that score by the influence on a target set."""

    vote_percent: Annotated[float, AfterValidator(_percent)] = 20.0
    """With the method icons, percentage of the samples that each subtask votes for. A subtask votes for its most
    influential samples."""
    join_cosine: Annotated[float, AfterValidator(_cosine)] = 0.5
    """With the method cadc, join subtasks whose gradients' trajectories have at least this cosine."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the values of the method random, and of the clustering of the method cadc."""


# ---------------------------------------------------------------- the settings of GRACE


class NamedHistory(NamedTuple):
    """A parsed history; parameter is W or B, 0 for uniform."""

    kind: Literal["uniform", "window", "ema"]
    parameter: float = 0.0

    @property
    def decay(self) -> float | None:
        """Factor from the history of a step to that of the next; None for a history that is no such recursion."""
        return {"uniform": 1.0, "ema": self.parameter}.get(self.kind)

    def __str__(self) -> str:
        return self.kind if self.kind == "uniform" else f"{self.kind}:{self.parameter!r}".removesuffix(".0")


@lru_cache(maxsize=256)
def parse_history(text: str) -> NamedHistory:
    """Parse the name of a history.

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
    raise SettingError(f"unknown value {text!r} of history: use uniform, window:W or ema:B")


Kind = Literal["mean", "min", "last", "length_weighted", "quantile"]


class Aggregation(NamedTuple):
    """A parsed aggregation; quantile is Q, 0 for all other kinds."""

    kind: Kind
    quantile: float = 0.0

    def __str__(self) -> str:
        return f"quantile:{self.quantile!r}".removesuffix(".0") if self.kind == "quantile" else self.kind


_PLAIN: dict[str, Aggregation] = {kind: Aggregation(kind) for kind in get_args(Kind) if kind != "quantile"}


def parse_aggregation(text: str) -> Aggregation:
    """Parse the name of an aggregation.

    >>> parse_aggregation("quantile:0.25")
    Aggregation(kind='quantile', quantile=0.25)
    """
    kind, colon, parameter = text.strip().partition(":")
    if not colon and kind in _PLAIN:
        return _PLAIN[kind]
    if kind != "quantile" or not colon:
        raise SettingError(f"unknown value {text!r} of aggregation: use {', '.join(_PLAIN)} or quantile:Q")
    try:
        quantile = float(parameter)
    except ValueError:
        quantile = math.nan
    if not 0 <= quantile <= 1:
        raise SettingError(f"aggregation {text!r}: a quantile lies between 0 and 1, as in quantile:0.25")
    return Aggregation("quantile", quantile)


def check_alpha(alpha: float) -> float:
    """Return alpha; raise SettingError if it is not between 0 and 1."""
    if not (math.isfinite(alpha) and 0 <= alpha <= 1):
        raise SettingError(f"alpha {alpha:g} is not between 0 (history alone) and 1 (answer alone)")
    return alpha


class ScoreSpec(MethodSpec):
    """Settings of method grace: how values are computed from Grams. alpha = 1 leaves the history out.

    >>> ScoreSpec(history="ema:.80").history
    'ema:0.8'
    """

    method: Literal["grace"] = "grace"
    alpha: Annotated[float, AfterValidator(check_alpha)] = 0.7
    """Weight of the alignment with the answer, from 0 to 1. The alignment with the history has the remaining weight."""
    history: Annotated[str, AfterValidator(lambda text: str(parse_history(text)))] = "uniform"
    """Weights of the earlier steps: uniform, window:W (only the last W steps) or ema:B (each earlier step has B times
    the weight of the next step)."""
    target: Literal["answer", "trace", "suffix", "group"] = "answer"
    """Target that steps are aligned with. answer: the answer. trace: all tokens of steps and answer. suffix: the tokens
    after the step. group: the mean direction of the answers of the question's other traces, only for `score`."""
    without_answer: bool = False
    """Score only by the alignment with the history. Samples with one step then have no value."""
    aggregation: Annotated[str, AfterValidator(lambda text: str(parse_aggregation(text)))] = "mean"
    """How step scores become a value: mean, min, last, length_weighted (by tokens) or quantile:Q."""

    @model_validator(mode="after")
    def _answer_left_out(self) -> Self:
        for name in ("alpha", "target") if self.without_answer else ():
            given = getattr(self, name)
            if given != type(self).model_fields[name].default:
                raise SettingError(f"without_answer scores by history alone: leave {name} {given} out")
        return self


# ---------------------------------------------------------------- methods


def parse_spec(settings: dict[str, Any]) -> MethodSpec:
    """Return the spec of the method that settings name; raise SettingError for settings that it does not use."""
    from grace_store.values.methods import METHODS

    name = settings.get("method", "grace")
    if name not in METHODS:
        raise SettingError(f"unknown method {str(name)[:40]!r}: use one of {', '.join(METHODS)}")
    kind = METHODS[name].spec
    if foreign := [each for each in settings if each not in kind.model_fields]:
        options = ", ".join(f"--{each.replace('_', '-')}" for each in foreign)
        takers = [each for each, method in METHODS.items() if set(foreign) <= set(method.settings)]
        hint = f"; use --method {' or '.join(takers)}" if takers else ""
        raise SettingError(f"--method {name} does not use {options}{hint}")
    return kind.parse(**settings)


Reads = Literal["plan", "tokens", "losses", "grams", "gradients"]
"""The part of a store that a method reads. Plan and tokens need no model."""
ColumnType = Literal["int32", "float64", "list<float32>"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A scoring method."""

    name: str
    about: str
    """Which samples the method prefers, in a line for --help."""
    spec: type[MethodSpec]
    settings: tuple[str, ...] = ()
    """Settings of the spec that the method uses. A value for any other setting is refused."""
    reads: Reads
    columns: Mapping[str, ColumnType] = field(default_factory=dict)
    """Columns that only tables of this method have."""
    is_reconstruction: bool = False
    """Whether the method was published without code, so that this code follows its text; shown with its results."""

    @property
    def title(self) -> str:
        """The name, marked if the method is a reconstruction."""
        return f"{self.name} (reconstruction)" if self.is_reconstruction else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """The input of heuristics for n samples. Token counts and losses are flat, num_parts for each sample.

    A part is one of K + 1 segments, or the whole response.
    """

    row: Numbers
    """Row of each sample's record in the dataset."""
    num_steps: Numbers
    num_parts: Numbers
    num_tokens: Numbers
    loss: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Heuristic(Method):
    """A method that needs no vectors."""

    spec: type[MethodSpec] = HeuristicSpec
    values: Callable[[Any, Responses], FloatArray]
    """Function from the spec and samples to values, (n,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Valued:
    """Values and columns that a method computes from influences."""

    value: FloatArray
    columns: Mapping[str, Array] = field(default_factory=dict)
    """Columns of the method besides the influences; entries of a sample without a value have no meaning."""
    thresholds: FloatArray | None = None
    """Threshold of each subtask, for methods that have thresholds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceMethod(Method):
    """A method that scores by the influence on a target set."""

    spec: type[MethodSpec] = InfluenceSpec
    reads: Reads = "gradients"
    values: Callable[[Any, Numbers, FloatArray], Valued]
    """Function from the spec, the influences of n samples on J subtasks or capabilities, (n, J), NaN for a sample
    without a value, and the slope of each sample's squared gradient length across the checkpoints."""
    needs_whole_pool: bool = False
    """Whether a value depends on the influences of all samples, which are then in memory."""
    restores_length: bool = False
    """Whether gradients keep their length; otherwise only their directions count."""
    joins_subtasks: bool = False
    """Whether subtasks are joined to capabilities, and influences are on capabilities."""
    max_checkpoints: int | None = None
    takes_preconditioned: bool = True
    """Whether the pool's gradients may be Adam's steps."""
