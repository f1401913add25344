"""A maximum spanning forest tells of groups and nearest points what all pairs do, at every threshold."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace_store.likeness.forest import ForestBuilder, Pairs, connected, nearest_in, parents_in, spanning_forest
from tests.random_pairs import NUM_POINTS, as_pairs, reaching, some_pairs, thresholds
from tests.vector_stores import brute_force_groups


@given(some_pairs, thresholds)
def test_the_forest_has_the_groups_of_all_pairs_at_every_threshold(pairs, threshold):
    truth = brute_force_groups(NUM_POINTS, reaching(pairs, threshold))
    forest = spanning_forest(as_pairs(pairs))
    kept = forest[forest.similarity >= threshold]
    assert connected(NUM_POINTS, kept.first, kept.second).tolist() == truth
    # No pair could be spared: as many as it takes to connect what all of them connect.
    assert len(forest) == NUM_POINTS - len(set(brute_force_groups(NUM_POINTS, reaching(pairs, 0))))


@given(some_pairs)
def test_the_nearest_point_is_a_neighbour_in_the_forest(pairs):
    nearest, similarity = nearest_in(NUM_POINTS, spanning_forest(as_pairs(pairs)))
    for point in range(NUM_POINTS):
        mine = [(-how, one + other - point) for one, other, how in pairs if point in (one, other)]
        if not mine:
            assert nearest[point] == -1
            assert np.isnan(similarity[point])
        else:
            assert (-similarity[point], nearest[point]) == min(mine)


@given(some_pairs, st.integers(1, 9), st.randoms(use_true_random=False))
def test_pairs_may_come_in_any_order_and_portion(pairs, portion, random):
    whole = spanning_forest(as_pairs(pairs))
    shuffled = list(pairs)
    random.shuffle(shuffled)
    builder = ForestBuilder(max_pairs=4)
    for start in range(0, len(shuffled), portion):
        builder.add(as_pairs(shuffled[start : start + portion]))
    found = builder.finish()
    ends = [sorted(zip(each.first, each.second, strict=True)) for each in (whole, found)]
    same = [{(min(pair), max(pair)) for pair in each} for each in ends]
    assert same[0] == same[1]
    assert np.array_equal(whole.similarity, found.similarity)


def test_a_long_chain_is_one_group():
    chain = np.arange(5000)
    order = np.random.default_rng(0).permutation(4999)
    pairs = Pairs(chain[:-1][order], chain[1:][order], np.full(4999, 0.9, np.float32))
    forest = spanning_forest(pairs)
    assert len(forest) == 4999
    assert (connected(5000, forest.first, forest.second) == 0).all()
    link, _ = parents_in(5000, forest)
    assert link.tolist() == list(range(-1, 4999))
