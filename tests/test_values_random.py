"""Random values by seed and row. SplitMix64's numbers are the published ones for seed 1234567."""

from __future__ import annotations

import math

import numpy as np

from grace_store.values.random_values import random_values


def test_random_is_splitmix64():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    expected = [(number >> 11) / 2**53 for number in published]
    assert random_values(1234567, np.arange(4)).tolist() == expected


def test_random_depends_on_seed_and_row_alone():
    row = np.random.default_rng(0).permutation(1000)
    values = random_values(3, np.arange(1000))
    np.testing.assert_array_equal(random_values(3, row), values[row])
    np.testing.assert_array_equal(random_values(3, np.arange(400, 500)), values[400:500])
    assert not np.isin(random_values(4, np.arange(1000)), values).any()


def test_random_is_spread_evenly():
    values = random_values(2**64 - 1, np.arange(100_000))
    assert 0 <= values.min() < values.max() < 1
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert abs(counts - 5000).max() < 5 * math.sqrt(5000)
