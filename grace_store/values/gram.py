"""Packed Grams, and blocks of Grams with samples along the last axis. Knows no settings and no scores.

A sample with K steps has m = K + 1 segments, the answer last. A packed Gram is the lower triangle row by row,
with the diagonal: m (m + 1) / 2 values, where row k holds the products of segment k with segments 0..k.

In a block, samples are columns, and samples with most steps come first. So the samples that have a step k are the
first active[k] columns, and one loop over steps serves all samples. All later operations are elementwise, or sums over
a leading axis. Unlike a matrix product, they give a sample the same bits whatever its block, its neighbours and the
number of threads, so equal samples tie exactly. With a single column numpy would add in another order, so the first
sample of a chunk is there twice.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from grace_store.base.arrays import Array, BoolArray, FloatArray, IntArray, Numbers, offsets_of


def num_entries(num_segments: int) -> int:
    """Return how many values a packed Gram of that many segments has.

    >>> num_entries(10)
    55
    """
    return num_segments * (num_segments + 1) // 2


def num_segments(entries: int) -> int:
    """Return how many segments a packed Gram of that many values has.

    >>> num_segments(55)
    10
    """
    found = (math.isqrt(8 * entries + 1) - 1) // 2
    if num_entries(found) != entries:
        raise ValueError(f"{entries} values are not a packed Gram: expected 3, 6, 10, 15 or another triangular number")
    return found


def pack(gram: Numbers) -> Array:
    """Return the lower triangles of (n, m, m) Grams as (n, m(m+1)/2), in the same dtype.

    >>> pack(np.array([[[4.0, 2.0], [2.0, 9.0]]]))
    array([[4., 2., 9.]])
    """
    row, column = np.tril_indices(gram.shape[-1])
    return gram[:, row, column]


def unpack(packed: Numbers) -> FloatArray:
    """Return packed Grams (n, m(m+1)/2) as symmetric matrices (n, m, m).

    >>> unpack(np.array([[4, 2, 9]], dtype=np.float32))
    array([[[4., 2.],
            [2., 9.]]])
    """
    size = num_segments(packed.shape[1])
    row, column = np.tril_indices(size)
    gram = np.empty((len(packed), size, size), dtype=np.float64)
    gram[:, row, column] = packed
    gram[:, column, row] = packed
    return gram


def is_step(num_steps: Numbers) -> BoolArray:
    """Return whether each segment, flat over samples, is a step; the last segment of a sample is its answer.

    >>> is_step(np.array([2, 1]))
    array([ True,  True, False,  True, False])
    """
    found = np.ones(int((num_steps + 1).sum()), dtype=np.bool_)
    found[np.cumsum(num_steps + 1) - 1] = False
    return found


TINY = float(np.finfo(np.float32).tiny)
"""Least squared length that has all digits in float32; a shorter vector counts as zero."""
RESOLUTION = 2.0**-22
"""Four times the rounding of a float32 Gram: a smaller share of (sum of w |g|)^2 in r.r is rounding."""
CHUNK_ENTRIES = 1 << 18
"""Gram entries in a chunk, to fit a processor's cache. Changes the speed, never a bit."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of vectors; all arrays have the same shape."""

    square: FloatArray
    norm: FloatArray
    """Never 0: a zero vector has the square root of TINY."""
    zero: BoolArray

    @classmethod
    def of(cls, square: FloatArray) -> Self:
        return cls(square, np.sqrt(np.maximum(square, TINY)), square < TINY)


@dataclass(frozen=True, slots=True)
class GramColumns:
    """The Grams and token counts of n samples with up to K steps; entries of missing steps are 0."""

    num_steps: IntArray
    """(n,), never rising."""
    active: list[int]
    """Number of samples that have each step, (K,)."""
    entry: FloatArray
    """The steps' products with each other, packed like Grams, (K(K+1)/2, n)."""
    answer: FloatArray
    """The steps' products with the answer, (K, n)."""
    step_length: Lengths
    """(K, n)"""
    answer_length: Lengths
    """(n,)"""
    step_tokens: FloatArray
    """(K, n)"""
    answer_tokens: FloatArray
    """(n,)"""

    @property
    def present(self) -> BoolArray:
        """Whether a sample has a step, (K, n)."""
        return np.arange(len(self.active))[:, None] < self.num_steps

    def before(self, step: int) -> FloatArray:
        """Return a view of the products of a step with earlier steps, for the samples that have the step."""
        start = num_entries(step)
        return self.entry[start : start + step, : self.active[step]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of a block's samples as columns; column i + 1 is sample[i]."""

    sample: IntArray
    gram: GramColumns

    def columns_of(self, flat: FloatArray, offsets: IntArray) -> FloatArray:
        """Return flat numbers of a block's steps as columns, (K, n), 0 for steps that a sample does not have."""
        columns = np.zeros(self.gram.present.shape)
        step, column = np.nonzero(self.gram.present)
        sample = np.concatenate([self.sample[:1], self.sample])
        columns[step, column] = flat[offsets[sample[column]] + step]
        return columns

    def write_steps(self, columns: FloatArray, flat: FloatArray, offsets: IntArray) -> None:
        """Write columns of steps, (K, n), into the flat numbers of a block's steps."""
        step, column = np.nonzero(self.gram.present[:, 1:])
        flat[offsets[self.sample[column]] + step] = columns[step, column + 1]


class Block:
    """Consecutive samples with concatenated packed Grams and token counts; without tokens, token columns are NaN."""

    def __init__(self, num_steps: Numbers, packed: Numbers, num_tokens: Numbers, *, tokens: bool = True) -> None:
        self.num_steps = steps = num_steps.astype(np.int64)
        self.gram_offset = offsets_of((steps + 1) * (steps + 2) // 2)
        self.token_offset = offsets_of(steps + 1)
        if (steps < 1).any():
            raise ValueError("a sample without steps cannot be scored")
        if packed.shape != (self.gram_offset[-1],) or num_tokens.shape != (self.token_offset[-1],):
            raise ValueError(
                f"{len(steps)} samples with {steps.sum()} steps have {self.gram_offset[-1]} Gram entries and "
                f"{self.token_offset[-1]} token counts, not {packed.shape} and {num_tokens.shape}"
            )
        finite = np.isfinite(packed)
        self.not_finite = np.zeros(len(steps), dtype=np.bool_)
        """Samples with NaN or infinity in their Gram, (n,); their columns are 0."""
        if not finite.all():
            self.not_finite = ~np.logical_and.reduceat(finite, self.gram_offset[:-1])
            packed = np.where(np.repeat(self.not_finite, np.diff(self.gram_offset)), 0, packed)
        self._packed, self._num_tokens, self._has_tokens = packed, num_tokens, tokens

    def chunks(self) -> Iterator[Chunk]:
        """Yield every sample once, samples with most steps first."""
        order = np.argsort(-self.num_steps, kind="stable")
        start = 0
        while start < len(order):
            size = max(1, CHUNK_ENTRIES // num_entries(int(self.num_steps[order[start]])))
            sample = order[start : start + size]
            yield Chunk(sample, self._columns(np.concatenate([sample[:1], sample])))
            start += size

    def _columns(self, sample: IntArray) -> GramColumns:
        steps = self.num_steps[sample]
        most = int(steps[0])
        active = np.searchsorted(-steps, -np.arange(most), side="left").tolist()
        gram_start, token_start = self.gram_offset[sample], self.token_offset[sample]
        answer_start = gram_start + steps * (steps + 1) // 2
        shape = (most, len(sample))
        entry, answer = np.zeros((num_entries(most), len(sample))), np.zeros(shape)
        tokens = np.zeros(shape) if self._has_tokens else np.broadcast_to(np.nan, shape)
        for run, stop in _runs(active):
            first, last = num_entries(run), num_entries(stop)
            num = active[run]
            entry[first:last, :num] = _turned(self._packed, gram_start[:num] + first, last - first)
            answer[run:stop, :num] = _turned(self._packed, answer_start[:num] + run, stop - run)
            if self._has_tokens:
                tokens[run:stop, :num] = _turned(self._num_tokens, token_start[:num] + run, stop - run)
        step = np.arange(most)
        return GramColumns(
            num_steps=steps,
            active=active,
            entry=entry,
            answer=answer,
            step_length=Lengths.of(entry[step * (step + 3) // 2]),
            answer_length=Lengths.of(self._packed[answer_start + steps].astype(np.float64)),
            step_tokens=tokens,
            answer_tokens=self._num_tokens[token_start + steps].astype(np.float64) if self._has_tokens else tokens[0],
        )


def _turned(flat: Numbers, start: IntArray, length: int) -> Numbers:
    """Return runs of a flat array, all of one length, as columns."""
    runs: Numbers = np.lib.stride_tricks.sliding_window_view(flat, length)[start]
    return runs.T


def _runs(active: list[int]) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of steps that the same samples have."""
    start = 0
    for step in range(1, len(active) + 1):
        if step == len(active) or active[step] != active[start]:
            yield start, step
            start = step
