"""The k-th smallest of many numbers: against sorting all of them, also where a sample of them misleads."""

import math

import numpy as np
import pytest

from grace_store.values import order_statistics
from grace_store.values.order_statistics import OrderStatistics


@pytest.fixture(autouse=True)
def small_samples(monkeypatch):
    monkeypatch.setattr(order_statistics, "SAMPLED", 64)


def numbers(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    return {
        "random": rng.normal(size=3001),
        "ascending": np.arange(3000.0),
        "all alike": np.full(3000, 0.25),
        "few different": rng.integers(0, 3, 3000) / 2,
        "periodic": np.where(np.arange(3008) % 47 == 0, 1000.0, rng.normal(size=3008)),
        "extremes": np.concatenate([np.full(1500, -1e300), np.full(1500, 1e300)]),
        "few": rng.normal(size=100),
        "one": np.array([3.5]),
    }[kind]


KINDS = ("random", "ascending", "all alike", "few different", "periodic", "extremes", "few", "one")


@pytest.mark.parametrize("kind", KINDS)
def test_every_place_has_what_sorting_puts_there(kind):
    values = numbers(kind)
    order, wanted = OrderStatistics(values), np.sort(values)
    for place in {0, 1, len(values) // 3, len(values) // 2, len(values) - 2, len(values) - 1}:
        if 0 <= place < len(values):
            assert order.kth(place) == wanted[place]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.9501, 1.0])
def test_quantiles_are_those_of_numpy(kind, share):
    values = numbers(kind)
    np.testing.assert_allclose(OrderStatistics(values).quantile(share), np.quantile(values, share), rtol=1e-12)


def test_a_sample_that_misleads_is_noticed():
    """Every number of the sample is 1000, which only a 47th of all are."""
    values = numbers("periodic")
    sampled = values[:: len(values) // 64]
    assert (sampled == 1000).all()
    assert OrderStatistics(values).kth(1500) == np.sort(values)[1500]


def test_there_is_no_quantile_of_nothing():
    assert math.isnan(OrderStatistics(np.zeros(0)).quantile(0.5))
