"""Values without vectors. SplitMix64's numbers are the published ones for seed 1234567."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grace_store.base.errors import SettingError
from grace_store.values.methods.heuristic_spec import HeuristicSpec
from grace_store.values.methods.longest import longest_values
from grace_store.values.methods.loss import loss_values
from grace_store.values.methods.perplexity import perplexity_values
from grace_store.values.random_values import random_values

NUM_STEPS = np.array([2, 1, 3])
NUM_TOKENS = np.array([4, 1, 5, 7, 3, 2, 2, 2, 4], dtype=np.int32)
LOSS = np.array([1.0, 2.0, 0.4, 0.5, 1.5, 3.0, 1.0, 2.0, 0.5], dtype=np.float32)


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


def test_longest_and_stepmax_count():
    assert longest_values(NUM_STEPS + 1, NUM_TOKENS).tolist() == [10, 10, 10]
    assert stepmax_values(NUM_STEPS).tolist() == [2, 1, 3]


def test_loss_is_the_mean_over_tokens():
    expected = [np.repeat(LOSS[a:b], NUM_TOKENS[a:b]).mean() for a, b in [(0, 3), (3, 5), (5, 9)]]
    np.testing.assert_allclose(loss_values(NUM_STEPS + 1, NUM_TOKENS, LOSS), expected, rtol=1e-6)
    np.testing.assert_allclose(perplexity_values(NUM_STEPS + 1, NUM_TOKENS, LOSS), np.exp(expected), rtol=1e-6)


def test_a_loss_without_tokens_is_no_number_and_one_beyond_floats_is_infinite():
    assert np.isnan(loss_values(np.array([2]), np.array([0, 0]), np.array([1.0, 1.0]))).all()
    assert np.isinf(perplexity_values(np.array([2]), np.array([1, 1]), np.array([2000.0, 1.0]))).all()


def test_no_samples_are_no_values():
    assert len(longest_values(np.zeros(0, np.int64), np.zeros(0))) == 0


@pytest.mark.parametrize("method", ["random", "longest", "stepmax", "loss", "perplexity"])
def test_every_method_has_its_values(method):
    values = heuristic_values(
        HeuristicSpec(method=method), row=np.arange(3), num_steps=NUM_STEPS, num_parts=NUM_STEPS + 1,
        num_tokens=NUM_TOKENS, loss=LOSS,
    )  # fmt: skip
    expected = {
        "random": random_values(0, np.arange(3)),
        "longest": longest_values(NUM_STEPS + 1, NUM_TOKENS),
        "stepmax": stepmax_values(NUM_STEPS),
        "loss": loss_values(NUM_STEPS + 1, NUM_TOKENS, LOSS),
        "perplexity": perplexity_values(NUM_STEPS + 1, NUM_TOKENS, LOSS),
    }
    np.testing.assert_array_equal(values, expected[method])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "shortest"}, "^method 'shortest': input should be 'random'"),
        ({"method": "longest", "seed": 3}, "^method longest has nothing random in it, so seed 3 would be ignored$"),
        ({"method": "random", "seed": -1}, "^seed -1: input should be greater than or equal to 0$"),
    ],
)
def test_a_heuristic_without_meaning_is_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        HeuristicSpec.parse(**settings)


def test_segments_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"3 samples have 9 parts, not \(8,\)"):
        longest_values(NUM_STEPS + 1, NUM_TOKENS[1:])
