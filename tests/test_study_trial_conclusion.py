"""Every comparison of a trial spends the error rate of its own look: nothing at the first, then by r^2 / R^2."""

from __future__ import annotations

import math
from types import SimpleNamespace as Made
from typing import Any

import numpy as np
import pytest

from grace_store.study.trial_conclusion import _answers, _pairs, standing
from grace_store.values.subset_trial import t_quantile

NUM_ITEMS, NUM_DRAWS, NUM_SEEDS = 40, 5, 3


SHARES = {2: 4 / 9, 3: 5 / 9}
"""What the second and the third look of three spend of the error rate."""


def error_by_hand(look: int, num: int) -> float:
    return 1 - (1 - 0.05 * SHARES[look]) ** (1 / num)


@pytest.fixture
def trial() -> tuple[Any, Any, Any]:
    """Two subsets with the same random draws: losses that differ between models by far more than between items."""
    rng = np.random.default_rng(3)
    keys = ["subset-1", "subset-2", *(f"random-1-{draw}" for draw in range(NUM_DRAWS))]
    results = {}
    for key in keys:
        level = rng.normal()
        for seed in range(1, NUM_SEEDS + 1):
            loss = level + 0.1 * rng.normal()
            items = [Made(loss=loss, num_tokens=7, is_right=rng.random() < 0.5) for _ in range(NUM_ITEMS)]
            results[seed, key] = Made(items=items)
    arms = [[Made(key=key) for key in (f"subset-{number}", *keys[2:])] for number in (1, 2)]
    subsets = [Made(name=name, random="shared") for name in ("one", "two")]
    return Made(spec=Made(num_seeds=NUM_SEEDS), subsets=subsets), Made(arms_of=lambda subset: arms[subset]), results


def half_width(draws: np.ndarray, fold: float, error: float) -> float:
    """Return the half-width that the draws alone make: here all items of a model have the same loss."""
    return math.sqrt(fold * draws.var(ddof=1)) * t_quantile(error, len(draws) - 1)


def test_the_first_look_spends_nothing(trial: tuple[Any, Any, Any]) -> None:
    plan, samples, results = trial
    assert standing(plan, samples, results, 0, 1)[1][0].half_width == math.inf


@pytest.mark.parametrize("look", SHARES)
def test_each_look_has_its_own_share_of_the_error(trial: tuple[Any, Any, Any], look: int) -> None:
    plan, samples, results = trial
    values, (difference, _) = standing(plan, samples, results, 0, look)
    wanted = half_width(values[1:].mean(axis=1), 1 + 1 / NUM_DRAWS, error_by_hand(look, 2))
    assert difference.half_width == pytest.approx(wanted, rel=0.02)  # a little for the subset's own seeds
    done = {key: run for key, run in results.items() if key[0] <= look}
    (pair,) = _pairs(plan, samples, done)
    wanted = half_width(values[1:].mean(axis=1), 2, error_by_hand(look, 1))
    assert pair["difference"].half_width == pytest.approx(wanted, rel=0.02)


def test_answers_are_compared_at_the_look_that_ended_the_trial(trial: tuple[Any, Any, Any]) -> None:
    plan, samples, results = trial
    arms: list[dict[str, Any]] = [{} for _ in range(1 + NUM_DRAWS)]
    widths = []
    for look in SHARES:
        done = {key: Made(items=results[1, key[1]].items) for key in results if key[0] <= look}  # the same answers
        widths.append(_answers(plan, samples, done, 0, {"num_rounds": look}, arms)["difference"].half_width)
    quantiles = [t_quantile(error_by_hand(look, 2), NUM_DRAWS - 1) for look in SHARES]
    items = [t_quantile(error_by_hand(look, 2), NUM_ITEMS - 1) for look in SHARES]
    # The half-width has a part of the draws and one of the items, each by its own quantile.
    parts = np.linalg.lstsq(np.square([quantiles, items]).T, np.square(widths), rcond=None)[0]
    assert (parts >= -1e-12).all()
    assert np.square([quantiles, items]).T @ parts == pytest.approx(np.square(widths), rel=1e-3)
    assert widths[0] > 1.01 * widths[1]
