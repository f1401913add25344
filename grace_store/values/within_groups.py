"""Values compared within groups of samples: centred, standardised, the best of each group, the best and the worst.

A group is a whole number for each sample. Values that are not finite do not count. Knows no files.
"""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from grace_store.base.arrays import BitArray, BoolArray, FloatArray, IntArray, aranges
from grace_store.base.errors import SettingError
from grace_store.values.ranking import Ratio, budget

Within = Literal["centred", "standardised"]
LEAST_SPREAD = 2.0**-20
"""Values of a group that differ by less than this share of the largest value count as equal: it is rounding."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """Samples sorted by group; the order within a group is the given order."""

    sample: IntArray
    start: IntArray
    """Index of the first sample of each group."""
    size: IntArray

    @classmethod
    def of(cls, sample: IntArray, group: IntArray) -> Self:
        sample = sample[np.argsort(group[sample], kind="stable")]
        start = np.flatnonzero(np.diff(group[sample], prepend=-1 if len(sample) else 0))
        return cls(sample, start, np.diff(start, append=len(sample)))


def compare_within(value: FloatArray, group: IntArray, how: Within) -> tuple[FloatArray, BoolArray]:
    """Return values minus the mean of their group, or also divided by its standard deviation; and which are alone.

    A value that is alone in its group becomes 0, and so do the values of a group that are all equal.

    >>> compare_within(np.array([1.0, 3.0, 9.0, np.nan]), np.array([0, 0, 1, 0]), "standardised")
    (array([-1.,  1.,  0., nan]), array([False, False,  True, False]))
    """
    runs = _Runs.of(np.flatnonzero(np.isfinite(value)), group)
    compared, is_alone = np.full(len(value), np.nan), np.zeros(len(value), dtype=np.bool_)
    if not len(runs.sample):
        return compared, is_alone
    mine = value[runs.sample]
    centred = mine - np.repeat(np.add.reduceat(mine, runs.start) / runs.size, runs.size)
    lowest, highest = np.minimum.reduceat(mine, runs.start), np.maximum.reduceat(mine, runs.start)
    is_same = lowest == highest
    if how == "standardised":
        is_same = highest - lowest <= LEAST_SPREAD * np.maximum(np.abs(lowest), np.abs(highest))
        deviation = np.sqrt(np.add.reduceat(centred**2, runs.start) / runs.size)
        centred /= np.repeat(np.where(is_same, 1.0, deviation), runs.size)
    centred[np.repeat(is_same, runs.size)] = 0.0
    compared[runs.sample] = centred
    is_alone[runs.sample[runs.start[runs.size == 1]]] = True
    return compared, is_alone


@dataclass(frozen=True, slots=True)
class PerGroup:
    """The number, or the share, of samples of each group that are kept."""

    count: int | None = None
    share: Ratio | None = None

    @classmethod
    def parse(cls, text: str | int) -> Self:
        """Parse a whole number (at least 1) or a share (above 0, at most 1, with a point).

        >>> PerGroup.parse("1"), PerGroup.parse("0.5")
        (PerGroup(count=1, share=None), PerGroup(count=None, share='0.5'))
        """
        if str(text).isdecimal() and int(text) >= 1:
            return cls(count=int(text))
        try:
            budget(str(text), 0)
        except SettingError:
            wanted = "a number of traces, such as 1, nor a share of the traces, such as 0.5"
            raise SettingError(f"--per-group {text} is neither {wanted}") from None
        return cls(share=str(text))

    def of(self, sizes: IntArray) -> IntArray:
        """Return how many samples are kept of groups of these sizes; a share keeps exactly ceil(share n)."""
        if self.share is None:
            return np.full(len(sizes), self.count)
        known, place = np.unique(sizes, return_inverse=True)
        return np.array([budget(self.share, size) for size in known.tolist()], dtype=np.int64)[place]


def best_of_groups(ranking: IntArray, group: IntArray, per_group: PerGroup) -> IntArray:
    """Return the samples of a ranking, in its order, that are among the best of their group.

    >>> best_of_groups(np.array([3, 0, 2, 1]), np.array([0, 0, 0, 1]), PerGroup(count=1))
    array([3, 0])
    """
    place = _Runs.of(np.arange(len(ranking)), group[ranking])
    turn = aranges(place.size)
    is_kept = np.zeros(len(ranking), dtype=np.bool_)
    is_kept[place.sample] = turn < np.repeat(per_group.of(place.size), place.size)
    return ranking[is_kept]


def best_and_worst(ranking: IntArray, group: IntArray, said: BitArray | None = None) -> tuple[IntArray, IntArray]:
    """Return the first sample of every group, and the last one with another text; skip groups without another text.

    said is the same number for samples with the same text; without it, all texts differ.

    >>> best_and_worst(np.array([3, 0, 2, 1]), np.array([0, 0, 0, 1]))
    (array([0]), array([1]))
    >>> best_and_worst(np.array([3, 0, 2, 1]), np.array([0, 0, 0, 1]), np.array([7, 7, 8, 9]))
    (array([0]), array([2]))
    """
    place = _Runs.of(np.arange(len(ranking)), group[ranking])
    if not len(ranking):
        return ranking, ranking
    sample = ranking[place.sample]
    mine = sample if said is None else said[sample]
    is_other = mine != np.repeat(mine[place.start], place.size)
    last = np.maximum.reduceat(np.where(is_other, np.arange(len(sample)), -1), place.start)
    has_two = last >= 0
    return sample[place.start[has_two]], sample[last[has_two]]
