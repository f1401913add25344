"""The settings of methods that score by the influence on a target set."""

from __future__ import annotations

import math

from pydantic import Field, field_validator

from grace_store.base.errors import SettingError
from grace_store.values.methods.method_spec import MethodSpec


class InfluenceSpec(MethodSpec):
    """Which method makes values of projected gradients and a target set."""

    vote_percent: float = 20.0
    """With the method icons, percentage of the samples that each subtask votes for, the most influential first."""
    join_cosine: float = 0.5
    """With the method cadc, join subtasks whose gradients' trajectories have at least this cosine."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the methods random (its values) and cadc (its clustering)."""

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
