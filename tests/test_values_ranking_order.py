"""The k-th smallest of many numbers and the order of them all: against sorting, however the numbers are spread."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.values import ranking
from grace_store.values.ranking import OrderStatistics, stable_order


@pytest.fixture(autouse=True)
def few_places(monkeypatch):
    monkeypatch.setattr(ranking, "MAX_PLACES", 64)


def numbers(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    return {
        "random": rng.normal(size=3001),
        "ascending": np.arange(3000.0),
        "all alike": np.full(3000, 0.25),
        "few different": rng.integers(0, 3, 3000) / 2,
        "one far off": np.append(rng.normal(size=3000), 1e12),
        "extremes": np.concatenate([np.full(1500, -1e300), np.full(1500, 1e300)]),
        "no distance": np.array([1e308, -1e308, 0.0, 5.0, 1e308]),
        "too near": np.array([5e-324, 0.0, -0.0, 5e-324]),
        "few": rng.normal(size=100),
        "one": np.array([3.5]),
    }[kind]


KINDS = (
    *("random", "ascending", "all alike", "few different", "one far off"),
    *("extremes", "no distance", "too near", "few", "one"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_place_has_what_sorting_puts_there(kind):
    values = numbers(kind)
    order, wanted = OrderStatistics(values), np.sort(values)
    assert len(order) == len(values)
    for place in {0, 1, len(values) // 3, len(values) // 2, len(values) - 2, len(values) - 1}:
        if 0 <= place < len(values):
            assert order.kth(place) == wanted[place]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("no distance", "too near")])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.9501, 1.0])
def test_quantiles_are_those_of_numpy(kind, share):
    values = numbers(kind)
    np.testing.assert_allclose(OrderStatistics(values).quantile(share), np.quantile(values, share), rtol=1e-12)


def test_there_is_no_quantile_of_nothing():
    assert math.isnan(OrderStatistics(np.zeros(0)).quantile(0.5))


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_that_of_a_stable_sort(kind):
    values = numbers(kind)
    np.testing.assert_array_equal(stable_order(values), np.argsort(values, kind="stable"))


@given(st.lists(st.sampled_from([0.0, -0.0, 0.5, np.inf, -np.inf, np.nan]) | st.floats(), max_size=40))
def test_any_numbers_are_put_in_order(values):
    given = np.array(values, dtype=np.float64)
    np.testing.assert_array_equal(stable_order(given), np.argsort(given, kind="stable"))
