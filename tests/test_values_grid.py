"""Grids of settings: what they hold, what is refused."""

from __future__ import annotations

import pytest

from grace_store.base.errors import SettingError
from grace_store.values.grid import Grid, SweepSpec, parse_alphas
from grace_store.values.methods.method import ScoreSpec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1:0.9:0.1", (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
        ("0:1:0.3", (0.0, 0.3, 0.6, 0.9)),
        ("0.7", (0.7,)),
        ("0.1, 0.5:0.6:0.05", (0.1, 0.5, 0.55, 0.6)),
    ],
)
def test_alphas_are_the_decimals_that_are_written(text, expected):
    assert parse_alphas(text) == expected


@pytest.mark.parametrize("text", ["a", "", "0.1:0.9", "0.9:0.1:0.1", "0:1:0", "0:1:-1", "nan", "1:2:3:4", "0:1:0.0001"])
def test_alphas_without_meaning_are_refused(text):
    with pytest.raises(SettingError, match="alpha"):
        parse_alphas(text)


def test_a_grid_is_every_combination():
    specs = list(Grid(alpha=[0.1, 0.9], history="uniform, ema:0.5", target="trace").specs())
    assert specs == [
        ScoreSpec(alpha=alpha, history=history, target="trace")
        for history in ("uniform", "ema:0.5")
        for alpha in (0.1, 0.9)
    ]
    assert list(Grid(without_answer=True).specs()) == [ScoreSpec(without_answer=True)]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"alpha": 1.5}, r"alpha 1\.5 is not between 0"),
        ({"history": "window:0"}, "a window is a whole number of steps, at least 1"),
        ({"history": "ema:1"}, "an ema's decay is at least 0 and below 1"),
        ({"without_answer": True, "alpha": "0.1,0.2"}, "leave alpha and target out of the grid"),
        ({"without_answer": True, "alpha": 0.3}, r"leave alpha 0\.3 out"),
        ({"measure": "loss", "without_answer": True}, "loss:lowest does not use --without-answer"),
        (
            {"measure": "loss,answer_alignment", "history": "ema:0.5"},
            "does not use --history: leave --history ema:0.5 out",
        ),
        ({"measure": "grace=0.5"}, "alone has no weight: leave that of grace=0.5 out"),
    ],
)
def test_settings_without_meaning_are_refused(grid, message):
    with pytest.raises(SettingError, match=message):
        SweepSpec.parse(grid=[grid])


def test_a_measure_leaves_out_what_only_another_measure_uses():
    assert list(Grid(measure="loss,grace", alpha="0.1,0.9").specs()) == [
        ScoreSpec(measure=("loss",)),
        ScoreSpec(alpha=0.1),
        ScoreSpec(alpha=0.9),
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grid": [{"target": "question"}]}, "input should be 'answer', 'trace' or 'suffix'"),
        ({"grid": [{"history": []}]}, "history has no value in the grid"),
        ({"ratio": []}, "a sweep needs at least one ratio"),
        ({"grids": []}, "there is no such setting"),
    ],
)
def test_a_sweep_without_meaning_is_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        SweepSpec.parse(**settings)


def test_ratios_stay_as_they_are_written():
    assert SweepSpec.parse(ratio=0.05).ratio == ("0.05",)
    assert SweepSpec.parse(ratio=["0.10", 0.2]).ratio == ("0.10", "0.2")
