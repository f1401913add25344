"""The optimum of non-negative least squares is that of trying every set of variables, and its conditions hold."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.values import weightings
from grace_store.values.gram import pack
from grace_store.values.weightings import RIDGE, nonnegative_least_squares


def best_by_trying_all(vectors, target):
    """Return the non-negative amounts of vectors, (K, d), that come closest to a target, from the vectors alone."""
    num = len(vectors)
    # The ridge as further coordinates, one for each vector: least squares without a Gram.
    vectors = np.concatenate([vectors, np.sqrt(RIDGE) * np.eye(num)], axis=1)
    target = np.concatenate([target, np.zeros(num)])
    best, least = np.zeros(num), target @ target
    for size in range(1, num + 1):
        for chosen in map(list, combinations(range(num), size)):
            amount = np.linalg.lstsq(vectors[chosen].T, target, rcond=None)[0]
            rest = amount @ vectors[chosen] - target
            if (amount >= 0).all() and rest @ rest < least:
                best, least = np.zeros(num), rest @ rest
                best[chosen] = amount
    return best


def problems(rng, num, num_vectors, size, shared=0.5):
    """Return vectors of length 1, (n, K, d), that have a part in common, and targets, (n, d)."""
    made = rng.standard_normal((num, num_vectors + 1, size)) + shared * rng.standard_normal((num, 1, size))
    made /= np.linalg.norm(made, axis=-1, keepdims=True)
    return made[:, :-1], made[:, -1]


def solve(vectors, target):
    gram = vectors @ vectors.transpose(0, 2, 1)
    dot = np.einsum("nkd,nd->kn", vectors, target)
    num = np.full(len(vectors), vectors.shape[1])
    return nonnegative_least_squares(np.ascontiguousarray(pack(gram).T), dot, num)


@pytest.mark.parametrize(("num_vectors", "size"), [(1, 3), (2, 3), (4, 16), (6, 4), (8, 16)])
def test_optimum_is_that_of_trying_all_sets(num_vectors, size):
    vectors, target = problems(np.random.default_rng(num_vectors), 6, num_vectors, size)
    for found, mine, wanted in zip(solve(vectors, target).T, vectors, target, strict=True):
        # With fewer dimensions than vectors, only the ridge tells amounts apart.
        np.testing.assert_allclose(found, best_by_trying_all(mine, wanted), atol=1e-7 if size > num_vectors else 1e-4)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), num=st.integers(1, 40), shared=st.sampled_from([0.0, 1.0, 30.0]))
def test_conditions_of_an_optimum_hold(seed, num, shared):
    vectors, target = problems(np.random.default_rng(seed), 3, num, 24, shared)
    found = solve(vectors, target).T
    slope = (
        np.einsum("nk,nkd,njd->nj", found, vectors, vectors) + RIDGE * found - np.einsum("nkd,nd->nk", vectors, target)
    )
    allowed = 1e-7 * (1 + found.max())
    assert (found >= 0).all()
    assert (slope >= -allowed).all()
    assert (np.abs(slope)[found > 0] <= allowed).all()


def test_vectors_that_are_the_same_share_alike():
    vectors, target = problems(np.random.default_rng(3), 1, 1, 8)
    target = (target + 2 * vectors[:, 0]) / 4
    one = solve(vectors, target)[0, 0]
    np.testing.assert_allclose(solve(np.repeat(vectors, 3, axis=1), target)[:, 0], one / 3, rtol=1e-5)


def test_float32_rounding_of_vectors_that_are_the_same_is_no_fault():
    rng = np.random.default_rng(5)
    vectors = np.repeat(rng.standard_normal((50, 1, 64)), 30, axis=1).astype(np.float32)
    vectors += (1e-7 * rng.standard_normal(vectors.shape)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    gram = (vectors @ vectors.transpose(0, 2, 1)).astype(np.float64)
    packed, dot = np.ascontiguousarray(pack(gram).T), np.full((30, 50), 0.5)
    found = nonnegative_least_squares(packed, dot, np.full(50, 30))
    np.testing.assert_allclose(found.sum(axis=0), 0.5, rtol=1e-4)


def test_bits_do_not_depend_on_what_stands_beside(monkeypatch):
    vectors, target = problems(np.random.default_rng(7), 200, 9, 16)
    together = solve(vectors, target)
    np.testing.assert_array_equal(
        np.concatenate([solve(vectors[i : i + 1], target[i : i + 1]) for i in range(200)], 1), together
    )
    monkeypatch.setattr(weightings, "SOLVED_AT_ONCE", 81 * 3)
    np.testing.assert_array_equal(solve(vectors, target), together)


def test_what_is_no_gram_has_no_optimum():
    # A cosine above 1: no vectors have it.
    packed, dot = np.array([[1.0], [1.5], [1.0]]), np.array([[0.5], [0.5]])
    assert np.isnan(nonnegative_least_squares(packed, dot, np.array([2]))).all()


def test_single_exchanges_come_to_the_same_optimum(monkeypatch):
    vectors, target = problems(np.random.default_rng(11), 40, 10, 6, shared=2.0)
    usual = solve(vectors, target)
    monkeypatch.setattr(weightings, "FULL_EXCHANGES", 0)
    np.testing.assert_allclose(solve(vectors, target), usual, atol=1e-7)
