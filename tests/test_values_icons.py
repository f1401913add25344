"""ICONS: votes, thresholds and ranks against loops over single numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.values.methods.icons import count_votes, mean_rank_shares, vote_thresholds
from tests.gradient_stores import brute_mean_rank, brute_votes


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
    value = votes + mean_rank_shares(influence)
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
