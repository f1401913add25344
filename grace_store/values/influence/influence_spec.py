"""What an influence score is a score by: the settings that change values."""

from __future__ import annotations

import math
from typing import Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from grace_store.base.errors import SettingError
from grace_store.values.score_spec import Settings

InfluenceMethod = Literal["less", "icons", "cadc"]
INFLUENCE_METHODS: tuple[InfluenceMethod, ...] = get_args(InfluenceMethod)


class InfluenceSpec(Settings):
    """Which method makes values of projected gradients and a target set."""

    method: InfluenceMethod
    vote_percent: float = 20.0
    """ICONS: a subtask votes for the samples that reach its (100 - vote_percent) percentile."""
    join_cosine: float = 0.5
    """CADC: subtasks are joined if the cosine of their gradients' trajectories is at least this."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """CADC: of the Leiden clustering."""

    @field_validator("vote_percent")
    @classmethod
    def _is_percent(cls, value: float) -> float:
        if not (math.isfinite(value) and 0 < value <= 100):
            raise SettingError(f"--vote-percent {value:g} is not above 0 and at most 100")
        return value

    @field_validator("join_cosine")
    @classmethod
    def _is_cosine(cls, value: float) -> float:
        if not (math.isfinite(value) and -1 <= value <= 1):
            raise SettingError(f"--join-cosine {value:g} is not between -1 and 1")
        return value

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        uses = {"less": (), "icons": ("vote_percent",), "cadc": ("join_cosine", "seed")}[self.method]
        for name in ("vote_percent", "join_cosine", "seed"):
            given = getattr(self, name)
            if name not in uses and given != type(self).model_fields[name].default:
                option = name.replace("_", "-")
                raise SettingError(f"method {self.method} has no use for --{option}, so {given:g} would be ignored")
        return self

    @property
    def restores_length(self) -> bool:
        """Whether the method multiplies gradients as long as they are; the others look at directions alone."""
        return self.method == "cadc"
