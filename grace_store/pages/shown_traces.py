"""Which samples a page shows when there are too many for one: both ends of the ranking, the chosen, a fair middle."""

from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.values.methods.random import random_values
from grace_store.values.ranking import rank

_STREAM = 0x7265706F7274
"""Added to the seed, so that a random selection with the same seed does not take the page's own samples."""


@dataclass(frozen=True, slots=True)
class ShownTraces:
    """The samples that a page shows, by place in a table, ascending, and how many are there for which reason."""

    place: IntArray
    num_all: int
    num_top: int
    num_bottom: int
    num_chosen: int
    num_uniform: int

    @property
    def words(self) -> str:
        """Say what is shown of what."""
        if len(self.place) == self.num_all:
            return f"All {self.num_all:,} samples are here."
        return (
            f"{len(self.place):,} of {self.num_all:,} samples are here: the {self.num_top:,} with the largest values "
            f"and the {self.num_bottom:,} with the smallest, {self.num_chosen:,} more of the chosen, and "
            f"{self.num_uniform:,} others drawn at random (seed 0). Numbers and plots in the other parts are of all."
        )


def choose_traces(value: FloatArray, row: IntArray, chosen: BoolArray, limit: int) -> ShownTraces:
    """Choose at most limit samples: a tenth from either end, half of the rest chosen ones, and a uniform remainder.

    What a sample's chance depends on is its row, so that tables of one store show the same samples.
    """
    num = len(value)
    if num <= limit:
        return ShownTraces(np.arange(num), num, 0, 0, 0, 0)
    ranking = rank(value, row)
    end = min(limit // 10, len(ranking) // 2)
    taken = np.zeros(num, dtype=np.bool_)
    taken[ranking[:end]] = taken[ranking[len(ranking) - end :]] = True
    order = rank(random_values(_STREAM, row), row)
    left = limit - 2 * end
    kept = order[(chosen & ~taken)[order]][: left // 2]
    taken[kept] = True
    others = order[~taken[order]][: left - len(kept)]
    taken[others] = True
    return ShownTraces(np.flatnonzero(taken), num, end, end, len(kept), len(others))
