"""Orders that trade value against redundancy. Knows places, groups and similarities; no vectors and no files.

The place of a sample is its rank by value, from 0. Each function returns one order of all samples, and a subset is a
prefix of it, so a smaller subset lies within a larger one.

A cell is a set of samples with known similarities. Similarity counts inside a cell only, so the greedy order of all
samples is the greedy orders of the cells merged by gain (merge_cells).
"""

import heapq
import math
from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import numpy as np
from pydantic import Field, field_validator, model_validator

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.base.settings import Settings
from grace_store.values.ranking import Balance

Greedy = Literal["facility", "mmr"]

GreedyOrder = tuple[IntArray, FloatArray]
"""Places in greedy order, and the gain of each; gains never rise."""


def rank_utility(num_samples: int) -> FloatArray:
    """Return values on a scale that does not depend on the scoring: 1 for the best, down to 1 / N for the last of N.

    >>> rank_utility(4)
    array([1.  , 0.75, 0.5 , 0.25])
    """
    return 1.0 - np.arange(num_samples) / max(num_samples, 1)


def distinct_first(group: IntArray) -> IntArray:
    """Return the best sample of every group in the order of value, then all others in the order of value.

    >>> distinct_first(np.array([5, 5, 2, 7, 2]))
    array([0, 2, 3, 1, 4])
    """
    is_best = np.zeros(len(group), dtype=np.bool_)
    is_best[np.unique(group, return_index=True)[1]] = True
    return np.concatenate([np.flatnonzero(is_best), np.flatnonzero(~is_best)])


def blended_order(order: IntArray, weight: float) -> IntArray:
    """Return the order by (1 - weight) times the place by value plus weight times the place in the given order.

    >>> blended_order(np.array([2, 0, 1]), 1.0), blended_order(np.array([2, 0, 1]), 0.2)
    (array([2, 0, 1]), array([0, 1, 2]))
    """
    place = np.empty(len(order), dtype=np.float64)
    place[order] = np.arange(len(order))
    return np.argsort((1.0 - weight) * np.arange(len(order)) + weight * place, kind="stable")


def facility_order(similarity: FloatArray, utility: FloatArray, weight: float) -> GreedyOrder:
    """Return the greedy order for facility location with a value term, found lazily.

    The order maximises G(S) = (1 - weight) sum of u_j over S + weight sum over all i of max over S of s_ij: covering
    one sample fully is worth as much as the difference from the worst value to the best. G is monotone and submodular,
    so every prefix has at least 1 - 1/e of the maximum for its size.

    similarity is (n, n), symmetric, between 0 and 1. The last known gain of a sample is an upper bound of its gain, so
    only a few samples at the top of a queue are computed again for every sample taken.
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
    return order, gain


def mmr_order(similarity: FloatArray, utility: FloatArray, weight: float) -> GreedyOrder:
    """Return the order by maximal marginal relevance.

    The next sample always has the largest (1 - weight) u_j - weight max of s_ij over the samples i taken before (0 at
    first). similarity is (n, n), symmetric, between 0 and 1.
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
    return order, gain


GREEDY = {"facility": facility_order, "mmr": mmr_order}


def merge_cells(cells: Sequence[IntArray], greedy: Sequence[GreedyOrder]) -> IntArray:
    """Return the greedy order over all cells; cells hold the places of their samples, ascending.

    The gain of a sample depends on its own cell alone, and gains never rise along the order of a cell. So the largest
    remaining gain is always at the head of some cell. Sorting by gain, and by value for equal gains, gives exactly the
    greedy order over all samples.
    """
    place = np.concatenate([cell[order] for cell, (order, _) in zip(cells, greedy, strict=True)])
    gain = np.concatenate([gain for _, gain in greedy])
    return place[np.lexsort((place, -gain))]


def check_weight(weight: float) -> float:
    """Return a weight; raise SettingError if it is not between 0 and 1."""
    if not 0 <= weight <= 1:
        raise SettingError(f"weight {weight:g} is not between 0 (value alone) and 1 (diversity alone)")
    return weight


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
    """How a ranking is made diverse. A setting that the method does not use is None; a value for it is refused.

    >>> DiversitySpec(method="mmr").weight
    0.5
    """

    method: DiversityMethod
    """dedup: near-duplicates last. clusters: budgets for clusters. facility: facility location with a value term,
    greedily. mmr: maximal marginal relevance. values.diverse_orders defines them."""
    weight: float | None = None
    """Weight of diversity against value, from 0 (only value) to 1."""
    similarity: float | None = None
    """With --diversity dedup, smallest cosine of near-duplicates."""
    balance: Balance | None = None
    """With --diversity clusters, how the budget is divided between clusters: equally, by the square root of the
    cluster's size, or by the size."""
    num_clusters: int | None = Field(default=None, ge=1)
    """Number of clusters; None for a number that grows with the number of samples."""
    seed: int | None = Field(default=None, ge=0)
    """Seed of the clustering."""
    signal: str | None = None
    """Signal of the vectors that are compared; None for the signal that was scored."""
    descriptor: str | None = None
    """Descriptor of samples; None for the default of the signal."""

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
                raise SettingError(f"--{option} is only for --diversity {by}: leave --{option} out with {self.method}")
        return self
