"""Directions of gradients, their means over subtasks, and products with those. Knows no method and no files.

The mean over v of cos(z, v) is the product of z's direction with the mean of the directions of all v. So a subtask is
one vector, however many samples it has, and a block of samples costs one matrix product for each checkpoint.
"""

import numpy as np

from grace_store.base.arrays import FlagArray, FloatArray, IntArray, Numbers
from grace_store.base.states import Flag

ROWS_AT_ONCE = 256
"""Vectors that are held as float64 at a time."""


def unit_vectors(vectors: Numbers) -> tuple[FloatArray, FlagArray]:
    """Return vectors (n, D) with length 1, as float64, and the flags of each.

    One without a direction is all zero and flagged, also where that is because it is not finite.

    >>> unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0]]))
    (array([[0.6, 0.8],
           [0. , 0. ]]), array([0, 1], dtype=uint8))
    """
    wide = vectors.astype(np.float64)
    finite = np.isfinite(wide).all(axis=1)
    wide[~finite] = 0.0
    # Divided by the largest first: squares of very small or large numbers are no numbers.
    largest = np.abs(wide).max(axis=1, initial=0.0)
    has_direction = largest > 0
    wide /= np.where(has_direction, largest, 1.0)[:, None]
    wide /= np.where(has_direction, np.sqrt(np.einsum("nd,nd->n", wide, wide)), 1.0)[:, None]
    flags = np.where(finite, np.where(has_direction, 0, Flag.ZERO_VECTOR), Flag.NOT_FINITE)
    return wide, flags.astype(np.uint8)


def products(vectors: Numbers, directions: FloatArray, length: Numbers | None = None) -> tuple[FloatArray, FlagArray]:
    """Return the products (n, J) of vectors' directions with (J, D) vectors, and the flags of each vector.

    length (n,), if given, is what the directions are multiplied by first: the length that a stored vector had before
    it was normalised. A vector without direction has products of 0; one that is not finite has NaN.
    """
    out = np.empty((len(vectors), len(directions)))
    flags = np.zeros(len(vectors), dtype=np.uint8)
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        unit, flags[rows] = unit_vectors(vectors[rows])
        out[rows] = unit @ directions.T
    if length is not None:
        usable = np.isfinite(length)
        out *= np.where(usable, length, 0.0)[:, None]
        flags[~usable] |= np.uint8(Flag.NOT_FINITE)
    out[flags & np.uint8(Flag.NOT_FINITE) > 0] = np.nan
    return out, flags


class SubtaskMeans:
    """Adds up target vectors by subtask, some at a time; the order of adding is the order of the result's rounding."""

    def __init__(self, num_subtasks: int, dimension: int) -> None:
        self._sums = np.zeros((num_subtasks, dimension))
        self.counts = np.zeros(num_subtasks, dtype=np.int64)

    def add(self, vectors: FloatArray, subtask: IntArray) -> None:
        """Add vectors (n, D), each to its subtask."""
        for each in np.unique(subtask).tolist():
            self._sums[each] += vectors[subtask == each].sum(axis=0)
        self.counts += np.bincount(subtask, minlength=len(self.counts))

    def means(self) -> FloatArray:
        """Return the mean vector of every subtask, (J, D); every subtask needs a vector."""
        if not self.counts.all():
            raise ValueError(f"subtask {int(np.argmin(self.counts))} has no vector")
        return self._sums / self.counts[:, None]
