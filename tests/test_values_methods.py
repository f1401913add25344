"""Methods with a target set: their settings, and what every method promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.base.errors import SettingError
from grace_store.scoring.score_table import COLUMNS, METHOD_TYPES
from grace_store.values.methods.method import METHODS, InfluenceSpec, ScoreSpec, parse_spec

OTHER_THAN_DEFAULT = {"seed": 7, "vote_percent": 35.0, "join_cosine": 0.25}
"""A value of every setting of every method that is not its default."""


# ---------------------------------------------------------------- what every method promises


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_found_by_its_name_and_says_what_it_keeps(name):
    method = METHODS[name]
    assert method.name == name
    assert method.about
    assert not method.about.endswith(".")  # one line of a list
    assert method.title.startswith(name)
    assert ("reconstruction" in method.title) == method.is_reconstruction


@pytest.mark.parametrize("name", METHODS)
def test_a_spec_is_parsed_from_its_own_dump(name):
    spec = InfluenceSpec.parse(method=name)
    assert parse_spec(spec.model_dump()) == spec
    assert parse_spec(spec.model_dump(mode="json")) == spec
    for setting in METHODS[name].settings:
        changed = InfluenceSpec.parse(**{"method": name, setting: OTHER_THAN_DEFAULT[setting]})
        assert changed != spec
        assert parse_spec(changed.model_dump(mode="json")) == changed


def test_a_spec_without_a_method_is_of_grace():
    assert parse_spec({"alpha": 0.5}) == ScoreSpec(alpha=0.5)


@pytest.mark.parametrize("name", METHODS)
def test_a_setting_is_used_or_refused(name):
    """Nobody should believe that a setting counted which the method does not look at."""
    assert set(METHODS[name].settings) <= set(OTHER_THAN_DEFAULT)
    for setting in OTHER_THAN_DEFAULT:
        if setting in METHODS[name].settings:
            continue
        with pytest.raises(SettingError, match=rf"{name} does not use --{setting.replace('_', '-')}"):
            InfluenceSpec.parse(**{"method": name, setting: OTHER_THAN_DEFAULT[setting]})


@pytest.mark.parametrize("name", METHODS)
def test_its_own_columns_have_types_that_tables_know_and_names_of_their_own(name):
    method = METHODS[name]
    assert set(method.columns.values()) <= set(METHOD_TYPES)
    assert not set(method.columns) & set(COLUMNS)


@pytest.mark.parametrize("name", METHODS)
def test_an_influence_method_fills_the_columns_it_names(name):
    method = METHODS[name]
    influence = np.array([[0.5, 0.25], [np.nan, np.nan], [0.0, 0.75]], dtype=np.float32)
    value, columns, _ = method.values(InfluenceSpec(method=name), influence, np.zeros(3))
    assert set(columns) == set(method.columns) - {"influence"}
    assert np.isnan(value).tolist() == [False, True, False]
    assert all(len(column) == 3 for column in columns.values())


@pytest.mark.parametrize(
    ("name", "measure"),
    [("grace", "grace"), ("longest", "tokens"), ("stepmax", "steps"), ("loss", "loss:highest"), ("random", "random")],
)
def test_a_baseline_without_a_target_set_is_refused_with_its_measure(name, measure):
    with pytest.raises(
        SettingError, match=rf"unknown method '{name}': use one of less, icons, cadc, or --measure {measure}$"
    ):
        parse_spec({"method": name})


names = st.text().filter(lambda name: name not in (*METHODS, "measures"))


@given(st.one_of(names, st.none(), st.integers(), st.lists(names), st.dictionaries(names, names)))
@settings(max_examples=100, deadline=None)
def test_what_is_no_method_is_refused_with_a_sentence(name):
    with pytest.raises(SettingError, match="use one of less, icons, cadc"):
        parse_spec({"method": name})


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"measure": ["random"], "seed": -1}, "seed -1: .* greater than or equal to 0"),
        ({"measure": ["random"], "seed": 2**64}, "seed 18446744073709551616: .* less than"),
        ({"method": "icons", "vote_percent": 0}, "--vote-percent 0 is not above 0"),
        ({"method": "icons", "vote_percent": 101}, "--vote-percent 101 is not above 0 and at most 100"),
        ({"method": "icons", "vote_percent": float("nan")}, "--vote-percent nan is not above 0"),
        ({"method": "cadc", "join_cosine": 1.5}, "--join-cosine 1.5 is not between -1 and 1"),
        ({"measure": ["tokens"], "seed": 3}, "tokens:highest does not use --seed: leave --seed 3 out"),
        ({"method": "less", "join_cosine": 0.2}, "less does not use --join-cosine: leave --join-cosine 0.2 out"),
        ({"method": "icons", "seed": 3}, "icons does not use --seed: leave --seed 3 out"),
        ({"method": "cadc", "vote_percent": 10}, "cadc does not use --vote-percent"),
        ({"measure": ["tokens"], "depth": 3}, "a score by measures does not use --depth"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given_settings, message):
    with pytest.raises(SettingError, match=message):
        parse_spec(given_settings)
