"""Random: a seeded draw, the same for a sample whatever else is in the store."""

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import FloatArray, Numbers
from grace_store.values.methods.method import Heuristic


def random_values(seed: int, row: Numbers) -> FloatArray:
    """Return numbers in [0, 1) by seed and row alone: for row i, the upper 53 bits of SplitMix64's output i."""
    mixed = _splitmix64(seed, row.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(seed: int, index: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    # Unsigned arrays wrap around silently, which is what is wanted here.
    state = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed


METHOD = Heuristic(
    name="random",
    about="a seeded random draw",
    settings=("seed",),
    reads="plan",
    values=lambda spec, samples: random_values(spec.seed, samples.row),
)
