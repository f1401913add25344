"""Areas against a loop over all pairs, intervals against pools without one question, and chance at its value."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.values.roc import LabelledItems, area_across, area_within, cells_of


def made(seed: int, num: int = 60) -> tuple[np.ndarray, LabelledItems]:
    """Return scores with many ties and some gaps, and items of a few questions and cells."""
    rng = np.random.default_rng(seed)
    score = np.where(rng.random(num) < 0.1, np.nan, rng.integers(0, 9, num).astype(float))
    return score, LabelledItems(rng.random(num) < 0.6, rng.integers(0, 12, num), rng.integers(0, 4, num))


def brute_force(score: np.ndarray, items: LabelledItems, *, within: bool, fixed: bool) -> tuple[float, int]:
    wins, pairs = 0.0, 0
    for i in np.flatnonzero(items.is_right & np.isfinite(score)):
        for j in np.flatnonzero(~items.is_right & np.isfinite(score)):
            if within and items.question[i] != items.question[j]:
                continue
            if fixed and items.cell[i] != items.cell[j]:
                continue
            wins += 1.0 if score[i] > score[j] else 0.5 if score[i] == score[j] else 0.0
            pairs += 1
    return wins / pairs, pairs


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("within", [False, True])
def test_an_area_is_the_share_of_pairs_that_are_in_order(seed: int, within: bool, fixed: bool) -> None:
    score, items = made(seed)
    found = (area_within if within else area_across)(score, items, fixed=fixed)
    area, num_pairs = brute_force(score, items, within=within, fixed=fixed)
    assert (found.value, found.num) == (pytest.approx(area, abs=1e-12), num_pairs)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("within", [False, True])
def test_the_interval_is_that_of_areas_without_one_question(within: bool, fixed: bool) -> None:
    """Against the jackknife by brute force: its standard error, in the middle of the range."""
    rng = np.random.default_rng(5)
    is_right = rng.random(240) < 0.6
    items = LabelledItems(is_right, np.arange(240) // 6, rng.integers(0, 2, 240))
    score = np.round(is_right * 0.2 + rng.normal(size=40)[items.question] + rng.normal(size=240), 1)
    area = area_within if within else area_across
    without = []
    for question in range(40):
        kept = items.question != question
        without.append(brute_force(score[kept], items.taken(kept), within=within, fixed=fixed)[0])
    error = np.sqrt(39 / 40 * ((np.array(without) - np.mean(without)) ** 2).sum())
    found = area(score, items, fixed=fixed)
    assert (found.high - found.low) / 2 == pytest.approx(2.02 * error, rel=0.2)


def test_copies_of_items_make_no_interval_narrower() -> None:
    score, items = made(3, 200)
    again = np.repeat(np.arange(200), 8)
    eight = LabelledItems(items.is_right[again], items.question[again], items.cell[again])
    once, often = area_across(score, items), area_across(score[again], eight)
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_random_scores_are_at_chance_and_their_intervals_hold_it() -> None:
    rng = np.random.default_rng(0)
    question = np.repeat(np.arange(100), 5)
    areas = []
    for _ in range(40):
        items = LabelledItems(rng.random(500) < 0.7, question, rng.integers(0, 6, 500))
        areas.append(area_across(rng.random(500), items))
    assert np.mean([each.value for each in areas]) == pytest.approx(0.5, abs=0.02)
    assert sum(each.low <= 0.5 <= each.high for each in areas) >= 33
    assert sum(each.p_value < 0.05 for each in areas) <= 7


def test_what_makes_the_cells_is_held_fixed() -> None:
    rng = np.random.default_rng(1)
    length, place = rng.integers(5, 60, 4000), rng.integers(0, 6, 4000)
    is_right = rng.random(4000) > 0.2 + 0.1 * place  # later ones are wrong more often, whatever else
    items = LabelledItems(is_right, np.arange(4000) // 4, cells_of(place, length))
    blind = -(place + rng.normal(0, 0.1, 4000))
    assert area_across(blind, items).value > 0.65
    fixed = area_across(blind, items, fixed=True)
    assert fixed.low <= 0.5 <= fixed.high
    seeing = is_right + rng.normal(0, 0.5, 4000)
    assert area_across(seeing, items, fixed=True).low > 0.9


def test_equal_lengths_share_a_cell_and_places_do_not() -> None:
    cell = cells_of(np.array([0, 0, 0, 0, 1, 1]), np.array([3, 3, 3, 90, 3, 3]))
    assert len({*cell[:3].tolist()}) == 1
    assert cell[3] != cell[0]
    assert not set(cell[:4].tolist()) & set(cell[4:].tolist())


def test_without_pairs_nothing_is_known() -> None:
    items = LabelledItems(np.array([True, False]), np.array([0, 1]), np.array([0, 1]))
    for found in (area_within(np.ones(2), items), area_across(np.full(2, np.nan), items)):
        assert not found.is_known
        assert np.isnan(found.value)
        assert found.num == 0
