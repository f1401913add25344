"""Where rows of a dataset stand among others; a store that gathers questions has them in another order."""

import numpy as np

from grace_store.base.arrays import BoolArray, IntArray, Numbers


def ascend(row: Numbers) -> bool:
    """Return whether rows are in the order of the dataset, as those of most stores and tables are."""
    return bool((row[1:] > row[:-1]).all())


def find_rows(known: IntArray, wanted: IntArray) -> tuple[IntArray, BoolArray]:
    """Return where each wanted row stands among the known ones, in whatever order these are, and whether it is there.

    >>> find_rows(np.array([4, 0, 2]), np.array([0, 3, 4]))
    (array([1, 0, 0]), array([ True, False,  True]))
    """
    if not len(known):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
    order = None if ascend(known) else np.argsort(known)
    place = np.searchsorted(known, wanted, sorter=order).clip(max=len(known) - 1)
    place = place if order is None else order[place]
    return place, known[place] == wanted
