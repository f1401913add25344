"""Grams to step weights: how much a trainer should count each token of a step. Knows Grams and settings, no files.

A weight is a factor on the loss of each token of its step. The weights of a sample are scaled so that their mean over
the tokens of its steps is 1. If the answer's tokens have weight 1, the mean over the whole response is 1, too. Masks
(0 or 1) are not scaled, because trainers take means over the tokens that a mask keeps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from grace_store.base.arrays import FlagArray, FloatArray, IntArray, Numbers, offsets_of
from grace_store.base.states import Flag
from grace_store.values.gram import Block
from grace_store.values.weightings import WEIGHTINGS, Pulls, Steps, WeightsSpec


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
        steps = Steps(pulls=pulls, present=first.gram.present, score=score)
        weight = weighting.weigh(spec, steps)
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
