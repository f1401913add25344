"""Types of arrays for signatures, and the search for dataset rows in an array of rows."""

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
