"""Groups of alike samples, and which one of each is kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace_store.likeness.duplicate_groups import choose_kept, count_groups, group_samples
from grace_store.likeness.forest import parents_in, spanning_forest
from tests.random_pairs import NUM_POINTS, as_pairs, reaching, some_pairs, thresholds
from tests.vector_stores import brute_force_groups


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
