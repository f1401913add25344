"""Scoring settings: what they accept, and the one sentence they refuse the rest with."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from grace_store.base.errors import SettingError
from grace_store.values.methods.method import ScoreSpec


def test_the_defaults_are_the_papers():
    spec = ScoreSpec()
    assert (spec.measure, spec.alpha, spec.history, spec.target) == (("grace",), 0.7, "uniform", "answer")
    assert (spec.without_answer, spec.aggregation) == (False, "mean")


@pytest.mark.parametrize(
    ("given", "kept"),
    [(" uniform ", "uniform"), ("window:03", "window:3"), ("ema:.80", "ema:0.8"), ("ema:0.0", "ema:0")],
)
def test_a_history_has_one_spelling(given, kept):
    assert ScoreSpec(history=given).history == kept
    assert ScoreSpec(history=given).digest() == ScoreSpec(history=kept).digest()


@pytest.mark.parametrize(
    "kept", ["mean", "min", "last", "length_weighted", "quantile:0.25", "quantile:0", "quantile:1"]
)
def test_an_aggregation_survives_the_round_trip(kept):
    spec = ScoreSpec(aggregation=kept)
    assert spec.aggregation == kept
    assert ScoreSpec.model_validate_json(spec.canonical()) == spec


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.2}, r"^alpha 1\.2 is not between 0 \(history alone\) and 1 \(answer alone\)$"),
        ({"alpha": -0.1}, r"^alpha -0\.1 is not between"),
        ({"alpha": float("nan")}, "^alpha nan is not between"),
        ({"alpha": "much"}, "^alpha 'much': a number is wanted"),
        ({"history": "window:0"}, "^history 'window:0': a window is a whole number of steps, at least 1"),
        ({"history": "window:-2"}, "a window is a whole number of steps"),
        ({"history": "window:2.5"}, "a window is a whole number of steps"),
        ({"history": "window:"}, "a window is a whole number of steps"),
        ({"history": "window:²"}, "a window is a whole number of steps"),
        ({"history": "ema:1"}, "^history 'ema:1': an ema's decay is at least 0 and below 1"),
        ({"history": "ema:-0.5"}, "an ema's decay is at least 0 and below 1"),
        ({"history": "ema:nan"}, "an ema's decay is at least 0 and below 1"),
        ({"history": "ema:x"}, "an ema's decay is at least 0 and below 1"),
        ({"history": "uniform:3"}, "^unknown value 'uniform:3' of history: use uniform, window:W or ema:B$"),
        ({"history": "ema"}, "^unknown value 'ema' of history"),
        ({"history": "recent"}, "^unknown value 'recent' of history"),
        ({"target": "question"}, "^target 'question': input should be 'answer', 'trace', 'suffix' or 'group'$"),
        ({"aggregation": "max"}, "^unknown value 'max' of aggregation: use mean, .*, length_weighted or quantile:Q$"),
        ({"aggregation": "mean:2"}, "^unknown value 'mean:2' of aggregation"),
        ({"aggregation": "quantile:1.5"}, "^aggregation 'quantile:1.5': a quantile lies between 0 and 1"),
        ({"aggregation": "quantile:"}, "a quantile lies between 0 and 1"),
        ({"method": "less"}, "^method 'less': input should be 'measures'$"),
        ({"alhpa": 1.0}, "^alhpa 1.0: there is no such setting$"),
        (
            {"without_answer": True, "alpha": 0.5},
            "^without_answer scores by history alone: leave alpha 0.5 out",
        ),
        ({"without_answer": True, "target": "trace"}, "leave target trace out"),
    ],
)
def test_a_setting_without_meaning_is_refused_in_one_sentence(settings, message):
    with pytest.raises(SettingError, match=message) as caught:
        ScoreSpec.parse(**settings)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValidationError, match="validation error for ScoreSpec"):
        ScoreSpec(**settings)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(SettingError, match=r"alpha 2 is not between .*; history 'ema:1': an ema's decay"):
        ScoreSpec.parse(alpha=2, history="ema:1")
