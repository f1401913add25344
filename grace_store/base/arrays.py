"""Types of arrays for signatures, the index of dataset rows in another array, and sums over flat arrays."""

from typing import Any, NewType

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BitArray = npt.NDArray[np.uint64]
"""Packed booleans, 64 in each number."""
BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]
FlagArray = npt.NDArray[np.uint8]
"""The flags that scoring finds: the lowest eight bits of ``base.states.Flag``."""
Float32Array = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.number[Any]]

Rows = NewType("Rows", IntArray)
"""Row numbers of records in the dataset."""
Positions = NewType("Positions", IntArray)
"""Indices of samples in the plan of a store."""
Places = NewType("Places", IntArray)
"""Indices of samples in a table, a block or another array."""


def ascend(row: Numbers) -> bool:
    """Return whether rows are in the order of the dataset, as in most stores and tables."""
    return bool((row[1:] > row[:-1]).all())


def find_rows(known: IntArray, wanted: IntArray) -> tuple[IntArray, BoolArray]:
    """Return the index of each wanted row in the known rows, and whether it is there; known rows may be in any order.

    >>> find_rows(np.array([4, 0, 2]), np.array([0, 3, 4]))
    (array([1, 0, 0]), array([ True, False,  True]))
    """
    if not len(known):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
    order = None if ascend(known) else np.argsort(known)
    place = np.searchsorted(known, wanted, sorter=order).clip(max=len(known) - 1)
    place = place if order is None else order[place]
    return place, known[place] == wanted


def renumber(numbers: IntArray) -> IntArray:
    """Return ``np.unique(numbers, return_inverse=True)[1]``, without sorting numbers that are not spread widely.

    >>> renumber(np.array([7, 3, 3, 9]))
    array([1, 0, 0, 2])
    """
    if not len(numbers) or numbers.min() < 0 or numbers.max() >= 8 * len(numbers):
        return np.unique(numbers, return_inverse=True)[1].astype(np.int64)
    return np.asarray((np.cumsum(np.bincount(numbers) > 0) - 1)[numbers])


def offsets_of(counts: Numbers) -> IntArray:
    """Return the start of each consecutive run of these lengths, and the end of the last run.

    >>> offsets_of(np.array([3, 1, 2]))
    array([0, 3, 4, 6])
    """
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def aranges(lengths: IntArray, start: IntArray | int = 0) -> IntArray:
    """Return start, start + 1, ... of every range, concatenated.

    >>> aranges(np.array([3, 1]), np.array([5, 0])), aranges(np.array([1, 2]))
    (array([5, 6, 7, 0]), array([0, 0, 1]))
    """
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1] - start, lengths)


def sum_by_sample(num_parts: Numbers, part: Numbers) -> FloatArray:
    """Return the sum over the parts of each sample; parts are flat.

    >>> sum_by_sample(np.array([2, 1]), np.array([3, 4, 5]))
    array([7., 5.])
    """
    offsets = offsets_of(num_parts)
    if part.shape != (offsets[-1],):
        raise ValueError(f"{len(num_parts)} samples have {offsets[-1]} parts, not {part.shape}")
    if not len(num_parts):
        return np.zeros(0)
    return np.asarray(np.add.reduceat(part.astype(np.float64), offsets[:-1]))
