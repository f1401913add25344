"""Values that need no vectors: random, longest, stepmax, loss, perplexity. The largest are kept, as with GRACE.

Token counts and losses lie flat: those of K + 1 segments to a sample, as in the store, or one for its whole response.
"""

from __future__ import annotations

from typing import Literal, Self, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from grace_store.base.arrays import FloatArray, Numbers
from grace_store.base.errors import SettingError
from grace_store.values.gram import offsets_of
from grace_store.values.score_spec import Settings

Heuristic = Literal["random", "longest", "stepmax", "loss", "perplexity"]
HEURISTICS: tuple[Heuristic, ...] = get_args(Heuristic)


class HeuristicSpec(Settings):
    """Which heuristic makes the values."""

    method: Heuristic
    seed: int = Field(default=0, ge=0, lt=2**64)
    """Which random values; for random only."""

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        if self.method != "random" and self.seed != 0:
            raise SettingError(f"method {self.method} has nothing random in it, so seed {self.seed} would be ignored")
        return self


def heuristic_values(
    spec: HeuristicSpec, *, row: Numbers, num_steps: Numbers, num_parts: Numbers, num_tokens: Numbers, loss: Numbers
) -> FloatArray:
    """Return the values (n,) of samples by any heuristic.

    row is where each one's record stands in the dataset, num_parts how many token counts and losses it has.
    """
    if spec.method == "random":
        return random_values(spec.seed, row)
    if spec.method == "longest":
        return longest_values(num_parts, num_tokens)
    if spec.method == "stepmax":
        return stepmax_values(num_steps)
    if spec.method == "loss":
        return loss_values(num_parts, num_tokens, loss)
    return perplexity_values(num_parts, num_tokens, loss)


def random_values(seed: int, row: Numbers) -> FloatArray:
    """Return numbers in [0, 1) that depend on nothing but the seed and each sample's row.

    Row i gets output number i of the SplitMix64 generator with that seed, its upper 53 bits.
    """
    mixed = _splitmix64(seed, row.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(seed: int, index: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    # Unsigned arrays wrap around silently, which is what is wanted here.
    state = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed


def stepmax_values(num_steps: Numbers) -> FloatArray:
    """Return the number of steps."""
    return num_steps.astype(np.float64)


def longest_values(num_parts: Numbers, num_tokens: Numbers) -> FloatArray:
    """Return the number of tokens in the response.

    >>> longest_values(np.array([2, 3]), np.array([5, 1, 7, 7, 2]))
    array([ 6., 16.])
    """
    return _sum_by_sample(num_parts, num_tokens.astype(np.float64))


def loss_values(num_parts: Numbers, num_tokens: Numbers, loss: Numbers) -> FloatArray:
    """Return the mean loss of the response's tokens, from its parts' mean losses; NaN without tokens.

    >>> loss_values(np.array([2]), np.array([3, 1]), np.array([1.0, 5.0]))
    array([2.])
    """
    counts = num_tokens.astype(np.float64)
    total = _sum_by_sample(num_parts, counts)
    weighted = _sum_by_sample(num_parts, counts * loss.astype(np.float64))
    return np.divide(weighted, total, out=np.full_like(total, np.nan), where=total > 0)


def perplexity_values(num_parts: Numbers, num_tokens: Numbers, loss: Numbers) -> FloatArray:
    """Return the perplexity of the response, exp of its mean loss; one too large for a float is infinite."""
    with np.errstate(over="ignore"):
        return np.exp(loss_values(num_parts, num_tokens, loss))


def _sum_by_sample(num_parts: Numbers, part: FloatArray) -> FloatArray:
    offsets = offsets_of(num_parts)
    if part.shape != (offsets[-1],):
        raise ValueError(f"{len(num_parts)} samples have {offsets[-1]} parts, not {part.shape}")
    if len(num_parts) == 0:
        return np.zeros(0)
    sums: FloatArray = np.add.reduceat(part, offsets[:-1])
    return sums
