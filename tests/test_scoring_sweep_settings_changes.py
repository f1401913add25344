"""What a sweep concludes: against the default setting, whether or not that is in the sweep."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grace_store.scoring.score import score
from grace_store.scoring.sweep import read_sweep, sweep
from grace_store.scoring.sweep_settings import conclude_sweep
from grace_store.values.grid import SweepSpec
from grace_store.values.intervals import share_interval
from grace_store.values.ranking import budget, top_mask
from tests.scored_stores import known_store


def row(overlap, num=400, **parts):
    default = {"measure": "grace", "alpha": 0.7, "history": "uniform", "target": "answer"}
    default |= {"aggregation": "mean", "signals": "base"}
    shared, chosen = 2 * overlap / (1 + overlap), num / 5
    low, high = (share / (2 - share) for share in share_interval(shared * chosen, chosen))
    ends = {"overlap_with_default": overlap, "overlap_low": low, "overlap_high": high}
    return default | ends | {"num_with_value": num} | parts


DEFAULT = row(1.0)


def told(*rows, ratio="0.2"):
    labels = [f"alpha={each['alpha']:g} history={each['history']}" for each in rows]
    return conclude_sweep(rows, labels, ratio)


def test_the_settings_that_change_most_and_least_and_the_part_that_matters():
    said = told(DEFAULT, row(0.4, alpha=0.1), row(0.95, history="ema:0.8"), row(0.38, alpha=0.1, history="ema:0.8"))
    assert said.startswith(
        "Against the default (alpha=0.7 history=uniform), alpha=0.1 history=ema:0.8 changes the best"
    )
    assert (
        "best 0.2 most, with an overlap of 0.38 (0.28 to 0.49), and alpha=0.7 history=ema:0.8 least, with 0.95" in said
    )
    assert "1 is the same samples, 0.11 is chance." in said
    assert said.endswith(
        "Each changed alone brings the overlap down (alpha to 0.40, history to 0.95): alpha matters most."
    )


def test_what_hardly_matters_or_cannot_be_told_apart_is_said_to():
    assert told(DEFAULT, row(0.97, alpha=0.6), row(0.99, alpha=0.8)).endswith("Changed alone, alpha hardly matters.")
    assert told(DEFAULT, row(0.97, alpha=0.6), row(0.99, history="ema:0.8")).endswith("hardly a change.")
    close = told(DEFAULT, row(0.7, alpha=0.1), row(0.75, history="ema:0.8"))
    assert close.endswith("too close to say whether alpha matters more.")
    assert "alpha=0.1 history=uniform has an overlap of 0.50" in told(DEFAULT, row(0.5, alpha=0.1))


def test_overlaps_within_their_intervals_are_not_ranked():
    near = told(DEFAULT, row(0.5, alpha=0.1), row(0.55, alpha=0.3), row(0.6, alpha=0.9))
    assert "(alpha=0.7), the other 3 settings change the best 0.2 about as much, with overlaps from 0.50 (" in near
    assert "0.11 is chance. Changed" not in near
    assert "Random subsets" not in near
    by_chance = told(DEFAULT, row(0.09, alpha=0.1), row(0.12, history="ema:0.8"))
    assert "0.11 is chance. The overlaps are not shown to be more than chance." in by_chance
    assert "most" not in by_chance
    assert "0.11 is chance. The overlaps are not shown to be more than chance." in told(DEFAULT, row(0.1, alpha=0.1))


def test_too_few_samples_say_how_many_would_do():
    said = told(row(1.0, num=24), row(0.43, num=24, alpha=0.1))
    assert said.startswith("The best 0.2 are 5 of 24 samples, too few to say how settings change them")
    assert "About 270 samples would narrow that to 0.10." in said
    assert "too few" not in told(row(1.0, num=270), row(0.43, num=270, alpha=0.1))


def test_nothing_to_compare_and_nothing_known():
    assert told(DEFAULT) == "The only setting is the default one, so there is nothing to compare it with."
    assert told(row(math.nan, alpha=0.1)).endswith("with the default one is not known: no sample has a value.")


@pytest.mark.parametrize("alphas", [(0.1, 0.7), (0.1, 0.9)])
def test_the_default_is_scored_if_the_sweep_lacks_it_and_never_written(tmp_path, alphas):
    store = known_store(tmp_path, num_steps=[2 + i % 7 for i in range(60)]).store
    spec = SweepSpec.parse(ratio="0.5", grid=[{"alpha": alphas}])
    found = sweep(store, spec, out=tmp_path / "sweep")
    assert len(found.settings) == len(found.summary) == 2
    assert found.values().shape == (2, 60)
    default = top_mask(score(store).value, budget("0.5", 60))
    for index, each in enumerate(found.summary):
        mine = top_mask(found.value(index), budget("0.5", 60))
        assert each["overlap_with_default"] == pytest.approx((mine & default).sum() / (mine | default).sum())
    assert ("which is not part of the sweep" in found.conclusion) == (0.7 not in alphas)
    assert f"{found.summary[0]['overlap_with_default']:.2f} (" in found.conclusion
    again = read_sweep(store, tmp_path / "sweep")
    assert again.conclusion == found.conclusion
    np.testing.assert_array_equal(sweep(store, spec).values(), found.values())
