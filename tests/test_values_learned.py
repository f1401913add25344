"""A learned value: what is planted is found, what is not there is not, and no item is scored by its own question."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.values.learned import (
    NUM_FOLDS,
    fit,
    fold_of_questions,
    learn,
    learn_forward,
    moments_by_fold,
    single_forward,
    standardise,
    values_by_fold,
)
from grace_store.values.roc import LabelledItems, area_across
from jobs.learned_rates import simulate_pool


def moments(x, right, fold):
    return moments_by_fold(x, np.arange(len(x)), right, fold)


def test_the_weights_are_those_of_ridge_regression_with_a_free_level():
    rng = np.random.default_rng(0)
    x, y = rng.normal(1.0, size=(200, 4)), rng.random(200) < 0.3
    folds = moments(x, y, np.arange(200) % NUM_FOLDS)
    centred = np.concatenate([x - x.mean(axis=0), np.sqrt(0.1 * 200) * np.eye(4)])
    expected = np.linalg.lstsq(centred, np.concatenate([y - y.mean(), np.zeros(4)]), rcond=None)[0]
    error = fit(folds.sum(axis=0), 0.1)
    np.testing.assert_allclose(-error[1:-1], expected, rtol=1e-9)
    level = y.mean() - x.mean(axis=0) @ expected
    squares = ((y - level - x @ expected) ** 2).sum()
    assert error @ folds.sum(axis=0) @ error == pytest.approx(squares)


def test_no_value_depends_on_the_labels_of_its_own_fold():
    rng = np.random.default_rng(1)
    question = np.repeat(np.arange(40), 3)
    x, right = rng.normal(size=(120, 5)), rng.random(120) < 0.5
    fold = fold_of_questions(question, np.ones(120, dtype=bool), seed=3)
    assert sorted(np.unique(fold)) == list(range(NUM_FOLDS))
    assert all(len(set(fold[question == each])) == 1 for each in range(40))
    value = values_by_fold(x, fold, learn(moments(x, right, fold)))
    mine = fold == 2
    changed = right | mine  # the share of right ones changes, too
    again = values_by_fold(x, fold, learn(moments(x, changed, fold)))
    assert again[mine].tolist() == value[mine].tolist()
    assert np.abs(again[~mine] - value[~mine]).max() > 1e-6


def test_items_without_labels_get_the_model_of_all_labels():
    rng = np.random.default_rng(2)
    question = np.arange(60)
    has_label = question < 50
    x, right = rng.normal(size=(60, 3)), rng.random(60) < 0.5
    fold = fold_of_questions(question, has_label, seed=0)
    assert (fold[50:] == -1).all()
    weights = learn(moments_by_fold(x, np.flatnonzero(has_label), right[has_label], fold[has_label]))
    value = values_by_fold(x, fold, weights)
    np.testing.assert_allclose(value[50:], x[50:] @ weights[-1])
    some = np.array([3, 55])
    np.testing.assert_array_equal(values_by_fold(x, fold[some], weights, some), value[some])


def test_measures_are_split_into_questions_and_differences_within_them():
    question = np.array([0, 0, 1, 1, 2])
    x = np.array([[1.0], [3.0], [10.0], [14.0], [np.nan]])
    found, singles = standardise(x, question)
    within = np.array([-1.0, 1.0, -2.0, 2.0, 0.0])
    np.testing.assert_allclose(found[:, 0], within / within.std(), rtol=1e-6)
    mean = np.array([2.0, 2.0, 12.0, 12.0, 7.0])
    np.testing.assert_allclose(found[:, 1], (mean - mean.mean()) / mean.std(), rtol=1e-6)
    plain = np.array([1.0, 3.0, 10.0, 14.0, 7.0])
    expected = [(plain - plain.mean()) / plain.std(), within / within.std()]
    np.testing.assert_allclose((found @ singles.T).T, expected, atol=1e-6)
    assert standardise(x, np.arange(5))[0].shape == (5, 1)


def test_a_measure_that_does_not_vary_is_left_at_zero():
    assert not standardise(np.full((4, 1), 0.1), np.arange(4))[0].any()


def test_each_fold_is_judged_by_the_folds_before_it():
    rng = np.random.default_rng(3)
    x, right = rng.normal(size=(200, 4)), rng.random(200) < 0.5
    x[:, 2] -= 2 * right
    fold = fold_of_questions(np.arange(200), np.ones(200, dtype=bool), seed=0)
    changed = np.where(fold == 4, ~right, right)  # the last fold teaches nobody
    for weights_of in (learn_forward, lambda folds: single_forward(folds, np.eye(4))):
        value = values_by_fold(x, fold, weights_of(moments(x, right, fold)))
        assert np.isnan(value[fold == 0]).all()
        again = values_by_fold(x, fold, weights_of(moments(x, changed, fold)))
        assert again[fold > 0].tolist() == value[fold > 0].tolist()
    np.testing.assert_allclose(value[fold > 0], -x[fold > 0, 2])


def test_the_best_single_measure_has_no_scale_and_no_level():
    rng = np.random.default_rng(4)
    right = rng.random(300) < 0.5
    x = rng.normal(size=(300, 3)) + np.array([0.0, 0.5, 0.0]) * right[:, None]
    fold = fold_of_questions(np.arange(300), np.ones(300, dtype=bool), seed=0)
    scaled = x * np.array([1e6, 1e-3, 1.0]) + np.array([1e3, 5.0, -1e3])
    measures, singles = standardise(scaled, np.arange(300))
    value = values_by_fold(measures, fold, single_forward(moments(measures, right, fold), singles))
    expected = (x[:, 1] - x[:, 1].mean()) / x[:, 1].std()
    np.testing.assert_allclose(value[fold > 1], expected[fold > 1], atol=1e-6)


def test_a_single_measure_counts_as_it_is_where_it_tells_questions_apart_and_within_them_where_that_tells_more():
    rng = np.random.default_rng(5)
    question = np.repeat(np.arange(100), 4)
    right = rng.random(400) < 0.5
    x = rng.normal(size=(400, 2)) + 8 * rng.normal(size=(100, 2))[question]
    x[:, 1] += 3 * right  # hidden by the levels of questions unless these are taken out
    measures, singles = standardise(x, question)
    fold = fold_of_questions(question, np.ones(400, dtype=bool), seed=0)
    weights = single_forward(moments(measures, right, fold), singles)
    assert weights[-1].tolist() == [0.0, 1.0, 0.0, 0.0]
    of_questions = rng.random(100) < 0.5
    x[:, 0] = of_questions[question] + 0.1 * rng.normal(size=400)
    measures, singles = standardise(x, question)
    weights = single_forward(moments(measures, of_questions[question], fold), singles)
    assert weights[-1].tolist() == singles[0].tolist()


def test_gaps_get_the_mean_and_a_measure_without_numbers_is_zero():
    x = np.array([[1.0, np.nan], [np.nan, np.inf], [3.0, np.nan]])
    assert standardise(x, np.arange(3))[0][:, 1].tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(standardise(x, np.arange(3))[0][:, 0], np.sqrt(1.5) * np.array([-1, 0, 1]), rtol=1e-6)


def test_a_gap_moves_no_other_item_of_its_question():
    rng = np.random.default_rng(6)
    question = np.repeat(np.arange(50), 4)
    x = rng.normal(size=(200, 1)) + 10 * np.arange(50)[question, None]
    whole, x[::8] = standardise(x, question)[0], np.nan
    within, mean = standardise(x, question)[0].T
    np.testing.assert_allclose(within[::8], 0, atol=1e-9)
    known = np.isfinite(x[:, 0])
    assert np.corrcoef(within[known], whole[known, 0])[0, 1] > 0.9
    assert np.corrcoef(mean, whole[:, 1])[0, 1] > 0.999


def test_models_of_all_folds_give_values_of_one_size():
    """Folds choose different penalties, and samples of all folds are ranked together."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        right = rng.random(60) < 0.5
        x = rng.normal(size=(60, 6)) + 0.5 * right[:, None] * (np.arange(6) == 0)
        fold = fold_of_questions(np.arange(60), np.ones(60, dtype=bool), seed=0)
        values = x @ learn(moments(x, right, fold)).T
        np.testing.assert_allclose((values**2).mean(axis=0), 1.0)


def test_values_of_random_labels_by_question_do_not_tell_them():
    """Labels that are alike within a question, few questions: the means of labels must not leak between folds."""
    areas = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        question = np.repeat(np.arange(15), 4)
        x, right = rng.normal(size=(60, 30)), np.repeat(rng.random(15) < 0.5, 4)
        fold = fold_of_questions(question, np.ones(60, dtype=bool), seed)
        value = values_by_fold(x, fold, learn(moments(x, right, fold)))
        if 0 < right.sum() < 60:
            areas.append((value[right][:, None] > value[~right]).mean())
    assert abs(np.mean(areas) - 0.5) < 3 * np.std(areas) / np.sqrt(len(areas))


@pytest.mark.parametrize("level", [0.0, 5.0])
def test_planted_labels_are_recovered_and_random_ones_are_not(level):
    """A share of what ``python -m jobs.learned_rates`` prints for 200 pools of each kind."""
    num_found = {True: 0, False: 0}
    for is_planted in num_found:
        for seed in range(12):
            x, right, question = simulate_pool(60, 8, level=level, effect=float(is_planted), seed=seed)
            measures, _ = standardise(x, question)
            fold = fold_of_questions(question, np.ones(len(question), dtype=bool), seed=0)
            value = values_by_fold(measures, fold, learn_forward(moments(measures, right, fold)))
            items = LabelledItems(right, question, fold)
            found = area_across(value, items, fixed=True)
            num_found[is_planted] += found.low > 0.5
    assert num_found[True] == 12
    assert num_found[False] <= 2
