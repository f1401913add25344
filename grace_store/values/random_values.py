"""Seeded random numbers of samples. The number of a sample does not depend on the other samples of the store."""

import numpy as np

from grace_store.base.arrays import BitArray, FloatArray, Numbers


def random_values(seed: int, row: Numbers) -> FloatArray:
    """Return numbers in [0, 1) by seed and row alone: for row i, the upper 53 bits of SplitMix64's output i."""
    # Unsigned arrays wrap around silently, as SplitMix64 does.
    state: BitArray = (row.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
