"""Greedy orders over cells against the slow way over all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.likeness.clusters import make_cells
from grace_store.likeness.greedy import cell_similarity, greedy_orders
from tests.naive_orders import NAIVE
from tests.random_directions import directions


@pytest.mark.parametrize("method", ["facility", "mmr"])
def test_one_cell_is_the_greedy_order_over_all_pairs(method):
    vectors = directions(7, 60)
    at = np.random.default_rng(0).permutation(60)
    (order,) = greedy_orders(vectors, at, np.zeros(60, np.int64), [(method, 0.4)])
    similarity = cell_similarity(vectors[at])
    assert order.tolist() == NAIVE[method](similarity, 1 - np.arange(60) / 60, 0.4)[0]
    np.testing.assert_allclose(similarity, np.clip(vectors[at] @ vectors[at].T, 0, 1), atol=1e-6)


@pytest.mark.parametrize("method", ["facility", "mmr"])
def test_orders_over_cells_are_nested_and_hold_every_sample_once(method):
    vectors = directions(8, 500)
    cell = make_cells(vectors, max_size=100)
    orders = greedy_orders(vectors, np.arange(500), cell, [(method, weight) for weight in (0.0, 0.5, 1.0)])
    assert all(sorted(order.tolist()) == list(range(500)) for order in orders)
    assert orders[0].tolist() == list(range(500))
    assert orders[1].tolist() != orders[2].tolist()
