"""Agreements and what of a subset survives: against their definitions, brute force and what is known of chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.values.agreement import agreement, jaccard_by_chance, step_survival, survival
from grace_store.values.intervals import share_interval
from grace_store.values.ranking import budget, rank


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
    assert found.value == pytest.approx(brute_spearman(one[both], other[both]))
    assert found.low < found.value < found.high
    assert found.num == int(both.sum())


def test_intervals_draw_samples_not_steps() -> None:
    """Steps that repeat their sample's number are no further evidence, so they make no interval narrower."""
    rng = np.random.default_rng(1)
    one = rng.normal(size=40)
    other = one + rng.normal(size=40)
    single = agreement(one, other, np.arange(41))
    repeated = agreement(np.repeat(one, 5), np.repeat(other, 5), np.arange(0, 201, 5))
    assert repeated.high - repeated.low == pytest.approx(single.high - single.low, rel=0.02)


# ---------------------------------------------------------------- subsets


def brute_jaccard(value: np.ndarray, other: np.ndarray, ratio: str) -> float:
    both = [i for i in range(len(value)) if np.isfinite(value[i]) and np.isfinite(other[i])]
    count = budget(ratio, len(both))
    ours = {both[i] for i in rank(value[both])[:count]}
    theirs = {both[i] for i in rank(other[both])[:count]}
    return len(ours & theirs) / len(ours | theirs)


@given(st.integers(2, 40), st.sampled_from(["0.1", "0.2", "0.5", "1"]), st.integers(0, 2**32))
def test_the_overlap_is_that_of_two_sets(size: int, ratio: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    value, other = rng.integers(0, 9, (2, size)).astype(float)
    value[rng.random(size) < 0.1] = np.nan
    other[0] = value[0] = 1.0
    found = survival(value, other, ratio)
    assert found.value == pytest.approx(brute_jaccard(value, other, ratio))
    assert not found.is_known or 0 <= found.low <= found.high <= 1


def test_a_subset_survives_itself_and_chance_is_what_chance_gives() -> None:
    rng = np.random.default_rng(0)
    value, other = rng.normal(size=(2, 5000))
    same = survival(value, value, "0.2")
    assert (same.value, same.high) == (1.0, 1.0)
    assert 0.99 < same.low < 1
    chance = survival(value, other, "0.2")
    assert chance.value == pytest.approx(jaccard_by_chance(5000, 1000), abs=0.02)
    assert chance.low < jaccard_by_chance(5000, 1000) < chance.high


def test_the_interval_is_as_wide_as_new_samples_would_make_it() -> None:
    """Against the truth: the spread of the overlap over many fresh pools of the same kind."""
    rng = np.random.default_rng(1)

    def pool() -> tuple[np.ndarray, np.ndarray]:
        value = rng.normal(size=800)
        return value, value + 0.5 * rng.normal(size=800)

    fresh = [survival(*pool(), "0.2").value for _ in range(300)]
    found = survival(*pool(), "0.2")
    assert found.high - found.low == pytest.approx(np.quantile(fresh, 0.975) - np.quantile(fresh, 0.025), rel=0.35)


def test_steps_drawn_anew_change_nothing_where_all_steps_agree() -> None:
    rng = np.random.default_rng(2)
    value = rng.normal(size=50)
    num_steps = rng.integers(1, 6, 50)
    steps = np.repeat(value, num_steps)
    offsets = np.concatenate([[0], np.cumsum(num_steps)])
    assert step_survival(value, steps, offsets, "0.2", draws=20).value == 1.0
    noisy = step_survival(value, steps + rng.normal(size=len(steps)), offsets, "0.2", draws=20)
    assert noisy.value < 0.9


def test_steps_are_drawn_from_their_own_sample_and_only_if_scored() -> None:
    value = np.array([3.0, 2.0, 1.0, np.nan])
    steps = np.array([np.nan, 3.0, 3.0, np.nan, 2.0, np.nan, 1.0, np.nan])
    found = step_survival(value, steps, np.array([0, 3, 5, 7, 8]), "0.4", draws=50)
    assert not found.is_known
    assert (found.value, found.num) == (1.0, 3)


def test_the_interval_of_the_same_choice_is_that_of_a_jaccard_index():
    value = np.arange(200.0)
    share = share_interval(40, 40)[0]
    assert survival(value, value, "0.2").low == pytest.approx(share / (2 - share))
