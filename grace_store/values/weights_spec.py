"""The settings of step weights: none of them is ignored."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from grace_store.base.errors import SettingError
from grace_store.base.settings import Settings
from grace_store.values.score_spec import ScoreSpec


def _share(value: float) -> float:
    if not 0 < value < 1:
        raise SettingError(f"--drop-share {value:g} is not between 0 and 1")
    return value


class WeightsSpec(Settings):
    """How steps are weighed: everything that changes weights."""

    method: str = "fit"
    """How steps are weighed."""
    drop_share: Annotated[float, AfterValidator(_share)] = 0.2
    """With the method drop, share of each sample's steps to drop: rounded up, but never all of them."""
    answer_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the answer's tokens, where those of steps have a mean of 1."""
    scores: ScoreSpec = Field(default_factory=ScoreSpec)
    """How steps are scored, for the methods that look at scores."""

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        from grace_store.values.weightings import WEIGHTINGS

        if self.method not in WEIGHTINGS:
            raise SettingError(f"--method {self.method[:40]} is none of {', '.join(WEIGHTINGS)}")
        used = WEIGHTINGS[self.method].settings
        if "drop_share" not in used and self.drop_share != WeightsSpec.model_fields["drop_share"].default:
            raise SettingError(f"--method {self.method} drops no share of the steps: leave --drop-share out")
        if "scores" not in used and self.scores != ScoreSpec():
            raise SettingError(f"--method {self.method} uses no step scores: leave --alpha, --history, --target out")
        if self.scores.without_answer or self.scores.aggregation != "mean" or self.scores.target == "group":
            raise SettingError("Steps are weighed by scores with the answer, trace or suffix as target, each by itself")
        return self
