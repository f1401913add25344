"""Scoring methods by name: each takes its own settings and refuses those that it would ignore."""

from __future__ import annotations

import pytest

from grace_store.base.errors import SettingError
from grace_store.values.methods.method import METHODS, InfluenceSpec, ScoreSpec, parse_spec


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_has_settings_of_its_own_name(method):
    assert parse_spec({"method": method}).method == method


def test_settings_are_those_given():
    assert parse_spec({"alpha": 0.3, "history": "ema:0.8"}) == ScoreSpec(alpha=0.3, history="ema:0.8")
    assert parse_spec({"measure": ["random"], "seed": 7}) == ScoreSpec(measure=("random",), seed=7)
    assert parse_spec({"method": "icons", "vote_percent": 5}) == InfluenceSpec(method="icons", vote_percent=5)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("measures", {"measure": ["tokens"], "alpha": 0.3}, "tokens:highest does not use --alpha"),
        ("measures", {"vote_percent": 5}, "does not use --vote-percent; use --method icons"),
        ("measures", {"seed": 1}, "grace does not use --seed"),
        ("cadc", {"alpha": 0.3}, "--method cadc does not use --alpha"),
        ("less", {"vote_percent": 5}, "does not use --vote-percent"),
        ("nonsense", {}, "nonsense"),
    ],
)
def test_what_a_method_would_ignore_is_refused(method, settings, message):
    with pytest.raises(SettingError, match=message):
        parse_spec({"method": method, **settings})
