"""Grams to step weights: how much a trainer should count each token of a step. A new method is an entry of WEIGHTINGS.

A weight is a factor on the loss of each token of its step. The weights of a sample are scaled so that their mean over
the tokens of its steps is 1. If the answer's tokens have weight 1, the mean over the whole response is 1, too. Masks
(0 or 1) are not scaled, because trainers take means over the tokens that a mask keeps. Knows Grams and settings, no
files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from grace_store.base.arrays import BoolArray, FlagArray, FloatArray, IntArray, Numbers, offsets_of
from grace_store.base.errors import SettingError
from grace_store.base.settings import Settings
from grace_store.base.states import Flag
from grace_store.values.gram import RESOLUTION, TINY, Block, GramColumns, num_entries
from grace_store.values.methods.method import ScoreSpec
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
        length[np.logical_and.reduce([gram.step_length.zero for gram in grams])] = 0.0
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
        if self.scores.without_answer or str(self.scores.step_aggregation) != "mean" or self.scores.target == "group":
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


@dataclass(frozen=True, slots=True)
class RaggedWeights:
    """The weights of n samples; steps lie flat, sample i owning offsets[i]..offsets[i + 1]."""

    weight: FloatArray
    """NaN for all steps of a sample that has no weights."""
    equal_cosine: FloatArray
    """Cosine of the sum of all steps' pulls with the answer, (n,)."""
    cosine: FloatArray
    """Cosine of the weighted sum with the answer, (n,); 0 where all weights are 0."""
    flags: FlagArray
    """(n,), bits of Flag."""
    offsets: IntArray
    """(n + 1,), from 0 to the number of steps."""

    @classmethod
    def none(cls, num_steps: Numbers) -> Self:
        """Return samples without weights, flags or cosines."""
        offsets, num = offsets_of(num_steps), len(num_steps)
        weight, equal, cosine = (np.full(size, np.nan) for size in (int(offsets[-1]), num, num))
        return cls(weight, equal, cosine, np.zeros(num, dtype=np.uint8), offsets)

    def put(self, part: Self, place: IntArray) -> None:
        """Copy the weights of some samples to these places."""
        mine = np.zeros(len(self.flags), dtype=np.bool_)
        mine[place] = True
        self.weight[np.repeat(mine, np.diff(self.offsets))] = part.weight
        self.equal_cosine[place], self.cosine[place], self.flags[place] = part.equal_cosine, part.cosine, part.flags


class SignalGrams(NamedTuple):
    """The Grams and token counts of some samples in one signal."""

    packed: Numbers
    """Packed Grams, concatenated."""
    num_tokens: Numbers
    """Token counts of segments, concatenated, the answer of a sample last."""
    share: float = 1.0
    """Share of the signal; the shares of all signals add up to 1."""


def weigh_ragged(
    num_steps: Numbers, signals: Sequence[SignalGrams], spec: WeightsSpec, step_score: FloatArray | None = None
) -> RaggedWeights:
    """Weigh the steps of consecutive samples with any numbers of steps, by one signal or several together.

    num_steps is (n,); step_score, one number for each step, is for the methods that use scores.

    >>> gram = np.array([1.0, 0.0, 1.0, 0.5, -0.5, 1.0])
    >>> weigh_ragged(np.array([2]), [SignalGrams(gram, np.array([6, 2, 1]))], WeightsSpec()).weight.round(4)
    array([1.3333, 0.    ])
    """
    weighting = WEIGHTINGS[spec.method]
    blocks = [Block(num_steps, each.packed, each.num_tokens) for each in signals]
    found = RaggedWeights.none(num_steps)
    for chunks in zip(*(block.chunks() for block in blocks), strict=True):
        first = chunks[0]
        score = None if step_score is None else first.columns_of(step_score, found.offsets)
        pulls = Pulls.of([chunk.gram for chunk in chunks], [each.share for each in signals])
        weight = weighting.weigh(spec, Steps(pulls=pulls, present=first.gram.present, score=score))
        if not weighting.is_mask:  # weights that are all 0 stay 0
            tokens = first.gram.step_tokens
            total = np.add.reduce(weight * tokens, axis=0)
            is_any = total > 0
            weight = weight * np.where(is_any, np.add.reduce(tokens, axis=0) / np.where(is_any, total, 1.0), 1.0)
        weight[:, ~pulls.has_target] = np.nan
        found.equal_cosine[first.sample] = pulls.cosines_of(first.gram.present.astype(np.float64))[1:]
        found.cosine[first.sample] = pulls.cosines_of(weight)[1:]
        found.flags[first.sample] = (pulls.met_zero * np.uint8(Flag.ZERO_VECTOR))[1:]
        first.write_steps(weight, found.weight, found.offsets)
    not_finite = np.logical_or.reduce([block.not_finite for block in blocks]).astype(np.bool_)
    has_none = not_finite
    if len(not_finite):
        has_none = not_finite | np.logical_or.reduceat(np.isnan(found.weight), found.offsets[:-1])
    found.weight[np.repeat(has_none, np.diff(found.offsets))] = np.nan
    found.cosine[has_none] = found.equal_cosine[has_none] = np.nan
    found.flags[has_none] |= np.uint8(Flag.NO_VALUE)
    found.flags[not_finite] = Flag.NOT_FINITE
    return found


# ---------------------------------------------------------------- non-negative least squares
# Many small problems at once, from inner products alone, by block principal pivoting: guess which variables are above
# 0, solve for these, exchange the variables that violate the KKT conditions, and repeat. If exchanging many variables
# at once stops helping, only the last of them is exchanged, which ends after finitely many rounds (Murty's rule).
# Problems are columns, and all operations are elementwise along the columns, so the bits of a result do not depend on
# the other problems.

RIDGE = 2.0**-18
"""Added to the diagonal, which is 1. It is larger than the error of float32 in the least eigenvalue, so there is always
exactly one optimum. Equal variables share their amount."""
TOLERANCE = 1e-9
"""How far a variable or a slope may be below 0, relative to the largest variable."""
FULL_EXCHANGES = 3
"""Rounds without progress before exchanges become single."""
SOLVED_AT_ONCE = 1 << 18
"""Matrix entries that are solved together, to fit a processor's cache. Changes the speed, never a bit."""


def nonnegative_least_squares(packed: FloatArray, dot: FloatArray, num: IntArray) -> FloatArray:
    """Return x >= 0, (K, n), that minimises x'Ax - 2 x'dot for each of n problems; NaN where A is no Gram.

    packed is (K(K+1)/2, n): lower triangles of matrices with a diagonal of 1, row by row. num (n,), never rising, is
    the number of variables of each problem; all entries beyond it are 0, here and in dot (K, n).

    >>> one = np.ones(1)
    >>> nonnegative_least_squares(np.stack([one, 0 * one, one]), np.stack([0.5 * one, -one]), np.array([2])).round(5)
    array([[0.5],
           [0. ]])
    """
    solution = np.zeros_like(dot)
    start = 0
    while start < len(num):
        most = max(1, int(num[start]))
        here = slice(start, start + max(1, SOLVED_AT_ONCE // most**2))
        solution[:most, here] = _Problems.of(packed[: num_entries(most), here], dot[:most, here]).solve()
        start = here.stop
    return solution


@dataclass(slots=True)
class _Problems:
    """Some problems of K variables each, and the state of their solution."""

    matrix: FloatArray
    """(K, K, n)"""
    dot: FloatArray
    """(K, n)"""
    is_free: BoolArray
    """Variables that are assumed to be above 0, (K, n)."""
    fewest_wrong: IntArray
    """Least number of violated conditions so far, (n,)."""
    patience: IntArray
    """Full exchanges left, (n,)."""

    @classmethod
    def of(cls, packed: FloatArray, dot: FloatArray) -> Self:
        num_variables, num = dot.shape
        matrix = np.empty((num_variables, num_variables, num))
        for row in range(num_variables):
            matrix[row, : row + 1] = matrix[: row + 1, row] = packed[num_entries(row) : num_entries(row + 1)]
            matrix[row, row] = 1 + RIDGE
        return cls(matrix, dot, dot > 0, np.full(num, num_variables + 1), np.full(num, FULL_EXCHANGES))

    def solve(self) -> FloatArray:
        """Return the optimum of each problem; NaN if its matrix is not positive definite."""
        problems, place = self, np.arange(self.dot.shape[1])
        solution = np.full(self.dot.shape, np.nan)
        for _ in range(100 + 10 * len(self.dot)):
            variable, is_sound = problems._solve_free()
            is_wrong = problems._on_wrong_side(variable)
            is_right = is_sound & ~is_wrong.any(axis=0)
            solution[:, place[is_right]] = np.maximum(variable[:, is_right], 0.0)
            go_on = is_sound & ~is_right
            if not go_on.any():
                break
            problems._exchange(is_wrong)
            if not go_on.all():
                arrays = (getattr(problems, each.name)[..., go_on] for each in fields(problems))
                problems, place = _Problems(*arrays), place[go_on]
        return solution

    def _solve_free(self) -> tuple[FloatArray, BoolArray]:
        """Return the optimum over the free variables, with 0 for the others, and which problems had sound pivots."""
        work, right, inverse = self.matrix.copy(), self.dot.copy(), np.empty_like(self.dot)
        is_sound = np.ones(right.shape[1], dtype=np.bool_)
        for pivot in range(len(right)):
            size = work[pivot, pivot]
            is_sound &= (size > RIDGE / 4) | ~self.is_free[pivot]
            inverse[pivot] = np.where(self.is_free[pivot], 1.0 / np.where(size > RIDGE / 4, size, 1.0), 0.0)
            share = work[pivot, pivot + 1 :] * inverse[pivot]
            work[pivot + 1 :, pivot + 1 :] -= work[pivot + 1 :, pivot, None] * share
            right[pivot + 1 :] -= share * right[pivot]
        for pivot in reversed(range(len(right))):
            right[pivot] *= inverse[pivot]
            right[:pivot] -= work[:pivot, pivot] * right[pivot]
        return right, is_sound

    def _on_wrong_side(self, variable: FloatArray) -> BoolArray:
        """Return which variables violate the KKT conditions: free and below 0, or fixed at 0 with a negative slope."""
        slope = -self.dot
        for each in range(len(variable)):
            slope += self.matrix[each] * variable[each]
        allowed = -TOLERANCE * (1.0 + np.abs(variable).max(axis=0))
        return np.asarray(np.where(self.is_free, variable, slope) < allowed)

    def _exchange(self, is_wrong: BoolArray) -> None:
        """Exchange all variables that are wrong, or only the last of them after rounds without progress."""
        num_wrong = np.count_nonzero(is_wrong, axis=0)
        is_better = num_wrong < self.fewest_wrong
        is_single = ~is_better & (self.patience == 0)
        self.patience = np.where(is_better, FULL_EXCHANGES, np.maximum(self.patience - 1, 0))
        self.fewest_wrong = np.minimum(num_wrong, self.fewest_wrong)
        last = len(is_wrong) - 1 - np.argmax(is_wrong[::-1], axis=0)
        is_last = np.arange(len(is_wrong))[:, None] == last
        self.is_free ^= is_wrong & (~is_single | is_last)
