"""Ways of scoring by name: what every method promises, and the values of those that need no vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.base.arrays import sum_by_sample
from grace_store.base.errors import SettingError
from grace_store.scoring.score_table import COLUMNS, METHOD_TYPES
from grace_store.values.methods import METHODS
from grace_store.values.methods.loss import loss_values
from grace_store.values.methods.method import (
    Heuristic,
    HeuristicSpec,
    InfluenceMethod,
    InfluenceSpec,
    Responses,
    ScoreSpec,
    parse_spec,
)
from grace_store.values.methods.perplexity import perplexity_values
from grace_store.values.random_values import random_values

NUM_STEPS = np.array([2, 1, 3])
NUM_TOKENS = np.array([4, 1, 5, 7, 3, 2, 2, 2, 4], dtype=np.int32)
LOSS = np.array([1.0, 2.0, 0.4, 0.5, 1.5, 3.0, 1.0, 2.0, 0.5], dtype=np.float32)
RESPONSES = Responses(row=np.arange(3), num_steps=NUM_STEPS, num_parts=NUM_STEPS + 1, num_tokens=NUM_TOKENS, loss=LOSS)

OTHER_THAN_DEFAULT = {
    "alpha": 0.25,
    "history": "ema:0.8",
    "target": "trace",
    "without_answer": True,
    "aggregation": "min",
    "seed": 7,
    "vote_percent": 35.0,
    "join_cosine": 0.25,
}
"""A value of every setting of every method that is not its default."""


def settings_of(name: str) -> list[str]:
    return [field for field in METHODS[name].spec.model_fields if field != "method"]


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
    spec = METHODS[name].spec.parse(method=name)
    assert parse_spec(spec.model_dump()) == spec
    assert parse_spec(spec.model_dump(mode="json")) == spec
    for setting in METHODS[name].settings:
        changed = METHODS[name].spec.parse(**{"method": name, setting: OTHER_THAN_DEFAULT[setting]})
        assert changed != spec
        assert parse_spec(changed.model_dump(mode="json")) == changed


def test_a_spec_without_a_method_is_of_grace():
    assert parse_spec({"alpha": 0.5}) == ScoreSpec(alpha=0.5)


@pytest.mark.parametrize("name", METHODS)
def test_a_setting_is_used_or_refused(name):
    """Nobody should believe that a setting counted which the method does not look at."""
    assert set(METHODS[name].settings) <= set(settings_of(name))
    for setting in settings_of(name):
        if setting in METHODS[name].settings:
            continue
        with pytest.raises(SettingError, match=rf"{name} does not use --{setting.replace('_', '-')}"):
            METHODS[name].spec.parse(**{"method": name, setting: OTHER_THAN_DEFAULT[setting]})


@pytest.mark.parametrize("name", METHODS)
def test_its_own_columns_have_types_that_tables_know_and_names_of_their_own(name):
    method = METHODS[name]
    assert set(method.columns.values()) <= set(METHOD_TYPES)
    assert not set(method.columns) & set(COLUMNS)


@pytest.mark.parametrize("name", [name for name, each in METHODS.items() if isinstance(each, InfluenceMethod)])
def test_an_influence_method_fills_the_columns_it_names(name):
    method = METHODS[name]
    influence = np.array([[0.5, 0.25], [np.nan, np.nan], [0.0, 0.75]], dtype=np.float32)
    found = method.values(method.spec(method=name), influence, np.zeros(3))
    assert set(found.columns) == set(method.columns) - {"influence"}
    assert np.isnan(found.value).tolist() == [False, True, False]
    assert all(len(column) == 3 for column in found.columns.values())


@pytest.mark.parametrize("name", [name for name, each in METHODS.items() if not isinstance(each, InfluenceMethod)])
def test_whoever_reads_gradients_looks_at_a_target_set(name):
    assert METHODS[name].reads != "gradients"


@pytest.mark.parametrize(
    ("spec", "name", "known"),
    [
        (HeuristicSpec, "shortest", "random, longest, stepmax, loss, perplexity"),
        (HeuristicSpec, "less", "random, longest, stepmax, loss, perplexity"),
        (InfluenceSpec, "longest", "less, icons, cadc"),
    ],
)
def test_a_method_of_another_kind_is_refused(spec, name, known):
    with pytest.raises(SettingError, match=rf"unknown method '{name}': use one of {known}"):
        spec.parse(method=name)


names = st.text().filter(lambda name: name not in METHODS)


@given(st.one_of(names, st.none(), st.integers(), st.lists(names), st.dictionaries(names, names)))
@settings(max_examples=100, deadline=None)
def test_what_is_no_method_is_refused_with_a_sentence(name):
    with pytest.raises(SettingError, match="use one of grace, random"):
        parse_spec({"method": name})


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"method": "random", "seed": -1}, "seed -1: .* greater than or equal to 0"),
        ({"method": "random", "seed": 2**64}, "seed 18446744073709551616: .* less than"),
        ({"method": "icons", "vote_percent": 0}, "--vote-percent 0 is not above 0"),
        ({"method": "icons", "vote_percent": 101}, "--vote-percent 101 is not above 0 and at most 100"),
        ({"method": "icons", "vote_percent": float("nan")}, "--vote-percent nan is not above 0"),
        ({"method": "cadc", "join_cosine": 1.5}, "--join-cosine 1.5 is not between -1 and 1"),
        ({"method": "longest", "seed": 3}, "longest does not use --seed: leave --seed 3 out"),
        ({"method": "less", "join_cosine": 0.2}, "less does not use --join-cosine: leave --join-cosine 0.2 out"),
        ({"method": "icons", "seed": 3}, "icons does not use --seed: leave --seed 3 out"),
        ({"method": "cadc", "vote_percent": 10}, "cadc does not use --vote-percent"),
        ({"method": "longest", "depth": 3}, "--method longest does not use --depth"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given_settings, message):
    with pytest.raises(SettingError, match=message):
        parse_spec(given_settings)


# ---------------------------------------------------------------- values without vectors


def test_longest_and_stepmax_count():
    assert sum_by_sample(NUM_STEPS + 1, NUM_TOKENS).tolist() == [10, 10, 10]
    assert METHODS["stepmax"].values(HeuristicSpec(method="stepmax"), RESPONSES).tolist() == [2, 1, 3]


def test_loss_is_the_mean_over_tokens():
    expected = [np.repeat(LOSS[a:b], NUM_TOKENS[a:b]).mean() for a, b in [(0, 3), (3, 5), (5, 9)]]
    np.testing.assert_allclose(loss_values(NUM_STEPS + 1, NUM_TOKENS, LOSS), expected, rtol=1e-6)
    np.testing.assert_allclose(perplexity_values(NUM_STEPS + 1, NUM_TOKENS, LOSS), np.exp(expected), rtol=1e-6)


def test_a_loss_without_tokens_is_no_number_and_one_beyond_floats_is_infinite():
    assert np.isnan(loss_values(np.array([2]), np.array([0, 0]), np.array([1.0, 1.0]))).all()
    assert np.isinf(perplexity_values(np.array([2]), np.array([1, 1]), np.array([2000.0, 1.0]))).all()


def test_no_samples_are_no_values():
    assert len(sum_by_sample(np.zeros(0, np.int64), np.zeros(0))) == 0


@pytest.mark.parametrize("name", [name for name, each in METHODS.items() if isinstance(each, Heuristic)])
def test_every_heuristic_has_its_values(name):
    expected = {
        "random": random_values(0, np.arange(3)),
        "longest": sum_by_sample(NUM_STEPS + 1, NUM_TOKENS),
        "stepmax": NUM_STEPS,
        "loss": loss_values(NUM_STEPS + 1, NUM_TOKENS, LOSS),
        "perplexity": perplexity_values(NUM_STEPS + 1, NUM_TOKENS, LOSS),
    }
    np.testing.assert_array_equal(METHODS[name].values(HeuristicSpec(method=name), RESPONSES), expected[name])


def test_segments_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"3 samples have 9 parts, not \(8,\)"):
        sum_by_sample(NUM_STEPS + 1, NUM_TOKENS[1:])
