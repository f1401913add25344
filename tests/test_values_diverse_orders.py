"""Orders that trade value against redundancy: exact budgets, nested, and greedy as the slow way does it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.base.errors import SettingError
from grace_store.values.diverse_orders import (
    GREEDY,
    METHODS,
    DiversitySpec,
    blended_order,
    distinct_first,
    facility_order,
    merge_cells,
    mmr_order,
    rank_utility,
)
from grace_store.values.ranking import balanced_order, stratified_rank
from tests.naive_orders import NAIVE

WEIGHTS = (0.0, 0.1, 0.5, 0.9, 1.0)


def similarities(seed: int, num: int, *, ties: bool = False) -> np.ndarray:
    """Return cosines of random directions around a few centres, those below 0 as 0; ties: only a few values."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(3, 5))[rng.integers(0, 3, num)] + 0.6 * rng.normal(size=(num, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = np.clip(vectors @ vectors.T, 0, 1)
    cosine = np.round(cosine * 4) / 4 if ties else cosine
    np.fill_diagonal(cosine, 1.0)
    return np.maximum(cosine, cosine.T)


def coverage(similarity: np.ndarray, chosen: list[int]) -> float:
    return sum(max((similarity[i, j] for j in chosen), default=0.0) for i in range(len(similarity)))


def facility_value(similarity: np.ndarray, chosen: list[int], weight: float) -> float:
    utility = rank_utility(len(similarity))
    return (1 - weight) * sum(utility[j] for j in chosen) + weight * coverage(similarity, chosen)


cases = st.tuples(st.integers(0, 10_000), st.integers(1, 24), st.booleans(), st.sampled_from(WEIGHTS))


# ---------------------------------------------------------------- greedy orders


@pytest.mark.parametrize("method", ["facility", "mmr"])
@settings(max_examples=60, deadline=None)
@given(case=cases)
def test_the_order_is_the_one_that_looks_at_everything_every_time(method, case):
    seed, num, ties, weight = case
    similarity, utility = similarities(seed, num, ties=ties), rank_utility(num)
    found, found_gains = GREEDY[method](similarity, utility, weight)
    order, gains = NAIVE[method](similarity, utility, weight)
    assert found.tolist() == order
    assert found_gains.tolist() == gains
    assert (np.diff(found_gains) <= 0).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), num=st.integers(2, 9), weight=st.sampled_from(WEIGHTS))
def test_every_beginning_is_within_1_minus_1_over_e_of_the_best_subset(seed, num, weight):
    similarity = similarities(seed, num)
    order = facility_order(similarity, rank_utility(num), weight)[0].tolist()
    for count in range(1, num + 1):
        best = max(facility_value(similarity, list(some), weight) for some in itertools.combinations(range(num), count))
        assert facility_value(similarity, order[:count], weight) >= (1 - 1 / math.e) * best - 1e-9


def test_gains_add_up_to_what_is_maximised():
    similarity = similarities(3, 15)
    order, gain = facility_order(similarity, rank_utility(15), 0.3)
    assert gain.sum() == pytest.approx(facility_value(similarity, list(range(15)), 0.3))
    assert gain[:4].sum() == pytest.approx(facility_value(similarity, order[:4].tolist(), 0.3))


@pytest.mark.parametrize("method", ["facility", "mmr"])
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num=st.sampled_from([1, 2, 4, 8, 16]),
    weight=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
    num_cells=st.integers(1, 4),
)
def test_cells_merged_by_gain_are_the_greedy_order_over_all_of_them(method, seed, num, weight, num_cells):
    # Quarters and powers of two are added up exactly, with or without zeros in between.
    cell = np.random.default_rng(seed).integers(0, num_cells, num)
    similarity = similarities(seed, num, ties=True) * (cell[:, None] == cell)
    utility = rank_utility(num)
    members = [np.flatnonzero(cell == each) for each in range(num_cells) if (cell == each).any()]
    parts = [GREEDY[method](similarity[np.ix_(mine, mine)], utility[mine], weight) for mine in members]
    assert merge_cells(members, parts).tolist() == NAIVE[method](similarity, utility, weight)[0]


@pytest.mark.parametrize("method", ["facility", "mmr"])
def test_without_weight_the_order_is_that_of_value(method):
    assert GREEDY[method](similarities(0, 12), rank_utility(12), 0.0)[0].tolist() == list(range(12))


def test_a_copy_comes_after_what_is_new():
    similarity = np.eye(4)
    similarity[0, 1] = similarity[1, 0] = 1.0
    assert mmr_order(similarity, rank_utility(4), 0.5)[0].tolist() == [0, 2, 3, 1]
    assert facility_order(similarity, rank_utility(4), 0.6)[0].tolist() == [0, 2, 3, 1]


# ---------------------------------------------------------------- groups and clusters


def test_the_best_of_each_group_comes_first_and_the_others_fill_up():
    assert distinct_first(np.array([0, 0, 0, 3, 3, 5])).tolist() == [0, 3, 5, 1, 2, 4]
    assert distinct_first(np.zeros(0, np.int64)).tolist() == []


def budgets_one_by_one(stratum: np.ndarray, count: int, power: float) -> np.ndarray:
    """Give out one sample at a time to the stratum that is owed the most (Sainte-Laguë), if it has any left."""
    size = np.bincount(stratum)
    given = np.zeros(len(size), dtype=int)
    for _ in range(count):
        owed = np.where(given < size, size**power / (2 * given + 1), -1.0)
        given[int(owed.argmax())] += 1
    return given


@pytest.mark.parametrize(("balance", "power"), [("equal", 0.0), ("sqrt", 0.5), ("proportional", 1.0)])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), num=st.integers(1, 40), num_strata=st.integers(1, 6))
def test_budgets_are_balanced_and_spill_over(balance, power, seed, num, num_strata):
    stratum = np.unique(np.random.default_rng(seed).integers(0, num_strata, num) ** 2 // 3, return_inverse=True)[1]
    size = np.bincount(stratum)
    order = balanced_order(stratum, balance)
    assert sorted(order.tolist()) == list(range(num))
    for count in range(num + 1):
        counts = np.bincount(stratum[order[:count]], minlength=len(size))
        owed = budgets_one_by_one(stratum, count, power)
        # Where several strata are owed the same, which one is first is a matter of value: they differ by one.
        assert np.abs(counts - owed).max() <= 1
        rate = size**power
        assert np.sort((2 * counts - 1) / rate)[-1] <= np.sort((2 * owed - 1) / rate)[-1] + 1e-9
        for each in range(len(size)):
            chosen = [place for place in order[:count].tolist() if stratum[place] == each]
            assert chosen == np.flatnonzero(stratum == each)[: len(chosen)].tolist()


def test_equal_budgets_are_equal_until_a_cluster_is_used_up():
    stratum = np.array([0] * 10 + [1] * 3 + [2] * 10)
    order = balanced_order(stratum, "equal")
    assert np.bincount(stratum[order[:9]]).tolist() == [3, 3, 3]
    assert np.bincount(stratum[order[:15]]).tolist() == [6, 3, 6]


def test_proportional_budgets_are_those_of_strata():
    values, stratum = np.random.default_rng(0).random(30), np.random.default_rng(1).integers(0, 4, 30)
    best_first = np.argsort(-values)
    assert (
        best_first[balanced_order(stratum[best_first], "proportional")].tolist()
        == stratified_rank(values, stratum.tolist()).tolist()
    )


def test_a_blend_goes_from_value_to_the_order():
    order = np.random.default_rng(0).permutation(20)
    assert blended_order(order, 0.0).tolist() == list(range(20))
    assert blended_order(order, 1.0).tolist() == order.tolist()
    place = np.argsort(order)
    distance = [np.abs(np.argsort(blended_order(order, weight)) - place).sum() for weight in (0, 0.3, 0.7, 1)]
    assert distance == sorted(distance, reverse=True)


# ---------------------------------------------------------------- settings


def test_each_method_has_its_own_defaults():
    said = {method: DiversitySpec(method=method).model_dump(exclude_none=True) for method in METHODS}
    assert said == {
        "dedup": {"method": "dedup"},
        "clusters": {"method": "clusters", "weight": 1.0, "balance": "equal", "seed": 0},
        "facility": {"method": "facility", "weight": 0.25, "seed": 0},
        "mmr": {"method": "mmr", "weight": 0.5, "seed": 0},
    }


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"method": "best"}, "method 'best': input should be 'dedup', 'clusters', 'facility' or 'mmr'"),
        ({"method": "mmr", "weight": 1.5}, "weight 1.5 is not between 0 .value alone. and 1 .diversity alone."),
        ({"method": "mmr", "weight": math.nan}, "weight nan is not between"),
        ({"method": "dedup", "similarity": 0}, "similarity 0 is not a cosine above 0 and at most 1"),
        ({"method": "dedup", "weight": 0.5}, "weight is only for --diversity clusters or facility or mmr: leave"),
        ({"method": "facility", "num_clusters": 3}, "--clusters is only for --diversity clusters: leave"),
        ({"method": "mmr", "balance": "equal"}, "balance is only for --diversity clusters: leave --balance out"),
        ({"method": "clusters", "similarity": 0.9}, "similarity is only for --diversity dedup: leave"),
    ],
)
def test_what_would_be_ignored_or_has_no_meaning_is_refused(given_settings, message):
    with pytest.raises(SettingError, match=message):
        DiversitySpec.parse(**given_settings)
