"""The step weights of some samples with any numbers of steps. Knows arrays, not where weights come from."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from grace_store.base.arrays import FlagArray, FloatArray, IntArray, Numbers
from grace_store.values.gram import offsets_of


@dataclass(frozen=True, slots=True)
class RaggedWeights:
    """The weights of n samples; steps lie flat, sample i owning offsets[i]..offsets[i + 1]."""

    weight: FloatArray
    """NaN for all steps of a sample that has no weights."""
    equal_cosine: FloatArray
    """Of the sum of all steps' pulls with the answer, (n,)."""
    cosine: FloatArray
    """The same of the weighted sum; 0 where all weights are 0."""
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
        """Take over the weights of some of the samples, those at these places."""
        mine = np.zeros(len(self.flags), dtype=np.bool_)
        mine[place] = True
        self.weight[np.repeat(mine, np.diff(self.offsets))] = part.weight
        self.equal_cosine[place], self.cosine[place], self.flags[place] = part.equal_cosine, part.cosine, part.flags
