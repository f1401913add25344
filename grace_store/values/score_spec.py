"""The settings of GRACE: everything that changes values."""

import math
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from grace_store.base.errors import SettingError
from grace_store.values.methods.method import MethodSpec
from grace_store.values.step_rules import parse_aggregation, parse_history


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
