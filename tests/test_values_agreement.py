"""Agreements against their definition, with intervals over samples."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.values.agreement import agreement, scores_of
from grace_store.values.score_spec import ScoreSpec


def brute_spearman(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's by its definition: Pearson's of the ranks, ties at their mean rank."""

    def ranks(values: np.ndarray) -> np.ndarray:
        return np.array([(values < value).sum() + ((values == value).sum() - 1) / 2 for value in values])

    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def test_an_agreement_is_a_rank_correlation_over_pairs_that_are_there() -> None:
    rng = np.random.default_rng(0)
    one = rng.integers(0, 9, 60).astype(float)
    other = one + rng.integers(0, 9, 60)
    other[::7] = np.nan
    found = agreement(one, other, np.arange(0, 61, 3))
    both = np.isfinite(other)
    assert found.correlation == pytest.approx(brute_spearman(one[both], other[both]))
    assert found.low < found.correlation < found.high
    assert found.num_pairs == int(both.sum())


def test_intervals_draw_samples_not_steps() -> None:
    """Steps that repeat their sample's number are no further evidence, so they make no interval narrower."""
    rng = np.random.default_rng(1)
    one = rng.normal(size=40)
    other = one + rng.normal(size=40)
    single = agreement(one, other, np.arange(41), draws=400)
    repeated = agreement(np.repeat(one, 5), np.repeat(other, 5), np.arange(0, 201, 5), draws=400)
    assert repeated.high - repeated.low == pytest.approx(single.high - single.low, rel=0.02)


def test_scores_of_full_grams_are_grace() -> None:
    vectors = np.random.default_rng(2).normal(size=(3, 5))
    found = scores_of([vectors @ vectors.T], [np.array([1, 1, 1])], ScoreSpec(alpha=1))
    cosines = [v @ vectors[2] / np.linalg.norm(v) / np.linalg.norm(vectors[2]) for v in vectors[:2]]
    np.testing.assert_allclose(found.answer_alignment, cosines)
    assert found.value[0] == pytest.approx(np.mean(cosines))
