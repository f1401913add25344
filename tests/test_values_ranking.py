"""How many samples a ratio is, and which ones: the beginning of one ranking."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.base.errors import SettingError
from grace_store.values.ranking import (
    at_least,
    budget,
    comparable,
    find_twins,
    grid_step,
    rank,
    stratified_rank,
    top_mask,
)

VALUES = st.lists(
    st.sampled_from([0.0, -0.0, 0.25, 0.5, -1.0, np.nan, np.inf, -np.inf]) | st.floats(-1, 1), max_size=40
).map(lambda values: np.array(values, dtype=np.float64))


@pytest.mark.parametrize(
    ("ratio", "num_samples", "expected"),
    [
        (0.2, 15, 3),
        ("0.2", 15, 3),
        (0.07, 100, 7),
        (Decimal("0.07"), 100, 7),
        (np.float32(0.07), 100, 7),
        (np.float64(0.07), 100, 7),
        (0.29, 100, 29),
        (0.57, 100, 57),
        (0.2, 16, 4),
        (0.2, 0, 0),
        (1, 12, 12),
        ("1e-9", 5, 1),
        (0.05, 1_000_000, 50_000),
        ("0.3333333333333333333333333333333333", 3, 1),
        ("0.3333333333333333333333333333333334", 3, 2),
    ],
)
def test_a_budget_is_exact(ratio, num_samples, expected):
    assert budget(ratio, num_samples) == expected


@given(hundredths=st.integers(1, 100), num_samples=st.integers(0, 10**7))
def test_a_float_is_the_decimal_it_is_written_as(hundredths, num_samples):
    exact = -(-Fraction(hundredths * num_samples, 100) // 1)
    assert budget(hundredths / 100, num_samples) == exact


@pytest.mark.parametrize("ratio", [0, 0.0, -0.1, 1.01, "2", "nan", "inf", float("nan"), "a fifth", "20%", "", True])
def test_a_ratio_without_meaning_is_refused(ratio):
    with pytest.raises(SettingError, match=r"ratio .* is not a number above 0 and at most 1"):
        budget(ratio, 10)


def test_ties_go_to_the_earlier_record():
    values = np.array([0.5, 0.9, 0.5, np.nan, 0.5, np.inf, 0.9, -0.0, 0.0])
    assert rank(values).tolist() == [1, 6, 0, 2, 4, 7, 8]
    rows_backwards = np.arange(9)[::-1]
    assert rank(values, rows_backwards).tolist() == [6, 1, 4, 2, 0, 8, 7]


@given(values=VALUES, seed=st.integers(0, 1000))
def test_the_ranking_does_not_depend_on_where_values_are_stored(values, seed):
    order = np.random.default_rng(seed).permutation(len(values))
    np.testing.assert_array_equal(order[rank(values[order], row=order)], rank(values))


@given(values=VALUES)
def test_a_ranking_holds_every_finite_value_once_and_falls(values):
    ranking = rank(values)
    assert sorted(ranking.tolist()) == np.flatnonzero(np.isfinite(values)).tolist()
    assert (np.diff(values[ranking]) <= 0).all()


@given(values=VALUES, ratio=st.integers(1, 1000).map(lambda n: f"{n / 1000}"))
def test_a_subset_is_a_prefix_of_the_ranking(values, ratio):
    ranking = rank(values)
    count = budget(ratio, len(ranking))
    assert np.flatnonzero(top_mask(values, count)).tolist() == sorted(ranking[:count].tolist())


@given(values=VALUES, threshold=st.floats(-1, 1))
def test_a_threshold_is_a_prefix_too(values, threshold):
    ranking = rank(values)
    chosen = at_least(values, threshold, ranking)
    np.testing.assert_array_equal(chosen, ranking[: len(chosen)])
    assert (values[chosen] > threshold - grid_step(values)).all()
    assert (values[ranking[len(chosen) :]] < threshold + grid_step(values)).all()


@pytest.mark.parametrize("count", [-1, 3])
def test_more_than_have_a_value_is_refused(count):
    with pytest.raises(SettingError, match=f"count {count} is not between 0 and 2, the number of samples with a value"):
        top_mask(np.array([0.1, np.nan, 0.2]), count)


@pytest.mark.parametrize("threshold", [float("nan"), float("inf")])
def test_a_threshold_that_is_no_number_is_refused(threshold):
    with pytest.raises(SettingError, match=f"threshold {threshold} is not a number"):
        at_least(np.array([0.1]), threshold, np.array([0]))


@given(values=VALUES, data=st.data())
def test_a_mask_is_the_top_without_sorting(values, data):
    count = data.draw(st.integers(0, int(np.isfinite(values).sum())))
    assert np.flatnonzero(top_mask(values, count)).tolist() == sorted(rank(values)[:count].tolist())


def test_a_mask_of_more_than_there_are_is_refused():
    with pytest.raises(SettingError, match="count 2 is not between 0 and"):
        top_mask(np.array([0.1, np.nan]), 2)


@given(values=VALUES, data=st.data())
def test_strata_keep_their_shares_in_every_beginning_of_one_ranking(values, data):
    strata = data.draw(st.lists(st.sampled_from("abc"), min_size=len(values), max_size=len(values)))
    ranking = stratified_rank(values, strata)
    assert sorted(ranking.tolist()) == sorted(rank(values).tolist())
    sizes = {name: sum(strata[i] == name for i in ranking) for name in "abc"}
    for count in range(len(ranking) + 1):
        for name, size in sizes.items():
            here = sum(strata[i] == name for i in ranking[:count])
            assert abs(here - size * count / max(1, len(ranking))) < 2
    for name in "abc":
        mine = [i for i in ranking.tolist() if strata[i] == name]
        assert mine == [i for i in rank(values).tolist() if strata[i] == name]


def test_one_stratum_is_no_stratum():
    values = np.array([0.5, 0.9, 0.5, np.nan, 0.1])
    np.testing.assert_array_equal(stratified_rank(values, ["x"] * 5), rank(values))


# ---------------------------------------------------------------- the noise floor

NOISE = 7e-8
"""Copies of a trace differ by this much in other batches."""


def copied(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return exact values of 90 questions with 8 traces, two of them copies of others; questions; and an order."""
    rng = np.random.default_rng(seed)
    value = rng.permutation(720).reshape(90, 8) / 1000 + rng.uniform(0, 1e-4)
    value[:, 5], value[:, 7] = value[:, 1], value[:, 1]
    return value.ravel(), np.repeat(np.arange(90), 8), rng.permutation(720)


@pytest.mark.parametrize("seed", range(5))
def test_copies_are_ties_that_go_to_the_earlier_record_whatever_their_batch(seed):
    """Before, noise decided between copies: in 3 of 90 questions the later copy was the best."""
    value, question, order = copied(seed)
    exact = rank(value)
    rng = np.random.default_rng(seed + 100)
    for _ in range(5):
        noisy = value + rng.uniform(-NOISE, NOISE, 720)
        assert noisy[5::8].tolist() != noisy[1::8].tolist()
        found = comparable(noisy, question)
        assert (found[1::8] == found[5::8]).all()
        assert (found[1::8] == found[7::8]).all()
        np.testing.assert_array_equal(rank(found), exact)
        # A store that gathers questions has its samples in another order; rows say which record is earlier.
        gathered = comparable(noisy[order], question[order], order)
        np.testing.assert_array_equal(order[rank(gathered, order)], exact)


def test_values_differ_by_no_more_than_a_step_of_the_grid_from_what_they_are_compared_by():
    rng = np.random.default_rng(0)
    for scale in (1e-9, 1.0, 3000.0):
        value = scale * rng.normal(size=500)
        value[3], value[4] = np.nan, np.inf
        found = comparable(value)
        assert np.isnan(found[3])
        assert np.isinf(found[4])
        finite = np.isfinite(value)
        assert np.abs(found[finite] - value[finite]).max() <= grid_step(value) / 2
        assert grid_step(value) <= 2e-6 * np.abs(value[finite]).max()
    np.testing.assert_array_equal(comparable(np.arange(2000.0)), np.arange(2000.0))


def test_twins_are_found_by_brute_force():
    rng = np.random.default_rng(1)
    value, question, row = rng.integers(0, 30, 200) * 5e-7 + 0.7, rng.integers(0, 20, 200), rng.permutation(200)
    step = grid_step(value)
    for place, twin in enumerate(find_twins(value, question, row).tolist()):
        linked, grew = {place}, True
        while grew:
            mine = [i for i in range(200) if question[i] == question[place]]
            near = {i for i in mine for j in linked if abs(value[i] - value[j]) < step}
            linked, grew = near, len(near) > len(linked)
        assert twin == min(linked, key=lambda i: row[i])


def test_a_threshold_is_reached_by_a_value_that_noise_took_below_it():
    value = np.array([0.5 - NOISE, 0.7, 0.4999])
    assert at_least(value, 0.5, np.array([1, 0, 2])).tolist() == [1, 0]


def test_one_outlier_does_not_coarsen_the_grid_of_all_others():
    values = np.linspace(-6.4, -1.7, 300)
    with_outlier = np.append(values, -1e6)
    assert len(np.unique(comparable(with_outlier))) == 301


def test_copies_are_ties_after_values_were_compared_within_questions():
    plain = np.array([0.5, 0.5 + 7e-8, 0.51])
    centred = (plain - plain.mean()) / plain.std()
    question = np.zeros(3, np.int64)
    found = comparable(centred, question, np.arange(3), plain)
    assert found[0] == found[1] < found[2]
