"""How values follow length: correlations as pandas has them, and none left where it was taken out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.values.length_bias import (
    LENGTHS,
    correlation,
    explained_by_lengths,
    length_measures,
    mean_ranks,
    rank_correlation,
    residuals,
    step_measures,
)
from grace_store.values.ranking import lengths_of


def made_up(num: int = 4000, bias: float = 0.0, seed: int = 0):
    """Return values that go with the logarithm of step length as much as bias says, and the lengths."""
    rng = np.random.default_rng(seed)
    num_steps = rng.integers(2, 15, num)
    per_step = rng.lognormal(3, 0.5, num)
    step_tokens = np.maximum(num_steps, np.round(per_step * num_steps))
    lengths = lengths_of(num_steps, step_tokens + rng.integers(1, 9, num), step_tokens)
    return rng.normal(size=num) + bias * np.log(lengths["step_length"]), lengths


@given(st.lists(st.sampled_from([0.0, 1.0, 2.5, -3.0]), max_size=20))
def test_ranks_are_those_of_pandas(values):
    expected = pd.Series(values, dtype=float).rank().to_numpy() - 1
    np.testing.assert_array_equal(mean_ranks(np.array(values)), expected)


def test_correlations_are_those_of_pandas():
    values, lengths = made_up(bias=0.5)
    frame = pd.DataFrame({"value": values, **lengths})
    for name in LENGTHS:
        assert correlation(values, lengths[name]) == pytest.approx(frame.value.corr(frame[name]))
        assert rank_correlation(values, lengths[name]) == pytest.approx(frame.corr("spearman").value[name])


@pytest.mark.parametrize("x", [[], [1.0], [2.0, 2.0, 2.0]])
def test_what_does_not_vary_has_no_correlation(x):
    assert np.isnan(correlation(np.array(x), np.arange(len(x), dtype=float)))


def test_partial_correlation_is_the_textbooks():
    values, lengths = made_up(bias=0.7)
    logs = pd.DataFrame({"value": values, **{name: np.log(lengths[name]) for name in LENGTHS}})
    precision = np.linalg.inv(logs.corr().to_numpy())
    found = length_measures(values, lengths)
    for place, name in enumerate(LENGTHS, start=1):
        textbook = -precision[0, place] / np.sqrt(precision[0, 0] * precision[place, place])
        assert found[name]["partial"] == pytest.approx(textbook, abs=1e-6)


def test_a_bias_is_found_and_taken_out():
    values, lengths = made_up(bias=1.0)
    step = length_measures(values, lengths, ratio=0.2)["step_length"]
    assert step["pearson"] > 0.4
    assert step["kept_over_all"] > 1.2
    assert abs(step["spearman_after_control"]) < 0.05
    assert step["kept_over_all_after_control"] == pytest.approx(1, abs=0.06)
    explained, pearson = explained_by_lengths(values, lengths)
    assert explained.value == pytest.approx(0.2, abs=0.05)
    assert explained.low < explained.value < explained.high
    assert pearson["step_length"] == step["pearson"]
    left = residuals(values, lengths, LENGTHS)
    for name in LENGTHS:
        assert abs(correlation(left, np.log(lengths[name]))) < 1e-6
    assert left.mean() == pytest.approx(values.mean())


def test_no_bias_is_no_bias():
    found = length_measures(*made_up(bias=0.0))
    assert all(abs(each["spearman"]) < 0.05 and abs(each["kept_over_all"] - 1) < 0.05 for each in found.values())


def test_samples_without_a_value_do_not_count():
    values, lengths = made_up(bias=1.0)
    holed = np.concatenate([values, [np.nan, np.inf]])
    longer = {name: np.concatenate([each, [1e9, 1e9]]) for name, each in lengths.items()}
    assert length_measures(holed, longer) == length_measures(values, lengths)
    assert explained_by_lengths(holed, longer) == explained_by_lengths(values, lengths)
    left = residuals(holed, longer, ["num_steps"])
    assert np.isnan(left[-2:]).all()
    np.testing.assert_array_equal(left[:-2], residuals(values, lengths, ["num_steps"]))


def test_equal_lengths_are_no_reason_to_stop():
    num = np.full(50, 9)
    values = np.random.default_rng(0).normal(size=50)
    lengths = lengths_of(num, num * 10, num * 9)
    np.testing.assert_allclose(residuals(values, lengths, LENGTHS), values)
    assert np.isnan(length_measures(values, lengths)["num_steps"]["spearman"])


def test_steps_are_looked_at_across_and_within_traces():
    rng = np.random.default_rng(1)
    num_steps = np.full(300, 6)
    tokens = rng.integers(1, 50, (300, 6))
    own = rng.normal(size=(300, 1)) * 5
    inside = 0.5 * np.log(tokens) + own
    found = step_measures(inside.ravel(), tokens.ravel(), num_steps)
    assert found["within_sample"] == pytest.approx(1)
    assert found["pooled"] < 0.3
    assert found["num_steps"] == 1800


def test_nothing_is_nothing():
    lengths = lengths_of(np.zeros(0), np.zeros(0), np.zeros(0))
    assert explained_by_lengths(np.zeros(0), lengths)[0].num == 0
    assert all(np.isnan(each["pearson"]) for each in length_measures(np.zeros(0), lengths).values())
