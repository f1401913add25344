"""The search against brute force on 20,000 vectors: exact, by cells, in 8 bits; with any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.base.events import Progressed, Warned
from grace_store.likeness import search, search_base
from grace_store.likeness.forest import connected
from grace_store.likeness.recall import Truth
from grace_store.likeness.search import plan_index, similar_pairs
from grace_store.likeness.search_base import IndexPlan
from tests.vector_stores import ArraySource, at_cosine, brute_force_groups

NUM, SIZE, FLOOR = 20_000, 64, 0.92
COSINES = (0.85, 0.915, 0.925, 0.95, 0.97, 0.999)
PER_COSINE = 400
ZERO = 600
PLANS = {
    "flat": IndexPlan("flat"),
    "cells": IndexPlan("cells", num_cells=128, num_probed=16),
    "ivf": IndexPlan("ivf", num_cells=128, num_probed=16),
    "ivf-sq8": IndexPlan("ivf-sq8", num_cells=128, num_probed=16),
}


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Random directions, half of them around centres; copies, noisy copies on both sides of the floor, a zero."""
    rng = np.random.default_rng(0)
    vector = rng.normal(size=(NUM, SIZE))
    vector[: NUM // 2] += rng.normal(size=(100, SIZE))[rng.integers(100, size=NUM // 2)]
    vector /= np.linalg.norm(vector, axis=1, keepdims=True)
    for number, cosine in enumerate(COSINES):
        chosen = rng.choice(15_000, PER_COSINE, replace=False)
        start = 15_000 + number * PER_COSINE
        vector[start : start + PER_COSINE] = at_cosine(vector[chosen], cosine, rng)
    vector[18_000:18_500] = vector[:500]
    vector[19_900:] = vector[5]
    vector[ZERO] = 0
    return vector.astype(np.float32)


@pytest.fixture(scope="module")
def truth(vectors) -> set[tuple[int, int]]:
    """Every pair above the floor, by comparing all with all in float64."""
    pairs = set()
    for start in range(0, NUM, 2000):
        one, other = np.nonzero(vectors[start : start + 2000].astype(np.float64) @ vectors.T >= FLOOR)
        pairs |= {(i, j) for i, j in zip((one + start).tolist(), other.tolist(), strict=True) if i < j}
    return pairs


@pytest.fixture(scope="module")
def groups(truth) -> np.ndarray:
    return np.array(brute_force_groups(NUM, sorted(truth)))


@pytest.fixture(scope="module")
def found(vectors):
    return {kind: similar_pairs(ArraySource(vectors), FLOOR, plan=plan, threads=1) for kind, plan in PLANS.items()}


@pytest.mark.parametrize("kind", PLANS)
def test_groups_are_those_of_brute_force(found, groups, kind):
    """Recall and precision of pairs in one group, of at least 0.99; the exact search has all and no other."""
    forest = found[kind].forest
    mine = connected(NUM, forest.first, forest.second)
    in_truth, in_mine = (np.flatnonzero(np.bincount(each, minlength=NUM)[each] > 1) for each in (groups, mine))
    assert len(in_truth) > 2500
    recall = (mine[in_truth] == groups[in_truth]).mean()
    precision = (mine[in_mine] == groups[in_mine]).mean()
    assert min(recall, precision) >= (1.0 if kind == "flat" else 0.99)


@pytest.mark.parametrize("kind", PLANS)
def test_no_pair_is_below_the_floor_and_similarities_are_the_vectors_own(vectors, found, kind):
    forest = found[kind].forest
    cosine = (vectors[forest.first].astype(np.float64) * vectors[forest.second]).sum(axis=1)
    np.testing.assert_allclose(forest.similarity, cosine, rtol=0, atol=1e-6)
    assert forest.similarity.min() >= FLOOR
    assert (np.diff(forest.similarity) <= 0).all()


def test_planted_pairs_above_the_floor_are_found_and_those_below_are_not(vectors, found):
    forest = found["flat"].forest
    group = connected(NUM, forest.first, forest.second)
    nearest = found["flat"].nearest
    for number, cosine in enumerate(COSINES):
        copies = np.arange(15_000 + number * PER_COSINE, 15_000 + (number + 1) * PER_COSINE)
        together = group[copies] == group[nearest[copies]]
        assert together.mean() == (1.0 if cosine > FLOOR else 0.0)


@pytest.mark.parametrize("kind", PLANS)
def test_every_point_has_its_nearest_one_alike_or_not(vectors, found, kind):
    result = found[kind]
    asked = np.random.default_rng(1).choice(15_000, 300, replace=False)
    cosine = vectors[asked].astype(np.float64) @ vectors.T
    cosine[np.arange(300), asked] = -2
    # Of equal vectors the first stands for all.
    cosine[:, 18_000:18_500] = cosine[:, 19_900:] = -2
    right = result.nearest[asked] == cosine.argmax(axis=1)
    right[asked == ZERO] = True
    assert right.mean() == 1.0 if kind == "flat" else right.mean() > 0.6
    is_like_another = cosine.max(axis=1) >= FLOOR
    assert right[is_like_another].mean() >= 0.99
    assert result.nearest[ZERO] == -1
    assert np.isnan(result.nearest_similarity[ZERO])


def test_equal_vectors_are_searched_once(found):
    for result in found.values():
        assert result.num_points == NUM
        assert result.num_distinct == NUM - 500 - 100 - 1
        copies = result.forest.second >= 19_900
        assert result.forest.first[copies].tolist() == [5] * 100
        assert (result.forest.similarity[copies] == 1).all()


@pytest.mark.parametrize("kind", PLANS)
def test_the_number_of_threads_changes_nothing(vectors, kind):
    few = np.concatenate([vectors[:2000], vectors[15_000:18_200]])
    plan = IndexPlan("flat") if kind == "flat" else IndexPlan(PLANS[kind].kind, num_cells=32, num_probed=4)
    one, several = (similar_pairs(ArraySource(few), FLOOR, plan=plan, threads=threads) for threads in (1, 3))
    assert len(one.forest) > 400
    for name in ("first", "second", "similarity"):
        assert np.array_equal(getattr(one.forest, name), getattr(several.forest, name))
    assert np.array_equal(one.nearest, several.nearest)
    assert one.recall == several.recall


def test_recall_is_measured_against_all_pairs(found, truth):
    assert found["flat"].recall is None
    recall = found["ivf"].recall
    assert 800 < recall.num_queries <= 1000
    assert recall.share >= 0.99
    assert 100 < recall.num_true < len(truth)
    assert recall.largest_error < 1e-5
    assert 1e-5 < found["ivf-sq8"].recall.largest_error < 0.02
    assert 1e-5 < found["cells"].recall.largest_error < 1e-3
    assert found["cells"].recall.share >= 0.99
    assert found["cells"].recall.num_true == recall.num_true


def test_a_bad_search_has_a_bad_recall(vectors):
    for kind in ("ivf", "cells"):
        bad = similar_pairs(ArraySource(vectors[:2000]), 0.6, plan=IndexPlan(kind, 64, num_probed=1), threads=1)
        assert bad.recall.num_true > 100
        assert 0.1 < bad.recall.share < 0.95


def test_recall_looks_at_fewer_points_where_there_are_too_many_pairs(vectors, monkeypatch):
    monkeypatch.setattr("grace_store.likeness.recall.MAX_PAIRS", 5000)
    same = np.tile(vectors[:1], (100, 1))
    counted = Truth(FLOOR, np.arange(64), np.tile(vectors[:1], (64, 1)))
    for start in range(0, 400, 100):
        counted.compare(np.arange(start, start + 100), same)
    counted.end(np.arange(400))
    recall = counted.recall()
    assert recall.num_queries == 8
    assert recall.num_true == 8 * 399 - 8 * 7 // 2


def test_more_neighbours_than_are_asked_for_first(monkeypatch):
    """A crowd in which everyone is like thousands of others: all of them are found, in bounded portions."""
    monkeypatch.setattr(search, "PAIRS_AT_ONCE", 20_000)
    monkeypatch.setattr(search_base, "MANY_NEIGHBOURS", 200)
    rng = np.random.default_rng(0)
    crowds = [at_cosine(np.tile(np.eye(16)[[i]], (400, 1)), 0.99, rng) for i in range(2)]
    vector = np.concatenate(crowds).astype(np.float32)
    told = []
    found = similar_pairs(ArraySource(vector), 0.95, listener=told.append, threads=1)
    assert len(found.forest) == 798
    cosine = vector.astype(np.float64) @ vector.T - 2 * np.eye(800)
    np.testing.assert_allclose(found.nearest_similarity, cosine.max(axis=1), atol=1e-6)
    alike = np.argwhere(cosine >= 0.95)
    lowest = connected(800, found.forest.first, found.forest.second)
    assert lowest.tolist() == brute_force_groups(800, alike.tolist()) == [0] * 400 + [400] * 400
    warned = [event.text for event in told if isinstance(event, Warned)]
    assert len(warned) == 1
    assert warned[0].startswith("Samples have more than 200 similar samples above 0.95")
    compared = [event.done for event in told if isinstance(event, Progressed)]
    assert compared[-1] == 800
    assert min(np.diff(compared)) < 256
    by_cells = similar_pairs(ArraySource(vector), 0.95, plan=IndexPlan("cells", 4, num_probed=4), threads=1)
    assert connected(800, by_cells.forest.first, by_cells.forest.second).tolist() == lowest.tolist()
    assert by_cells.num_pairs >= len(alike)


def test_similarities_are_measured_in_as_many_readings_as_memory_allows(vectors, found, monkeypatch):
    monkeypatch.setattr(search_base, "MEASURED_BYTES", 100 * SIZE * 4)
    again = search_base.measured(
        found["ivf"].forest, np.setdiff1d(np.arange(19_900), [ZERO, *range(18_000, 18_500)]), ArraySource(vectors)
    )
    assert np.array_equal(again.similarity, found["ivf"].forest.similarity)


@pytest.mark.parametrize("num", [0, 1, 2])
def test_few_points_or_none(num):
    found = similar_pairs(ArraySource(np.eye(4, dtype=np.float32)[:num]), 0.9, threads=1)
    assert len(found.forest) == 0
    assert found.num_points == found.num_distinct == num


@pytest.mark.parametrize(
    ("num", "size", "gpus", "kind"),
    [
        (1, 8, 0, "flat"),
        (22_000, 2048, 0, "flat"),
        (23_000, 2048, 0, "cells"),
        (200_000, 2048, 0, "cells"),
        (200_000, 2048, 1, "flat"),
        (1_500_000, 64, 1, "flat"),
        (7_000_000, 64, 1, "ivf-sq8"),
        (5_000_000, 2048, 8, "ivf-sq8"),
    ],
)
def test_the_index_goes_with_the_size(num, size, gpus, kind):
    plan = plan_index(num, size, num_gpus=gpus)
    assert plan.kind == kind
    if kind != "flat":
        assert 1 <= np.sqrt(num) / plan.num_cells * 2 <= 2 or plan.num_cells >= np.sqrt(num)
        assert 16 <= plan.num_probed <= plan.num_cells


def test_gpus_are_used_when_there_are_some(vectors, found, monkeypatch):
    """The way through a copy on the GPUs, with the index itself standing for the copy."""
    copied = []
    monkeypatch.setattr(search, "num_gpus", lambda: 2)
    monkeypatch.setattr(search, "GPU_NEIGHBOURS", 3)
    monkeypatch.setattr(
        search.faiss, "index_cpu_to_all_gpus", lambda index: copied.append(index) or index, raising=False
    )
    few = np.concatenate([vectors[:1000], vectors[15_000:17_400]])
    with_gpus = similar_pairs(ArraySource(few), FLOOR, threads=1)
    monkeypatch.setattr(search, "num_gpus", lambda: 0)
    without = similar_pairs(ArraySource(few), FLOOR, threads=1)
    assert len(copied) == 1
    assert np.array_equal(with_gpus.forest.second, without.forest.second)
    assert np.array_equal(with_gpus.forest.similarity, without.forest.similarity)


def test_two_builds_of_faiss_side_by_side_are_told(monkeypatch):
    assert len(search.installed_builds()) == 1
    monkeypatch.setattr(search, "BUILDS", (*search.BUILDS, "numpy"))
    told = []
    similar_pairs(ArraySource(np.eye(4, dtype=np.float32)), 0.9, listener=told.append, threads=1)
    (warned,) = [event for event in told if isinstance(event, Warned)]
    assert "and numpy are both installed" in warned.text
    assert "Uninstall both" in warned.text
