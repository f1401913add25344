"""Groups of similar samples, and the sample to keep of each group: pure functions of links and columns. NumPy alone.

A link leads from a sample to a similar sample. The links are a maximum spanning forest of all similar pairs
(``forest``), so they give the groups at every threshold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from grace_store.base.arrays import BoolArray, Float32Array, FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.likeness.forest import connected
from grace_store.values.ranking import comparable

Keep = Literal["value", "shortest", "earliest"]
KEEPS: tuple[Keep, ...] = get_args(Keep)

DEFAULT_THRESHOLD = 0.95
"""By the descriptor steps, copies with small edits have a larger cosine, and different traces seldom reach it."""
DEFAULT_FLOOR = 0.9
SHOWN_THRESHOLDS = (0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)


@dataclass(frozen=True, slots=True)
class ThresholdCount:
    """Numbers of groups and samples at a threshold."""

    threshold: float
    num_groups: int
    num_in_groups: int
    num_dropped: int
    """Samples in groups, without one sample of each group."""


def check_thresholds(threshold: float, floor: float) -> None:
    """Raise SettingError unless both are above 0 and at most 1, and the floor is not above the threshold."""
    if not 0 < threshold <= 1:
        raise SettingError(f"threshold {threshold:g} is not between 0 and 1: the threshold is a cosine")
    if not 0 < floor <= threshold:
        raise SettingError(f"floor {floor:g} is not between 0 and the threshold {threshold:g}")


def group_samples(link: IntArray, link_similarity: Float32Array, threshold: float) -> IntArray:
    """Return the group of every sample at a threshold, from 0; -1 if alone. link has the linked samples, or -1."""
    linked = np.flatnonzero((link >= 0) & (link_similarity >= np.float32(threshold)))
    earliest = connected(len(link), linked, link[linked])
    in_group = np.bincount(earliest, minlength=len(link))[earliest] > 1
    group = np.full(len(link), -1)
    group[in_group] = np.unique(earliest[in_group], return_inverse=True)[1]
    return group


def choose_kept(
    group: IntArray, keep: Keep, *, value: FloatArray, num_tokens: IntArray, row: IntArray | None = None
) -> BoolArray:
    """Return which samples are kept: samples alone, and one sample of each group; ties go to the earlier record.

    value keeps the highest value (NaN is lowest), shortest the fewest tokens, earliest the first record.
    """
    if keep == "value" and np.isnan(value).all():
        raise SettingError("--keep value needs the values of the samples: give the scores")
    row = np.arange(len(group)) if row is None else row
    by_value = np.where(np.isnan(value), np.inf, -comparable(value, group, row))
    rank = {"value": by_value, "shortest": num_tokens, "earliest": np.zeros(len(group))}[keep]
    order = np.lexsort((row, rank, group))
    kept = group < 0
    members = order[group[order] >= 0]
    kept[members[np.unique(group[members], return_index=True)[1]]] = True
    return kept


def count_groups(link: IntArray, link_similarity: Float32Array, thresholds: Sequence[float]) -> list[ThresholdCount]:
    """Return the numbers of groups and samples at each threshold."""
    counts = []
    for threshold in thresholds:
        group = group_samples(link, link_similarity, threshold)
        num_groups, num_in_groups = int(group.max(initial=-1)) + 1, int((group >= 0).sum())
        counts.append(ThresholdCount(threshold, num_groups, num_in_groups, num_in_groups - num_groups))
    return counts
