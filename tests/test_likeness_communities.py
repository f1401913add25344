"""Communities of a graph."""

from __future__ import annotations

from grace_store.likeness.communities import find_communities


def test_two_dense_groups_that_one_edge_joins_are_two_communities():
    edges = [(a, b) for group in (range(5), range(5, 10)) for a in group for b in group if a < b]
    assert find_communities(10, [*edges, (4, 5)]).tolist() == [0] * 5 + [1] * 5
    assert find_communities(3, []).tolist() == [0, 1, 2]
