"""Grids of settings for a sweep. Knows settings, no files and no store."""

import itertools
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, Self

from pydantic import ValidationInfo, field_validator, model_validator

from grace_store.base.errors import SettingError
from grace_store.base.settings import Frozen, Settings
from grace_store.values.methods.method import ScoreSpec

MAX_ALPHAS = 1001


def parse_alphas(text: str) -> tuple[float, ...]:
    """Return the numbers of a list ("0.1,0.7") or an inclusive range ("first:last:step"), exact in decimal.

    >>> parse_alphas("0.1:0.4:0.1"), parse_alphas("0.5,1")
    ((0.1, 0.2, 0.3, 0.4), (0.5, 1.0))
    """
    alphas: list[float] = []
    for part in text.split(","):
        numbers = [_decimal(number, text) for number in part.split(":")]
        if len(numbers) == 1:
            alphas.append(float(numbers[0]))
            continue
        if len(numbers) != 3 or numbers[2] <= 0 or numbers[1] < numbers[0]:
            raise SettingError(f"alpha {text!r} is neither a list such as 0.3,0.7 nor a range such as 0.1:0.9:0.1")
        first, last, step = numbers
        count = int((last - first) / step) + 1
        if count > MAX_ALPHAS:
            raise SettingError(f"alpha {text!r} has {count} values, at most {MAX_ALPHAS} are allowed")
        alphas += [float(first + step * i) for i in range(count)]
    return tuple(alphas)


def _decimal(number: str, text: str) -> Decimal:
    try:
        found = Decimal(number.strip())
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite():
        raise SettingError(f"alpha {text!r}: {number.strip()!r} is not a number")
    return found


class Grid(Frozen):
    """Every combination of these settings.

    >>> len(list(Grid(alpha="0.1:0.9:0.1", history=("uniform", "window:3", "ema:0.8")).specs()))
    27
    """

    measure: tuple[str, ...] = ("grace",)
    """Measures, as `score --measure` takes them. Each is scored alone, so none has a weight."""
    alpha: tuple[float, ...] = (0.7,)
    """Numbers, a list as text ("0.3,0.7") or a range ("0.1:0.9:0.1")."""
    history: tuple[str, ...] = ("uniform",)
    target: tuple[Literal["answer", "trace", "suffix"], ...] = ("answer",)
    aggregation: tuple[str, ...] = ("mean",)
    without_answer: bool = False
    signal: tuple[str, ...] = ()
    """Choices of signals: a name, several together ("a,b=2"), "each" signal of the store, or "all" together."""

    @field_validator("measure", "alpha", "history", "target", "aggregation", "signal", mode="before")
    @classmethod
    def _several(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and info.field_name != "signal":
            return parse_alphas(value) if info.field_name == "alpha" else tuple(map(str.strip, value.split(",")))
        is_one = isinstance(value, str) if info.field_name == "signal" else isinstance(value, int | float)
        return (value,) if is_one else value

    @field_validator("*")
    @classmethod
    def _not_empty(cls, value: Any, info: Any) -> Any:
        if value == () and info.field_name != "signal":
            raise SettingError(
                f"{info.field_name} has no value in the grid: give at least one value, or leave {info.field_name} out"
            )
        return value

    @model_validator(mode="after")
    def _all_known(self) -> Self:
        if self.without_answer and (len(self.alpha), len(self.target)) != (1, 1):
            raise SettingError("without_answer scores by history alone: leave alpha and target out of the grid")
        for _ in self.specs():
            pass
        return self

    def specs(self) -> Iterator[ScoreSpec]:
        """Yield the settings of the grid; alpha changes fastest."""
        used_by = {measure: ScoreSpec.parse(measure=(measure,)).used for measure in self.measure}
        axes = {name: getattr(self, name) for name in ("target", "aggregation", "history", "alpha")}
        axes["without_answer"] = (self.without_answer,)
        for measure, used in used_by.items():
            # A setting that no measure uses is given to the spec, which refuses it as it does for a score.
            names = [name for name in axes if name in used or not any(name in each for each in used_by.values())]
            for each in itertools.product(*(axes[name] for name in names)):
                yield ScoreSpec.parse(measure=(measure,), **dict(zip(names, each, strict=True)))


class SweepSpec(Settings):
    """The grids of a sweep, and how its settings are compared."""

    about: str = ""
    """Purpose of the sweep, in words."""
    ratio: tuple[str, ...] = ("0.2",)
    """Shares of the samples whose overlap between settings is measured."""
    grid: tuple[Grid, ...] = (Grid(),)

    @field_validator("ratio", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        value = [value] if isinstance(value, str | float | int) else value
        return tuple(map(str, value)) if isinstance(value, list | tuple) else value

    @field_validator("ratio", "grid")
    @classmethod
    def _not_empty(cls, value: Any, info: Any) -> Any:
        if not value:
            raise SettingError(f"a sweep needs at least one {info.field_name}")
        return value
