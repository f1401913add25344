"""CADC as mathematics: every formula against loops over single numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.likeness.communities import find_communities
from grace_store.values.methods.cadc import capability_directions, joined_pairs, self_influence_slopes, trajectories


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


def test_pairs_reach_the_threshold_when_they_equal_it():
    assert joined_pairs(np.array([[1.0, 0.5], [0.5, 1.0]]), 0.5) == [(0, 1)]
    assert joined_pairs(np.array([[1.0, 0.5], [0.5, 1.0]]), 0.51) == []


@pytest.mark.parametrize("num_checkpoints", [2, 3, 6])
def test_the_slope_is_that_of_a_fitted_line(num_checkpoints):
    squared = np.random.default_rng(0).random((num_checkpoints, 4))
    expected = np.polyfit(np.arange(num_checkpoints), squared, 1)[0]
    np.testing.assert_allclose(self_influence_slopes(squared), expected, atol=1e-12)
    assert np.isnan(self_influence_slopes(squared[:1])).all()
