"""LESS, ICONS and CADC as mathematics: every formula against loops over single numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.base.errors import SettingError
from grace_store.likeness.communities import find_communities
from grace_store.values.directions import (
    ROWS_AT_ONCE,
    SubtaskMeans,
    combine_checkpoints,
    products,
    unit_vectors,
)
from grace_store.values.flags import Flag
from grace_store.values.methods.cadc import capability_directions, joined_pairs, self_influence_slopes, trajectories
from grace_store.values.methods.icons import count_votes, icons_values, mean_rank_shares, vote_thresholds
from grace_store.values.methods.influence_spec import InfluenceSpec
from grace_store.values.methods.less import strongest
from tests.gradient_stores import brute_influence, brute_mean_rank, brute_votes

# ---------------------------------------------------------------- directions and means


def mean_directions(targets, subtask):
    means = SubtaskMeans(max(subtask) + 1, targets.shape[1])
    means.add(unit_vectors(targets)[0], np.array(subtask))
    return means.means()


@given(seed=st.integers(0, 2**16), num=st.integers(1, 7), num_checkpoints=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_less_is_the_triple_loop(seed, num, num_checkpoints):
    rng = np.random.default_rng(seed)
    subtask = [0, 1, 1, 2, 2, 2, 0, 2]
    pool = [rng.normal(size=(num, 5)) for _ in range(num_checkpoints)]
    targets = [rng.normal(size=(len(subtask), 5)) * 10.0**i for i in range(num_checkpoints)]
    pool[0][0] = 0  # no direction
    weights = rng.random(num_checkpoints) + 0.1
    parts = [products(a, mean_directions(b, subtask))[0] for a, b in zip(pool, targets, strict=True)]
    found = combine_checkpoints(parts, weights.tolist())
    expected = brute_influence(pool, targets, subtask, weights.tolist())
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(strongest(found), [max(line) for line in expected.tolist()], atol=1e-12)


@pytest.mark.parametrize("num", [0, 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 3])
def test_products_do_not_depend_on_how_many_rows_are_held_at_once(num):
    rng = np.random.default_rng(num)
    vectors, directions = rng.normal(size=(num, 9)).astype(np.float32), rng.normal(size=(4, 9))
    found, flags = products(vectors, directions)
    wide = vectors.astype(np.float64)
    expected = wide @ directions.T / np.linalg.norm(wide, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert not flags.any()


def test_what_has_no_direction_counts_as_zero_and_what_is_not_finite_as_nothing():
    vectors = np.array([[3, 4], [0, 0], [np.nan, 1], [np.inf, 0], [1e-30, 0], [3e38, 3e38]], dtype=np.float32)
    found, flags = products(vectors, np.array([[1.0, 0.0]]))
    np.testing.assert_allclose(found[:, 0], [0.6, 0, np.nan, np.nan, 1, math.sqrt(0.5)], rtol=1e-7)
    assert flags.tolist() == [0, Flag.ZERO_VECTOR, Flag.NOT_FINITE, Flag.NOT_FINITE, 0, 0]


def test_a_length_that_is_not_finite_makes_its_sample_nothing():
    found, flags = products(np.eye(3), np.ones((1, 3)), np.array([2.0, np.inf, np.nan]))
    np.testing.assert_array_equal(found[:, 0], [2, np.nan, np.nan])
    assert flags.tolist() == [0, Flag.NOT_FINITE, Flag.NOT_FINITE]


def test_a_subtask_without_vectors_has_no_mean():
    means = SubtaskMeans(2, 3)
    means.add(np.ones((2, 3)), np.array([1, 1]))
    assert means.counts.tolist() == [0, 2]
    with pytest.raises(ValueError, match="subtask 0 has no vector"):
        means.means()


# ---------------------------------------------------------------- ICONS


@given(
    values=st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=1, max_size=12),
    percent=st.sampled_from([5, 20, 33.3, 50, 100]),
)
@settings(max_examples=60, deadline=None)
def test_votes_and_their_ties_are_those_of_the_loops(values, percent):
    influence = np.array(values, dtype=np.float32) / 4  # many are equal, also at the cut
    votes = count_votes(influence, vote_thresholds(influence, percent))
    assert votes.tolist() == brute_votes(influence, percent)
    np.testing.assert_allclose(mean_rank_shares(influence), list(map(float, brute_mean_rank(influence))), atol=1e-15)
    value = icons_values(votes, mean_rank_shares(influence))
    assert np.floor(value).astype(int).tolist() == votes.tolist()
    by_two_keys = sorted(range(len(values)), key=lambda z: (-votes[z], -mean_rank_shares(influence)[z], z))
    assert np.argsort(-value, kind="stable").tolist() == by_two_keys


def test_all_that_tie_at_the_percentile_are_voted_for():
    influence = np.array([[1], [5], [5], [5], [0], [2], [3], [4], [0], [5]], dtype=np.float32)
    assert vote_thresholds(influence, 20).tolist() == [5]
    assert count_votes(influence, np.array([5.0])).sum() == 4
    assert vote_thresholds(influence, 100).tolist() == [0]


def test_samples_without_influence_count_nowhere():
    influence = np.array([[1, 2], [np.nan, np.nan], [3, 0]], dtype=np.float32)
    assert vote_thresholds(influence, 50).tolist() == [2, 1]
    assert count_votes(influence, np.array([2.0, 1.0])).tolist() == [1, 0, 1]
    np.testing.assert_array_equal(mean_rank_shares(influence), [0.25, np.nan, 0.25])
    assert np.isnan(vote_thresholds(influence[1:2], 20)).all()
    assert np.isnan(mean_rank_shares(influence[1:2])).all()


# ---------------------------------------------------------------- CADC


def test_trajectories_and_directions_are_their_formulas():
    rng = np.random.default_rng(3)
    means, weights = rng.normal(size=(2, 4, 5)), [1.0, 3.0]
    paths = trajectories(means, weights)
    for s in range(4):
        for t in range(4):
            expected = 0.0
            for m, share in enumerate((0.25, 0.75)):
                a, b = means[m, s], means[m, t]
                expected += share * sum(a * b) / math.sqrt(sum(a * a) * sum(b * b))
            assert paths[s] @ paths[t] == pytest.approx(expected, abs=1e-12)
    directions = capability_directions(means, np.array([0, 1, 0, 0]))
    for m in range(2):
        mean = (means[m, 0] + means[m, 2] + means[m, 3]) / 3
        np.testing.assert_allclose(directions[m, 0], mean / math.sqrt(sum(mean * mean)), atol=1e-12)
        np.testing.assert_allclose(directions[m, 1], means[m, 1] / math.sqrt(sum(means[m, 1] ** 2)), atol=1e-12)


@given(num_groups=st.integers(1, 4), size=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_planted_capabilities_are_found(num_groups, size, seed):
    rng = np.random.default_rng(seed)
    planted = rng.permutation(np.repeat(np.arange(num_groups), size))
    means = np.eye(16)[None, planted] + 0.05 * rng.normal(size=(3, len(planted), 16))
    paths = trajectories(means, [1, 2, 3])
    found = find_communities(len(planted), joined_pairs(paths @ paths.T, 0.5), seed)
    assert {tuple(np.flatnonzero(found == c)) for c in set(found.tolist())} == {
        tuple(np.flatnonzero(planted == c)) for c in range(num_groups)
    }
    assert list(dict.fromkeys(found.tolist())) == list(range(num_groups))


def test_two_dense_groups_that_one_edge_joins_are_two_communities():
    edges = [(a, b) for group in (range(5), range(5, 10)) for a in group for b in group if a < b]
    assert find_communities(10, [*edges, (4, 5)]).tolist() == [0] * 5 + [1] * 5
    assert find_communities(3, []).tolist() == [0, 1, 2]


def test_pairs_reach_the_threshold_when_they_equal_it():
    assert joined_pairs(np.array([[1.0, 0.5], [0.5, 1.0]]), 0.5) == [(0, 1)]
    assert joined_pairs(np.array([[1.0, 0.5], [0.5, 1.0]]), 0.51) == []


@pytest.mark.parametrize("num_checkpoints", [2, 3, 6])
def test_the_slope_is_that_of_a_fitted_line(num_checkpoints):
    squared = np.random.default_rng(0).random((num_checkpoints, 4))
    expected = np.polyfit(np.arange(num_checkpoints), squared, 1)[0]
    np.testing.assert_allclose(self_influence_slopes(squared), expected, atol=1e-12)
    assert np.isnan(self_influence_slopes(squared[:1])).all()


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"method": "icons", "vote_percent": 0}, "--vote-percent 0 is not above 0"),
        ({"method": "icons", "vote_percent": 101}, "--vote-percent 101 is not above 0 and at most 100"),
        ({"method": "cadc", "join_cosine": 1.5}, "--join-cosine 1.5 is not between -1 and 1"),
        ({"method": "less", "join_cosine": 0.2}, "less has no use for --join-cosine, so 0.2 would be ignored"),
        ({"method": "icons", "seed": 3}, "icons has no use for --seed, so 3 would be ignored"),
        ({"method": "cadc", "vote_percent": 10}, "cadc has no use for --vote-percent"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes, match):
    with pytest.raises(SettingError, match=match):
        InfluenceSpec.parse(**changes)
