"""What a way of weighing steps is: what it knows of steps, and its settings. numpy only.

A new one is a module with one ``Weighting`` called WEIGHTING, and its name in ``weightings/__init__``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.base.settings import Settings
from grace_store.values.gram import RESOLUTION, TINY, GramColumns, num_entries
from grace_store.values.methods.method import ScoreSpec


@dataclass(frozen=True, slots=True)
class Pulls:
    """Products of the pulls of n samples with up to K steps, samples in columns as in GramColumns.

    A trainer that counts each token of step k with weight u_k follows the sum of u_k p_k, where the pull p_k is the
    vector of the step times its share of the tokens of all steps. All that is asked of that sum is its products with
    itself and with the answer, so Grams are enough. Several signals are one: their products, each divided by the
    squared length of its answer's vector, are added with the signals' shares.
    """

    num_steps: IntArray
    cosine: FloatArray
    """Of pulls with each other, packed like Grams, (K(K+1)/2, n)."""
    answer_cosine: FloatArray
    """Of pulls with the answer, (K, n)."""
    length: FloatArray
    """Of each pull, against the answer's vector, (K, n); 0 for one without a direction."""
    met_zero: BoolArray
    """Samples with a vector that has no direction, (n,)."""
    has_target: BoolArray
    """Samples whose answers have a direction in every signal, (n,)."""

    @classmethod
    def of(cls, grams: Sequence[GramColumns], shares: Sequence[float]) -> Self:
        """Return the pulls of samples from one signal's columns or several', whose shares add up to 1."""
        first = grams[0]
        product, dot = np.zeros_like(first.entry), np.zeros_like(first.answer)
        for gram, share in zip(grams, shares, strict=True):
            _add_products(product, dot, gram, share)
        step = np.arange(len(dot))
        length = np.sqrt(product[step * (step + 3) // 2])
        is_zero = np.logical_and.reduce([gram.step_length.zero for gram in grams])
        length[is_zero] = 0.0
        unit = np.where(length > 0, 1.0 / np.where(length > 0, length, 1.0), 0.0)
        for row in range(len(dot)):
            product[num_entries(row) : num_entries(row + 1)] *= unit[: row + 1] * unit[row]
        any_zero = np.logical_or.reduce([gram.step_length.zero & gram.present for gram in grams]).any(axis=0)
        no_target = np.logical_or.reduce([gram.answer_length.zero for gram in grams])
        return cls(first.num_steps, product, dot * unit, length, any_zero | no_target, ~no_target)

    def cosines_of(self, weight: FloatArray) -> FloatArray:
        """Return the cosine with the answer of each sample's weighted sum of pulls, (n,); 0 where it has no direction.

        weight is (K, n), 0 for steps that a sample has not.
        """
        pull = weight * self.length
        dot, square = np.zeros(pull.shape[1]), np.zeros(pull.shape[1])
        for step in range(len(pull)):
            dot += pull[step] * self.answer_cosine[step]
            row = self.cosine[num_entries(step) : num_entries(step + 1)]
            square += pull[step] ** 2
            for before in range(step):
                square += 2.0 * pull[step] * pull[before] * row[before]
        is_zero = square <= np.maximum(RESOLUTION * pull.sum(axis=0) ** 2, TINY)
        return np.where(is_zero, 0.0, np.clip(dot / np.sqrt(np.where(is_zero, 1.0, square)), -1.0, 1.0))


def _add_products(product: FloatArray, dot: FloatArray, gram: GramColumns, share: float) -> None:
    """Add a signal's products, scaled to an answer's vector of length 1."""
    tokens = gram.step_tokens / gram.step_tokens.sum(axis=0)
    factor = np.where(gram.answer_length.zero, 0.0, share / np.maximum(gram.answer_length.square, TINY))
    for row in range(len(dot)):
        here = slice(num_entries(row), num_entries(row + 1))
        product[here] += gram.entry[here] * (tokens[: row + 1] * (tokens[row] * factor))
    dot += gram.answer * (tokens * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is known of the steps of n samples, which stand in columns; all arrays are (K, n)."""

    pulls: Pulls
    present: BoolArray
    """Which steps samples have."""
    score: FloatArray | None
    """Step scores, 0 for steps that a sample has not; None unless the weighting uses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """One way of weighing steps."""

    name: str
    about: str
    """What it does, in a line; shown in --help."""
    settings: tuple[str, ...] = ()
    """Those of the spec's settings that it uses. The others are refused, not ignored."""
    is_mask: bool = False
    """Whether weights are 0 or 1, which every trainer with masks can use; they are not scaled then."""
    weigh: Callable[[Any, Steps], FloatArray]
    """From the spec and steps to weights, (K, n), of any scale; NaN for all steps of a sample that has none."""

    @property
    def uses_scores(self) -> bool:
        return "scores" in self.settings


# ---------------------------------------------------------------- settings: none of them is ignored


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
