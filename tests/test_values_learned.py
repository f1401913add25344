"""A learned value: what is planted is found, what is not there is not, and no item is scored by its own question."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.values.learned import (
    NUM_FOLDS,
    Sums,
    fold_of_questions,
    judge_forward,
    learn,
    standardise,
    sums_by_fold,
)
from grace_store.values.roc import LabelledItems, area_across
from jobs.learned_rates import simulate_pool


def test_the_weights_are_those_of_ridge_regression():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 4)), rng.normal(size=200)
    sums = Sums.of(x[:80], y[:80]) + Sums.of(x[80:], y[80:])
    expected = np.linalg.lstsq(
        np.concatenate([x, np.sqrt(0.1 * 200) * np.eye(4)]), np.concatenate([y, np.zeros(4)]), rcond=None
    )[0]
    np.testing.assert_allclose(sums.fit(0.1), expected, rtol=1e-9)
    weights = rng.normal(size=4)
    assert sums.error(weights) == pytest.approx(((y - x @ weights) ** 2).sum())


def test_no_value_depends_on_the_labels_of_its_own_fold():
    rng = np.random.default_rng(1)
    question = np.repeat(np.arange(40), 3)
    x, right = rng.normal(size=(120, 5)), rng.random(120) < 0.5
    fold = fold_of_questions(question, np.ones(120, dtype=bool), seed=3)
    assert sorted(np.unique(fold)) == list(range(NUM_FOLDS))
    assert all(len(set(fold[question == each])) == 1 for each in range(40))
    value = learn(sums_by_fold(x, right, fold)).values(x, fold)
    changed = right.copy()
    mine = fold == 2
    order = np.flatnonzero(mine)
    changed[order] = right[order[::-1]]  # the share of right ones stays the same
    again = learn(sums_by_fold(x, changed, fold)).values(x, fold)
    np.testing.assert_allclose(again[mine], value[mine], rtol=1e-9)
    assert np.abs(again[~mine] - value[~mine]).max() > 1e-6


def test_items_without_labels_get_the_model_of_all_labels():
    rng = np.random.default_rng(2)
    question = np.arange(60)
    has_label = question < 50
    x, right = rng.normal(size=(60, 3)), rng.random(60) < 0.5
    fold = fold_of_questions(question, has_label, seed=0)
    assert (fold[50:] == -1).all()
    model = learn(sums_by_fold(x[has_label], right[has_label], fold[has_label]))
    np.testing.assert_allclose(model.values(x, fold)[50:], x[50:] @ model.weights)


def test_measures_are_split_into_questions_and_differences_within_them():
    question = np.array([0, 0, 1, 1, 2])
    x = np.array([[1.0], [3.0], [10.0], [14.0], [np.nan]])
    found = standardise(x, question)
    within = np.array([-1.0, 1.0, -2.0, 2.0, 0.0])
    np.testing.assert_allclose(found[:, 0], within / within.std(), rtol=1e-6)
    mean = np.array([2.0, 2.0, 12.0, 12.0, 7.0])
    np.testing.assert_allclose(found[:, 1], (mean - mean.mean()) / mean.std(), rtol=1e-6)
    assert standardise(x, np.arange(5)).shape == (5, 1)


def test_a_measure_that_does_not_vary_is_left_at_zero():
    assert not standardise(np.full((4, 1), 0.1), np.arange(4)).any()


def test_each_fold_is_judged_by_the_folds_before_it():
    rng = np.random.default_rng(3)
    x, right = rng.normal(size=(200, 4)), rng.random(200) < 0.5
    x[:, 2] -= 2 * right
    fold = fold_of_questions(np.arange(200), np.ones(200, dtype=bool), seed=0)
    learned, single = judge_forward(x, fold, sums_by_fold(x, right, fold))
    assert np.isnan(learned[fold == 0]).all()
    np.testing.assert_allclose(single[fold > 0], -x[fold > 0, 2])
    changed = np.where(fold == 4, ~right, right)  # the last fold teaches nobody
    again, _ = judge_forward(x, fold, sums_by_fold(x, changed, fold))
    assert np.corrcoef(again[fold == 4], learned[fold == 4])[0, 1] > 0.999


@pytest.mark.parametrize("level", [0.0, 5.0])
def test_planted_labels_are_recovered_and_random_ones_are_not(level):
    """A share of what ``python -m jobs.learned_rates`` prints for 200 pools of each kind."""
    num_found = {True: 0, False: 0}
    for is_planted in num_found:
        for seed in range(12):
            x, right, question = simulate_pool(60, 8, level=level, effect=float(is_planted), seed=seed)
            measures = standardise(x, question)
            fold = fold_of_questions(question, np.ones(len(question), dtype=bool), seed=0)
            value, _ = judge_forward(measures, fold, sums_by_fold(measures, right, fold))
            items = LabelledItems(right, question, fold)
            found = area_across(value, items, fixed=True)
            num_found[is_planted] += found.low > 0.5
    assert num_found[True] == 12
    assert num_found[False] <= 2
