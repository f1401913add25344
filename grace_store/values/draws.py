"""Intervals from random draws: where 95 % of them lie. NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grace_store.base.arrays import FloatArray

COVERED = (0.025, 0.975)


def middle_of(draws: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Return what 2.5 % of the draws are below and above; NaN for both without any.

    >>> middle_of(range(41))
    (1.0, 39.0)
    """
    if not len(draws):
        return np.nan, np.nan
    low, high = np.quantile(np.asarray(draws, dtype=np.float64), COVERED).tolist()
    return low, high
