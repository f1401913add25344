"""LESS against its triple loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.values.directions import (
    SubtaskMeans,
    products,
    unit_vectors,
)
from grace_store.values.methods.grace import combine_signals
from grace_store.values.methods.less import strongest
from tests.gradient_stores import brute_influence


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
    found = combine_signals(np.stack(parts), weights.tolist())
    expected = brute_influence(pool, targets, subtask, weights.tolist())
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(strongest(found), [max(line) for line in expected.tolist()], atol=1e-12)
