"""Settings of scores by measures, and methods that score by the influence on a target set. numpy only.

A new method is a module with one ``InfluenceMethod`` called METHOD, and its name in METHODS.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self, cast, get_args

from pydantic import AfterValidator, Field, model_validator

from grace_store.base.arrays import Array, FloatArray, Numbers
from grace_store.base.errors import SettingError
from grace_store.base.registry import Registry
from grace_store.base.settings import Settings

MEASURED = "measures"
"""Stands for the method of a score by measures."""

ColumnType = Literal["int32", "float64", "list<float32>"]


class MethodSpec(Settings):
    """How samples are scored: by measures, or by a method with a target set."""

    method: str

    @property
    def title(self) -> str:
        """The name of the measures or of the method, marked if the method is a reconstruction."""
        return METHODS[self.method].title

    @property
    def reads_grams(self) -> bool:
        """Whether the scoring reads Grams, and so knows the directions of steps."""
        return False

    @property
    def is_length(self) -> bool:
        """Whether the values are lengths, so that length explains them in any case."""
        return False

    @property
    def reads_model(self) -> bool:
        """Whether the scoring needs numbers that a model made."""
        return True

    @property
    def columns(self) -> Mapping[str, ColumnType]:
        """Columns that only tables of this method have."""
        return METHODS[self.method].columns

    @property
    def is_reconstruction(self) -> bool:
        return METHODS[self.method].is_reconstruction


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
    """Seed of the measure random, and of the clustering of the method cadc."""

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        if self.method not in METHODS:
            raise SettingError(f"unknown method {self.method[:40]!r}: use one of {', '.join(METHODS)}")
        for name, setting in type(self).model_fields.items():
            given = getattr(self, name)
            if name not in ("method", *METHODS[self.method].settings) and given != setting.default:
                option = name.replace("_", "-")
                raise SettingError(f"method {self.method} does not use --{option}: leave --{option} {given:g} out")
        return self


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


Way = Literal["highest", "lowest"]


class NamedMeasure(NamedTuple):
    """A parsed measure of a score."""

    name: str
    way: Way
    """Which numbers are better."""
    aggregation: Aggregation | None = None
    """How the numbers of steps become a value; None for the measure's own way."""
    weight: float = 1.0

    @property
    def sign(self) -> float:
        return 1.0 if self.way == "highest" else -1.0

    @property
    def bare(self) -> str:
        """The measure without its weight, as --measure takes it."""
        way = "" if self.way == "highest" and self.name in ("grace", "random") else f":{self.way}"
        return f"{self.name}{way}{'' if self.aggregation is None else f':{self.aggregation}'}"

    def __str__(self) -> str:
        return self.bare if self.weight == 1.0 else f"{self.bare}={self.weight!r}".removesuffix(".0")


@lru_cache(maxsize=256)
def parse_measure(text: str) -> NamedMeasure:
    """Parse a measure; the way that is better is the measure's own way unless it is given.

    >>> str(parse_measure("loss:lowest:min=2")), str(parse_measure("loss:highest"))
    ('loss:lowest:min=2', 'loss:highest')
    """
    from grace_store.values.measures import MEASURES

    named, equals, weight_text = text.strip().partition("=")
    name, *parts = named.split(":")
    if name not in MEASURES:
        raise SettingError(f"unknown measure {name[:40]!r}: use one of {', '.join(MEASURES)}")
    way = cast(Way, parts.pop(0)) if parts and parts[0] in get_args(Way) else MEASURES[name].better
    aggregation = parse_aggregation(":".join(parts)) if parts else None
    if aggregation is not None and MEASURES[name].steps is None:
        raise SettingError(f"measure {text!r}: {name} has no numbers of steps, so leave {aggregation} out")
    try:
        weight = float(weight_text) if equals else 1.0
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise SettingError(f"measure {text!r}: a weight is a number above 0, as in {name}=0.5")
    return NamedMeasure(name, way, aggregation, weight)


def canonical_measures(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return measures in the form that notes have; raise SettingError unless each has a meaning."""
    found = [parse_measure(text) for text in texts]
    if not found:
        raise SettingError("there is no measure to score by: give at least one")
    bare = [each._replace(way="highest").bare for each in found]
    if repeated := sorted({each.bare for each, same in zip(found, bare, strict=True) if bare.count(same) > 1}):
        raise SettingError(f"measure {', '.join(repeated)} is given twice: give each measure once, with its weight")
    if len(found) == 1 and found[0].weight != 1.0:
        raise SettingError(f"a measure that scores alone has no weight: leave that of {found[0]} out")
    return tuple(map(str, found))


def check_alpha(alpha: float) -> float:
    """Return alpha; raise SettingError if it is not between 0 and 1."""
    if not (math.isfinite(alpha) and 0 <= alpha <= 1):
        raise SettingError(f"alpha {alpha:g} is not between 0 (history alone) and 1 (answer alone)")
    return alpha


class ScoreSpec(MethodSpec):
    """How values are computed by measures. The measure grace is the paper's; alpha = 1 leaves the history out.

    >>> ScoreSpec(history="ema:.80").history
    'ema:0.8'
    """

    method: Literal["measures"] = "measures"
    measure: Annotated[tuple[str, ...], AfterValidator(canonical_measures)] = ("grace",)
    """Measure to score by, as NAME:WAY:AGGREGATION=WEIGHT. All but the name may be left out; WAY is highest or lowest.
    The names are below. Several measures are standardised and added with their weights. [default: grace]"""
    learn: bool = False
    """Learn how to weigh the measures from labels: all measures, or those of --measure. --right or another option says
    which traces or steps are right."""
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
    """How step scores become a value: mean, min (the worst step), last, length_weighted (by tokens) or quantile:Q."""
    seed: int = Field(default=0, ge=0, lt=2**64)
    """Seed of the measure random, of the folds of a learned value, and of the clustering of the method cadc."""

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        if self.learn and "measure" not in self.model_fields_set:  # a value is learned from all, unless some are named
            from grace_store.values.measures import MEASURES

            every = tuple(name for name, each in MEASURES.items() if each.is_learned_from)
            self.__dict__["measure"] = canonical_measures(every)
        if self.learn and (weighed := [str(each) for each in self.measures if each.weight != 1.0]):
            raise SettingError(f"a learned value finds the weights of measures: leave that of {weighed[0]} out")
        for name in ("alpha", "target") if self.without_answer else ():
            if (given := getattr(self, name)) != type(self).model_fields[name].default:
                raise SettingError(f"without_answer scores by history alone: leave {name} {given} out")
        for name in ("alpha", "history", "target", "without_answer", "aggregation", "seed"):
            if name not in self.used and (given := getattr(self, name)) != type(self).model_fields[name].default:
                option = f"--{name.replace('_', '-')}"
                text = option if given is True else f"{option} {given}"
                raise SettingError(f"measure {self.title} does not use {option}: leave {text} out")
        if self.aggregation != "mean" and any(each.aggregation and each.name == "grace" for each in self.measures):
            raise SettingError(f"measure {self.title} names an aggregation: leave --aggregation out")
        return self

    @property
    def measures(self) -> tuple[NamedMeasure, ...]:
        """The measures, parsed."""
        return tuple(map(parse_measure, self.measure))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.measures)

    @property
    def used(self) -> set[str]:
        """The settings that the measures use."""
        from grace_store.values.measures import MEASURES

        more = {"seed"} if self.learn else set()
        return {each for name in self.names for each in MEASURES[name].settings} | more

    @property
    def title(self) -> str:
        return "learned" if self.learn else " + ".join(self.measure)

    @property
    def is_grace(self) -> bool:
        """Whether values are the paper's: means of step scores that are made of alignments."""
        return not self.learn and self.names == ("grace",) and self.measures[0].way == "highest"

    @property
    def is_length(self) -> bool:
        return not self.learn and {*self.names} <= {"tokens", "steps", "characters"}

    @property
    def step_aggregation(self) -> Aggregation:
        """How GRACE's step scores become a value: as the measure says, or else the setting."""
        return self.measures[0].aggregation or parse_aggregation(self.aggregation)

    @property
    def has_steps(self) -> bool:
        """Whether steps have scores: one measure, and a measure of steps."""
        from grace_store.values.measures import MEASURES

        return not self.learn and len(self.names) == 1 and MEASURES[self.names[0]].steps is not None

    @property
    def reads_grams(self) -> bool:
        from grace_store.values.measures import MEASURES

        return not self.learn and any("gram" in MEASURES[name].reads for name in self.names)

    @property
    def reads_model(self) -> bool:
        from grace_store.values.measures import MEASURES

        return self.learn or any(MEASURES[name].reads != ("plan",) for name in self.names)

    @property
    def columns(self) -> Mapping[str, ColumnType]:
        return {}

    @property
    def is_reconstruction(self) -> bool:
        return False


def parse_spec(settings: dict[str, Any]) -> MethodSpec:
    """Return the spec that settings describe; raise SettingError for settings that its method does not use."""
    name = settings.get("method", MEASURED)
    if name != MEASURED and name not in METHODS:
        hint = f", or --measure {_INSTEAD[str(name)]}" if str(name) in _INSTEAD else ""
        raise SettingError(f"unknown method {str(name)[:40]!r}: use one of {', '.join(METHODS)}{hint}")
    kind: type[MethodSpec] = ScoreSpec if name == MEASURED else InfluenceSpec
    if foreign := [each for each in settings if each not in kind.model_fields]:
        options = ", ".join(f"--{each.replace('_', '-')}" for each in foreign)
        takers = [each for each, method in METHODS.items() if set(foreign) <= set(method.settings)]
        hint = f"; use --method {' or '.join(takers)}" if takers else ""
        used = "a score by measures" if name == MEASURED else f"--method {name}"
        raise SettingError(f"{used} does not use {options}{hint}")
    return kind.parse(**settings)


_INSTEAD = {"grace": "grace", "random": "random", "longest": "tokens", "stepmax": "steps", "loss": "loss:highest"}
"""Names that baselines without a target set have in papers, and their measures."""

Valued = tuple[FloatArray, Mapping[str, Array], FloatArray | None]
"""What a method computes from influences: values; its columns besides the influences, in which the entry of a sample
without a value has no meaning; and the threshold of each subtask, if the method has thresholds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceMethod:
    """A method that scores by the influence on a target set."""

    name: str
    about: str
    """Which samples the method prefers, in a line for --help."""
    settings: tuple[str, ...] = ()
    """Settings of the spec that the method uses. A value for any other setting is refused."""
    columns: Mapping[str, ColumnType] = field(default_factory=dict)
    """Columns that only tables of this method have."""
    is_reconstruction: bool = False
    """Whether the method was published without code, so that this code follows its text; shown with its results."""
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

    @property
    def title(self) -> str:
        """The name, marked if the method is a reconstruction."""
        return f"{self.name} (reconstruction)" if self.is_reconstruction else self.name


METHODS: Registry[InfluenceMethod] = Registry("grace_store.values.methods", "METHOD", ("less", "icons", "cadc"))
"""Methods with a target set, in the order that help shows them."""
