"""Longest: the responses with the most tokens."""

from __future__ import annotations

import numpy as np

from grace_store.base.arrays import FloatArray, Numbers
from grace_store.values.gram import offsets_of
from grace_store.values.methods.heuristic_spec import HeuristicSpec
from grace_store.values.methods.method import Heuristic


def longest_values(num_parts: Numbers, num_tokens: Numbers) -> FloatArray:
    """Return the number of tokens in the response.

    >>> longest_values(np.array([2, 3]), np.array([5, 1, 7, 7, 2]))
    array([ 6., 16.])
    """
    return sum_by_sample(num_parts, num_tokens.astype(np.float64))


def sum_by_sample(num_parts: Numbers, part: FloatArray) -> FloatArray:
    """Return the sum of each sample's parts, which lie flat."""
    offsets = offsets_of(num_parts)
    if part.shape != (offsets[-1],):
        raise ValueError(f"{len(num_parts)} samples have {offsets[-1]} parts, not {part.shape}")
    if len(num_parts) == 0:
        return np.zeros(0)
    sums: FloatArray = np.add.reduceat(part, offsets[:-1])
    return sums


METHOD = Heuristic(
    name="longest",
    about="the most tokens in the response",
    spec=HeuristicSpec,
    reads="tokens",
    values=lambda _, samples: longest_values(samples.num_parts, samples.num_tokens),
)
