"""A maximum spanning forest tells of groups and nearest points what all pairs do, at every threshold."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace_store.likeness.duplicate_groups import choose_kept, count_groups, group_samples
from grace_store.likeness.forest import ForestBuilder, Pairs, connected, nearest_in, parents_in, spanning_forest
from tests.vector_stores import brute_force_groups

NUM_POINTS = 12
points = st.integers(0, NUM_POINTS - 1)
some_pairs = st.lists(
    st.tuples(points, points, st.sampled_from([0.5, 0.625, 0.75, 0.875, 1.0])).filter(lambda pair: pair[0] != pair[1]),
    max_size=40,
)
thresholds = st.sampled_from([0.5, 0.6, 0.75, 0.9, 1.0])


def as_pairs(pairs) -> Pairs:
    columns = list(zip(*pairs, strict=True)) or [(), (), ()]
    return Pairs(np.array(columns[0], np.int64), np.array(columns[1], np.int64), np.array(columns[2], np.float32))


def reaching(pairs, threshold):
    return [(one, other) for one, other, similarity in pairs if similarity >= threshold]


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


@given(some_pairs, thresholds)
def test_groups_from_one_link_a_sample(pairs, threshold):
    link, how = parents_in(NUM_POINTS, spanning_forest(as_pairs(pairs)))
    group = group_samples(link, how, threshold)
    truth = brute_force_groups(NUM_POINTS, reaching(pairs, threshold))
    members: dict[int, list[int]] = {}
    for place, lowest in enumerate(truth):
        members.setdefault(lowest, []).append(place)
    groups = [each for each in members.values() if len(each) > 1]
    for number, each in enumerate(groups):
        assert group[each].tolist() == [number] * len(each)
    assert (group >= 0).sum() == sum(map(len, groups))
    (count,) = count_groups(link, how, [threshold])
    assert (count.num_groups, count.num_in_groups) == (len(groups), sum(map(len, groups)))
    assert count.num_dropped == sum(len(each) - 1 for each in groups)


@given(
    st.lists(st.integers(-1, 3), min_size=1, max_size=15),
    st.sampled_from(["value", "shortest", "earliest"]),
    st.randoms(use_true_random=False),
)
def test_one_of_each_group_is_kept_by_the_policy(groups, keep, random):
    group = np.array(groups)
    value = np.array([random.choice([np.nan, 0.1, 0.5, -0.3]) for _ in groups])
    value[0] = 0.2
    num_tokens = np.array([random.randint(1, 3) for _ in groups])
    kept = choose_kept(group, keep, value=value, num_tokens=num_tokens)
    for number in set(groups):
        members = [place for place, each in enumerate(groups) if each == number]
        if number < 0:
            assert kept[members].all()
            continue
        best = {
            "value": lambda place: (np.isnan(value[place]), -np.nan_to_num(value[place]), place),
            "shortest": lambda place: (num_tokens[place], place),
            "earliest": lambda place: place,
        }[keep]
        assert [place for place in members if kept[place]] == [min(members, key=best)]


def test_a_long_chain_is_one_group():
    chain = np.arange(5000)
    order = np.random.default_rng(0).permutation(4999)
    pairs = Pairs(chain[:-1][order], chain[1:][order], np.full(4999, 0.9, np.float32))
    forest = spanning_forest(pairs)
    assert len(forest) == 4999
    assert (connected(5000, forest.first, forest.second) == 0).all()
    link, _ = parents_in(5000, forest)
    assert link.tolist() == list(range(-1, 4999))
