"""Orders that trade value against redundancy. Knows places, groups and similarities; no vectors and no files.

Samples are given by place: 0 is the one with the largest value. Each function returns one order of all of them, and a
subset is its beginning, so a smaller subset lies within a larger one whatever the method.

Greedy orders are those of one cell: samples whose similarities are all known. Over several cells, in which
similarity counts inside a cell only, the greedy order of the whole is the cells' orders merged by gain (merge_cells).
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
from pydantic import Field, field_validator, model_validator

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.base.settings import Settings
from grace_store.values.ranking import Balance

Greedy = Literal["facility", "mmr"]


@dataclass(frozen=True, slots=True)
class GreedyOrder:
    """Places in the order they were taken, and what each was worth when it was: never more than the one before."""

    order: IntArray
    gain: FloatArray


def rank_utility(num_samples: int) -> FloatArray:
    """Return the values on a scale that any scoring shares: 1 for the best, down to 1 / N for the last of N.

    >>> rank_utility(4)
    array([1.  , 0.75, 0.5 , 0.25])
    """
    return 1.0 - np.arange(num_samples) / max(num_samples, 1)


def distinct_first(group: IntArray) -> IntArray:
    """Return the best of every group in the order of value, then all others in the order of value.

    >>> distinct_first(np.array([5, 5, 2, 7, 2]))
    array([0, 2, 3, 1, 4])
    """
    is_best = np.zeros(len(group), dtype=np.bool_)
    is_best[np.unique(group, return_index=True)[1]] = True
    return np.concatenate([np.flatnonzero(is_best), np.flatnonzero(~is_best)])


def blended_order(order: IntArray, weight: float) -> IntArray:
    """Return the order of (1 - weight) place by value + weight place in the given order; 0 is value alone.

    >>> blended_order(np.array([2, 0, 1]), 1.0), blended_order(np.array([2, 0, 1]), 0.2)
    (array([2, 0, 1]), array([0, 1, 2]))
    """
    place = np.empty(len(order), dtype=np.float64)
    place[order] = np.arange(len(order))
    return np.argsort((1.0 - weight) * np.arange(len(order)) + weight * place, kind="stable")


def facility_order(similarity: FloatArray, utility: FloatArray, weight: float) -> GreedyOrder:
    """Return the greedy order for facility location with a value term, found lazily.

    What is maximised is G(S) = (1 - weight) sum of u_j over S + weight sum over all i of max over S of s_ij: a sample
    wholly covered by a neighbour is worth as much as the whole way from the worst value to the best. G is monotone and
    submodular, so every beginning has at least 1 - 1/e of what any subset of its size could have.

    similarity is (n, n), symmetric, between 0 and 1. A sample's last known gain bounds its gain from above, so only
    those at the top of a queue are looked at again: n numbers each, a few of them for every sample taken.
    """
    num = len(utility)
    covered = np.zeros(num)
    scratch = np.empty(num)

    def gain_of(sample: int) -> float:
        np.subtract(similarity[sample], covered, out=scratch)
        np.maximum(scratch, 0.0, out=scratch)
        return float((1.0 - weight) * utility[sample] + weight * scratch.sum())

    queue = [(-gain_of(sample), sample) for sample in range(num)]
    heapq.heapify(queue)
    known_at = [0] * num
    order, gain = np.empty(num, dtype=np.int64), np.empty(num)
    for taken in range(num):
        while known_at[sample := queue[0][1]] < taken:
            known_at[sample] = taken
            heapq.heapreplace(queue, (-gain_of(sample), sample))
        minus_gain, sample = heapq.heappop(queue)
        order[taken], gain[taken] = sample, -minus_gain
        np.maximum(covered, similarity[sample], out=covered)
    return GreedyOrder(order, gain)


def mmr_order(similarity: FloatArray, utility: FloatArray, weight: float) -> GreedyOrder:
    """Return the order by maximal marginal relevance.

    The next sample is always the one with the largest (1 - weight) u_j - weight max of s_ij over the samples i taken
    before (0 when there are none). similarity is (n, n), symmetric, between 0 and 1; n numbers for every sample taken.
    """
    num = len(utility)
    redundancy, relevance = np.zeros(num), (1.0 - weight) * utility
    order, gain = np.empty(num, dtype=np.int64), np.empty(num)
    for taken in range(num):
        score = relevance - weight * redundancy
        sample = int(score.argmax())
        order[taken], gain[taken] = sample, score[sample]
        np.maximum(redundancy, similarity[sample], out=redundancy)
        relevance[sample] = -np.inf
    return GreedyOrder(order, gain)


GREEDY = {"facility": facility_order, "mmr": mmr_order}


def merge_cells(cells: Sequence[IntArray], greedy: Sequence[GreedyOrder]) -> IntArray:
    """Return the greedy order over all cells; cells hold the places of their samples, ascending.

    What a sample adds depends on its own cell alone, and gains never rise along a cell's order. So the largest gain
    that is left is always at the head of some cell, and sorting by gain, the better value first where equal, is
    exactly what the greedy algorithm over everything does.
    """
    place = np.concatenate([cell[each.order] for cell, each in zip(cells, greedy, strict=True)])
    gain = np.concatenate([each.gain for each in greedy])
    return place[np.lexsort((place, -gain))]


def check_weight(weight: float) -> float:
    """Return a weight if it is a balance, refuse it otherwise."""
    if not 0 <= weight <= 1:
        raise SettingError(f"weight {weight:g} is not between 0 (value alone) and 1 (diversity alone)")
    return weight


# ---------------------------------------------------------------- settings of a diverse selection


DiversityMethod = Literal["dedup", "clusters", "facility", "mmr"]
METHODS: tuple[DiversityMethod, ...] = get_args(DiversityMethod)
Traded = Literal["clusters", "facility", "mmr"]
"""The methods that have a weight."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "dedup": {},
    "clusters": {"weight": 1.0, "balance": "equal", "seed": 0},
    "facility": {"weight": 0.25, "seed": 0},
    "mmr": {"weight": 0.5, "seed": 0},
}
_OPTIONAL = {"num_clusters": ("clusters",), "similarity": ("dedup",)}


class DiversitySpec(Settings):
    """How a ranking is made diverse. What a method has no use for is None, and refused if it is given.

    >>> DiversitySpec(method="mmr").weight
    0.5
    """

    method: DiversityMethod
    """dedup: near-duplicates last. clusters: budgets for clusters. facility: facility location with a value term,
    greedily. mmr: maximal marginal relevance. values.diverse_orders defines them."""
    weight: float | None = None
    """Weight of diversity against value, 0 (value alone) to 1."""
    similarity: float | None = None
    """With dedup, cosine from which samples are near-duplicates."""
    balance: Balance | None = None
    """With clusters, how the budget is divided: equally, by the square root of a cluster's size, or by its size."""
    num_clusters: int | None = Field(default=None, ge=1)
    """For clusters: how many; None for a number that grows with that of the samples."""
    seed: int | None = Field(default=None, ge=0)
    """Seed of the clustering."""
    signal: str | None = None
    """Whose vectors say what is similar; None for the one that was scored."""
    descriptor: str | None = None
    """How a sample's vectors become one; None for the signal's default."""

    @model_validator(mode="before")
    @classmethod
    def _own_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        said = {name: value for name, value in given.items() if value is not None}
        return _DEFAULTS.get(str(said.get("method")), {}) | said

    @field_validator("weight")
    @classmethod
    def _balance_of_two(cls, value: float | None) -> float | None:
        return None if value is None else check_weight(value)

    @field_validator("similarity")
    @classmethod
    def _cosine(cls, value: float | None) -> float | None:
        if value is not None and not (math.isfinite(value) and 0 < value <= 1):
            raise SettingError(f"similarity {value:g} is not a cosine above 0 and at most 1")
        return value

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        for name in ("weight", "similarity", "balance", "num_clusters", "seed"):
            methods = _OPTIONAL.get(name) or [method for method in METHODS if name in _DEFAULTS[method]]
            if getattr(self, name) is not None and self.method not in methods:
                option = {"num_clusters": "clusters"}.get(name, name)
                by = " or ".join(methods)
                raise SettingError(f"--{option} is for diversity by {by}; {self.method} would ignore it")
        return self
