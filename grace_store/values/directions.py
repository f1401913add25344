"""Directions of gradients, their means over subtasks, and products with these means. Knows no method and no files.

The mean over v of cos(z, v) is the product of z's direction with the mean of the directions of all v. So one vector
stands for a subtask of any size, and a block of samples costs one matrix product for each checkpoint.
"""

import numpy as np

from grace_store.base.arrays import FlagArray, FloatArray, IntArray, Numbers
from grace_store.base.states import Flag

ROWS_AT_ONCE = 256
"""Vectors that are in memory as float64 at a time."""


def unit_vectors(vectors: Numbers) -> tuple[FloatArray, FlagArray]:
    """Return vectors (n, D) scaled to length 1, as float64, and the flags of each.

    A vector that is zero or not finite becomes all zero, and has a flag.

    >>> unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0]]))
    (array([[0.6, 0.8],
           [0. , 0. ]]), array([0, 1], dtype=uint8))
    """
    wide = vectors.astype(np.float64)
    finite = np.isfinite(wide).all(axis=1)
    wide[~finite] = 0.0
    # Divide by the largest entry first: squares of very small or large numbers underflow or overflow.
    largest = np.abs(wide).max(axis=1, initial=0.0)
    has_direction = largest > 0
    wide /= np.where(has_direction, largest, 1.0)[:, None]
    wide /= np.where(has_direction, np.sqrt(np.einsum("nd,nd->n", wide, wide)), 1.0)[:, None]
    return wide, np.where(finite, np.where(has_direction, 0, Flag.ZERO_VECTOR), Flag.NOT_FINITE).astype(np.uint8)


def products(vectors: Numbers, directions: FloatArray, length: Numbers | None = None) -> tuple[FloatArray, FlagArray]:
    """Return the products (n, J) of vectors' directions with (J, D) vectors, and the flags of each vector.

    length (n,), if given, is the length of each vector before it was normalised; directions are multiplied with it.
    A zero vector has products of 0, a vector that is not finite has products of NaN.
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
    """Sums of target vectors by subtask. Rounding depends on the order in which vectors are added."""

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
