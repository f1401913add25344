"""Tasks of a search by cells: exact arithmetic, and one result whoever does them, in whatever portions."""

from __future__ import annotations

import pickle
from typing import ClassVar

import numpy as np
import pytest

from grace_store.likeness import cell_tasks, search
from grace_store.likeness.cell_tasks import Shelves, cell_of, cells_probed, reorder, rounded, whole_length
from grace_store.likeness.search import similar_pairs
from grace_store.likeness.search_base import IndexPlan
from tests.vector_stores import ArraySource, at_cosine

PLAN = IndexPlan("cells", num_cells=24, num_probed=6)
FLOOR = 0.9


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Directions around centres, noisy copies of some, and copies."""
    rng = np.random.default_rng(0)
    vector = rng.normal(size=(1500, 24)) + 2 * rng.normal(size=(20, 24))[rng.integers(20, size=1500)]
    vector /= np.linalg.norm(vector, axis=1, keepdims=True)
    vector[1000:1200] = at_cosine(vector[:200], 0.97, rng)
    vector[1400:1420] = vector[:20]
    return vector.astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 64, 2048, 20_000])
def test_products_of_rounded_vectors_are_those_of_whole_numbers(size):
    """Against int64, where nothing is rounded; the longest vectors, and sums in whatever order the library adds."""
    rng = np.random.default_rng(size)
    vector = rng.standard_normal((64, size)).astype(np.float32)
    vector[:8] = np.sign(vector[:8])
    vector[8] = np.eye(1, size)[0]
    vector /= np.linalg.norm(vector, axis=1, keepdims=True)
    whole = rounded(vector)
    exact = whole.astype(np.int64) @ whole.astype(np.int64).T
    assert exact.max() < 2**24
    assert np.array_equal(whole.astype(np.float32) @ whole.astype(np.float32).T, exact)
    cosine = vector.astype(np.float64) @ vector.T.astype(np.float64)
    error = np.abs(exact / whole_length(size) ** 2 - cosine)
    assert error[8:, 8:].max() < cell_tasks.ROUNDING
    # Where all numbers of a vector are alike, all are rounded the same way.
    assert error.max() < 2.5 * np.sqrt(size) / 4096


def test_the_cells_that_are_probed_are_the_nearest_and_ones_own_is_among_them(vectors):
    centre = rounded(vectors[::60]).astype(np.float32)
    row = rounded(vectors)
    near = row.astype(np.int64) @ centre.astype(np.int64).T
    probed = cells_probed(centre, row, 5)
    for place in range(0, len(row), 50):
        order = np.lexsort((np.arange(25), -near[place]))
        assert sorted(probed[place].tolist()) == sorted(order[:5].tolist())
        assert cell_of(centre, row)[place] == order[0]


def test_rows_are_put_in_order_in_place():
    rng = np.random.default_rng(3)
    row = rng.integers(-99, 99, (200, 3)).astype(np.int16)
    order = rng.permutation(200)
    wanted = row[order]
    reorder(row, order)
    assert np.array_equal(row, wanted)


def test_rows_may_lie_on_several_shelves():
    row = np.arange(50, dtype=np.int16).reshape(25, 2)
    shelves = Shelves([(lambda part=row[start : start + 4]: part) for start in range(0, 25, 4)], 4)
    for start, stop in [(0, 1), (3, 5), (4, 8), (1, 24), (24, 25), (0, 25)]:
        assert np.array_equal(shelves.rows(start, stop), row[start:stop])


class Elsewhere:
    """Workers that are sent everything, do the last task first, and share by a number."""

    shared: ClassVar[dict[int, bytes]] = {}

    def __init__(self) -> None:
        self.num_tasks = 0

    def map(self, work, items):
        sent = pickle.dumps(work)
        self.num_tasks += len(items)
        done = {item: pickle.loads(pickle.dumps(pickle.loads(sent)(item))) for item in reversed(items)}
        yield from (done[item] for item in items)

    def share(self, value):
        self.shared[key := len(self.shared)] = pickle.dumps(value)
        return Fetched(key)


class Fetched:
    def __init__(self, key: int) -> None:
        self.key = key

    def __call__(self):
        return pickle.loads(Elsewhere.shared[self.key])


@pytest.mark.parametrize(("points", "rows"), [(1500, 1024), (190, 7), (33, 100)])
def test_one_result_whoever_does_the_tasks_in_whatever_portions(vectors, monkeypatch, points, rows):
    whole = similar_pairs(ArraySource(vectors), FLOOR, plan=PLAN, threads=1)
    assert 220 <= len(whole.forest) < 1500
    monkeypatch.setattr(search, "points_per_task", lambda _: points)
    monkeypatch.setattr(cell_tasks, "ROWS_AT_ONCE", rows)
    workers = Elsewhere()
    for given in ({"threads": 3}, {"workers": workers}):
        found = similar_pairs(ArraySource(vectors), FLOOR, plan=PLAN, **given)
        for name in ("first", "second", "similarity"):
            assert np.array_equal(getattr(found.forest, name), getattr(whole.forest, name))
        assert np.array_equal(found.nearest, whole.nearest)
        assert np.array_equal(found.nearest_similarity, whole.nearest_similarity, equal_nan=True)
        assert (found.num_pairs, found.recall) == (whole.num_pairs, whole.recall)
    assert workers.num_tasks == -(-found.num_distinct // points)


def test_with_every_cell_probed_it_is_brute_force(vectors):
    found = similar_pairs(ArraySource(vectors), FLOOR, plan=IndexPlan("cells", 24, 24), threads=1)
    distinct = np.r_[0:1400, 1420:1500]
    cosine = vectors[distinct].astype(np.float64) @ vectors[distinct].T.astype(np.float64) - 2 * np.eye(len(distinct))
    np.testing.assert_allclose(found.nearest_similarity[distinct], cosine.max(axis=1), atol=cell_tasks.ROUNDING)
    assert found.recall.share == 1.0


def test_nothing_but_zeros_has_no_neighbour():
    found = similar_pairs(ArraySource(np.zeros((30, 4), np.float32)), FLOOR, plan=PLAN, threads=1)
    assert (found.num_points, found.num_distinct, len(found.forest)) == (30, 0, 0)
    assert (found.nearest == -1).all()
