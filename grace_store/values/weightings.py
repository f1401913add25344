"""Methods that weigh steps, and their settings. numpy only. A new method is one more entry of WEIGHTINGS."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.base.settings import Settings
from grace_store.values.gram import RESOLUTION, TINY, GramColumns, num_entries
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.nnls import nonnegative_least_squares
from grace_store.values.ranking import DIGITS, budget


@dataclass(frozen=True, slots=True)
class Pulls:
    """Products of the pulls of n samples with up to K steps, samples in columns as in GramColumns.

    A trainer that counts each token of step k with weight u_k follows the sum of u_k p_k, where the pull p_k is the
    vector of the step times its share of the tokens of all steps. Only the products of this sum with itself and with
    the answer are needed, so Grams are enough. Several signals count as one signal: the products of each signal,
    divided by the squared length of its answer's vector, are added with the signals' shares.
    """

    num_steps: IntArray
    cosine: FloatArray
    """Cosines of pulls with each other, packed like Grams, (K(K+1)/2, n)."""
    answer_cosine: FloatArray
    """Cosines of pulls with the answer, (K, n)."""
    length: FloatArray
    """Length of each pull divided by the length of the answer's vector, (K, n); 0 for a pull without a direction."""
    met_zero: BoolArray
    """Samples with a vector that has no direction, (n,)."""
    has_target: BoolArray
    """Samples whose answers have a direction in every signal, (n,)."""

    @classmethod
    def of(cls, grams: Sequence[GramColumns], shares: Sequence[float]) -> Self:
        """Return the pulls of samples from the columns of one or several signals; the shares add up to 1."""
        first = grams[0]
        product, dot = np.zeros_like(first.entry), np.zeros_like(first.answer)
        for gram, share in zip(grams, shares, strict=True):
            # Products are scaled as if the answer's vector had length 1.
            tokens = gram.step_tokens / gram.step_tokens.sum(axis=0)
            factor = np.where(gram.answer_length.zero, 0.0, share / np.maximum(gram.answer_length.square, TINY))
            for row in range(len(dot)):
                here = slice(num_entries(row), num_entries(row + 1))
                product[here] += gram.entry[here] * (tokens[: row + 1] * (tokens[row] * factor))
            dot += gram.answer * (tokens * factor)
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
        """Return the cosine of each sample's weighted sum of pulls with the answer, (n,); 0 for a sum of zero.

        weight is (K, n), 0 for steps that a sample does not have.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The input of a method: the steps of n samples, with samples in columns; all arrays are (K, n)."""

    pulls: Pulls
    present: BoolArray
    """Whether a sample has the step."""
    score: FloatArray | None
    """Step scores, 0 for steps that a sample does not have; None unless the method uses scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """A method that weighs steps."""

    about: str
    """One line for --help."""
    settings: tuple[str, ...] = ()
    """Settings of the spec that the method uses. A value for any other setting is refused."""
    is_mask: bool = False
    """Whether weights are 0 or 1, which every trainer with masks can use; masks are not scaled."""
    weigh: Callable[["WeightsSpec", Steps], FloatArray]
    """Function from the spec and steps to weights, (K, n), of any scale; NaN for a sample without weights."""


def _drop_share(value: float) -> float:
    if not 0 < value < 1:
        raise SettingError(f"--drop-share {value:g} is not between 0 and 1")
    return value


class WeightsSpec(Settings):
    """How steps are weighed: everything that changes weights."""

    method: str = "fit"
    """How steps are weighed."""
    drop_share: Annotated[float, AfterValidator(_drop_share)] = 0.2
    """With the method drop, share of each sample's steps to drop. The number of steps is rounded up, but at least one
    step stays."""
    answer_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the answer's tokens. The steps' tokens have a mean weight of 1."""
    scores: ScoreSpec = Field(default_factory=ScoreSpec)
    """How steps are scored, for the methods that look at scores."""

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        if self.method not in WEIGHTINGS:
            raise SettingError(f"unknown value {self.method[:40]!r} of --method: use one of {', '.join(WEIGHTINGS)}")
        used = WEIGHTINGS[self.method].settings
        if "drop_share" not in used and self.drop_share != WeightsSpec.model_fields["drop_share"].default:
            raise SettingError(f"--method {self.method} does not drop steps: leave --drop-share out")
        if "scores" not in used and self.scores != ScoreSpec():
            raise SettingError(
                f"--method {self.method} does not use step scores: leave --measure, --alpha, --history and --target out"
            )
        if len(self.scores.measure) > 1 or not self.scores.has_steps:
            raise SettingError(f"Weights of steps need one measure of steps, and {self.scores.title} is none")
        if self.method == "scores" and not self.scores.is_grace:
            raise SettingError(f"--method scores needs measure grace: use --method drop with {self.scores.title}")
        if self.scores.without_answer or self.scores.aggregation != "mean" or self.scores.target == "group":
            raise SettingError(
                "Weights of steps need --target answer, trace or suffix, no aggregation, no without_answer"
            )
        return self


def _fit(_: WeightsSpec, steps: Steps) -> FloatArray:
    """Return weights by non-negative least squares, sample by sample."""
    pulls = steps.pulls
    amount = nonnegative_least_squares(pulls.cosine, pulls.answer_cosine, pulls.num_steps)
    return np.divide(amount, pulls.length, out=amount * 0.0, where=pulls.length > 0)


def _scores(_: WeightsSpec, steps: Steps) -> FloatArray:
    assert steps.score is not None
    # NaN stays NaN: a sample without scores has no weights.
    return np.maximum(steps.score, 0.0)


def _drop(spec: WeightsSpec, steps: Steps) -> FloatArray:
    assert steps.score is not None
    # Of equal scores the later step is dropped first: an earlier step has said the same.
    score = np.round(np.where(steps.present, steps.score, np.inf) * 2**DIGITS)  # as values are compared
    worst_first = np.argsort(score[::-1], axis=0, kind="stable")
    place = np.argsort(worst_first, axis=0, kind="stable")[::-1]
    num_steps = np.count_nonzero(steps.present, axis=0)
    num_dropped = np.array([min(budget(spec.drop_share, num), num - 1) for num in range(1, len(place) + 1)])
    weight = ((place >= num_dropped[num_steps - 1]) & steps.present).astype(np.float64)
    return np.where(np.isnan(steps.score), np.nan, weight)


WEIGHTINGS = {
    "fit": Weighting(
        about="weights whose sum of the steps' directions is closest to the answer's direction", weigh=_fit
    ),
    "scores": Weighting(about="step scores, those below 0 counting as 0", settings=("scores",), weigh=_scores),
    "drop": Weighting(
        about="0 for the worst steps by score, 1 for all others: what every trainer with masks can use",
        settings=("drop_share", "scores"),
        is_mask=True,
        weigh=_drop,
    ),
}
"""Methods by name, in the order that help shows them."""
