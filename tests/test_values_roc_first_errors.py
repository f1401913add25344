"""ProcessBench's F1 against a loop over thresholds, planted errors that are found, and chance by its formula."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.base.arrays import offsets_of
from grace_store.values.roc import LabelledTraces, chance_of_first_errors, find_first_errors


def made(rng: np.random.Generator, num: int = 40) -> LabelledTraces:
    num_steps = rng.integers(1, 8, num)
    first_wrong = np.where(rng.random(num) < 0.5, -1, (rng.random(num) * num_steps).astype(int))
    return LabelledTraces(offsets_of(num_steps), first_wrong, np.arange(num) // 2)


def predicted(score: np.ndarray, traces: LabelledTraces, threshold: float) -> np.ndarray:
    found = []
    for start, stop in zip(traces.offsets, traces.offsets[1:], strict=False):
        suspect = [k for k, each in enumerate(score[start:stop]) if each <= threshold]
        found.append(suspect[0] if suspect else -1)
    return np.array(found)


def f1(hit: np.ndarray, is_wrong: np.ndarray) -> float:
    one, other = hit[is_wrong].mean(), hit[~is_wrong].mean()
    return 2 * one * other / (one + other) if one + other else 0.0


def test_each_half_is_judged_by_the_best_threshold_of_the_other() -> None:
    rng = np.random.default_rng(0)
    traces = made(rng)
    score = np.where(rng.random(traces.offsets[-1]) < 0.1, np.nan, rng.integers(0, 12, traces.offsets[-1]))
    found = find_first_errors(score, traces, seed=4)
    half = (np.random.Generator(np.random.Philox(4)).permutation(20) % 2 == 0)[traces.question]
    hit = np.zeros(40, dtype=bool)
    for mine in (half, ~half):
        tried = [-np.inf, *np.unique(score[np.isfinite(score)])]
        hits = [predicted(score, traces, t) == traces.first_wrong for t in tried]
        best = max(f1(each[~mine], traces.is_wrong[~mine]) for each in hits)
        winners = [each for each in hits if f1(each[~mine], traces.is_wrong[~mine]) == best]
        hit[mine] = winners[0][mine]
    assert found.value == pytest.approx(f1(hit, traces.is_wrong))
    shares = hit[traces.is_wrong].mean(), hit[~traces.is_wrong].mean()
    assert found.value == pytest.approx(2 * shares[0] * shares[1] / sum(shares))


def test_planted_errors_are_found() -> None:
    rng = np.random.default_rng(1)
    traces = made(rng, 200)
    score = rng.random(traces.offsets[-1]) + 1
    wrong = np.flatnonzero(traces.is_wrong)
    score[traces.offsets[wrong] + traces.first_wrong[wrong]] -= 1.5
    found = find_first_errors(score, traces, seed=0)
    assert found.value == pytest.approx(1, abs=0.05)
    assert found.low > 0.9


def test_random_scores_land_on_the_analytic_value() -> None:
    rng = np.random.default_rng(2)
    traces = made(rng, 3000)
    chance = chance_of_first_errors(traces)
    found = [find_first_errors(rng.random(traces.offsets[-1]), traces, seed).value for seed in range(20)]
    assert np.mean(found) == pytest.approx(chance, abs=0.01)
    assert 0.2 < chance < 0.5


def test_chance_by_hand() -> None:
    one_step = LabelledTraces(np.array([0, 1, 2]), np.array([0, -1]), np.array([0, 1]))
    # q and 1 - q: their harmonic mean 2 q (1 - q) is largest at a half.
    assert chance_of_first_errors(one_step) == pytest.approx(0.5, abs=1e-5)
    only_wrong = LabelledTraces(np.array([0, 1]), np.array([0]), np.array([0]))
    assert np.isnan(chance_of_first_errors(only_wrong))
    wrong_answer = LabelledTraces(np.array([0, 1, 2]), np.array([1, -1]), np.array([0, 1]))
    assert chance_of_first_errors(wrong_answer) == 0
