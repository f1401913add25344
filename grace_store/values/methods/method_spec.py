"""The settings of methods: none of them is ignored."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from grace_store.base.errors import SettingError
from grace_store.base.settings import Settings


class MethodSpec(Settings):
    """The settings of a method. Those that it has no use for are refused: nobody should believe that they counted."""

    method: str

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        from grace_store.values.methods import METHODS

        kind = type(self)
        known = [name for name, method in METHODS.items() if method.spec is kind]
        if self.method not in known:
            raise SettingError(f"method {self.method!r} is none of {', '.join(known)}")
        for name, field in kind.model_fields.items():
            given = getattr(self, name)
            if name not in ("method", *METHODS[self.method].settings) and given != field.default:
                option = name.replace("_", "-")
                raise SettingError(f"method {self.method} has no use for --{option}, so {given:g} would be ignored")
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
    """With the method icons, percentage of the samples that each subtask votes for, the most influential first."""
    join_cosine: Annotated[float, AfterValidator(_cosine)] = 0.5
    """With the method cadc, join subtasks whose gradients' trajectories have at least this cosine."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the methods random (its values) and cadc (its clustering)."""


def parse_spec(settings: dict[str, Any]) -> MethodSpec:
    """Return the spec of the method that settings name, refusing those that it would ignore."""
    from grace_store.values.methods import METHODS

    name = settings.get("method", "grace")
    if name not in METHODS:
        raise SettingError(f"method {str(name)[:40]!r} is none of {', '.join(METHODS)}")
    kind = METHODS[name].spec
    if foreign := [each for each in settings if each not in kind.model_fields]:
        options = ", ".join(f"--{each.replace('_', '-')}" for each in foreign)
        takers = [each for each, method in METHODS.items() if set(foreign) <= set(method.settings)]
        hint = f"; it is for --method {' or '.join(takers)}" if takers else ""
        raise SettingError(f"--method {name} has no use for {options}{hint}")
    return kind.parse(**settings)
