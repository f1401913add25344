"""A response in parts, each with its weight, cut so that parts have the tokens that they have in the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.data.sample import Sample

Cut = Callable[[Sample], Sequence[int]]
"""From a sample to where the parts of its response begin, one for each segment, and where the last one ends."""
DIGITS = 6
"""Of a weight, after the point: enough for a mean of 1, few enough to read."""


class Part(NamedTuple):
    """Some of a response, and how much each of its tokens counts."""

    text: str
    weight: float


def weighted_parts(sample: Sample, weights: FloatArray | None, cut: Cut) -> list[Part]:
    """Return the response in parts, neighbours of one weight together; without weights, all of it with weight 1."""
    if weights is None:
        return [Part(sample.response, 1.0)]
    rounded = np.round(weights, DIGITS).tolist()
    parts: list[Part] = []
    for (start, stop), weight in zip(pairwise(cut(sample)), rounded, strict=True):
        text = sample.response[start:stop]
        if parts and parts[-1].weight == weight:
            parts[-1] = Part(parts[-1].text + text, weight)
        else:
            parts.append(Part(text, weight))
    return parts


def cut_by_spaces(sample: Sample) -> list[int]:
    """Cut where byte-level tokenizers do: line ends stay with the step before, the space before a word goes with it.

    >>> sample = Sample("a", (), "One. Two.\\nThree.", (0, 5, 10, 16))
    >>> [part.text for part in weighted_parts(sample, np.arange(3.0), cut_by_spaces)]
    ['One.', ' Two.\\n', 'Three.']
    """
    return [0, *_moved(sample.response, sample.bounds), len(sample.response)]


def _moved(response: str, bounds: Sequence[int]) -> Iterator[int]:
    for before, bound in pairwise(bounds[:-1]):
        takes_space = bound - before > 1 and response[bound - 1] == " " and not response[bound].isspace()
        yield bound - takes_space
