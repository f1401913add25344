"""Measures: each against a loop over the tokens of each trace, and the grammar of their names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from grace_store.base.errors import SettingError
from grace_store.values.measures import (
    MAX_RANK,
    MEASURES,
    Responses,
    combine_measures,
    scores_by,
    step_numbers,
    trace_values,
)
from grace_store.values.methods.method import ScoreSpec, parse_measure
from grace_store.values.random_values import random_values
from tests.brute_force import brute_force

RNG = np.random.default_rng(5)
NUM_STEPS = [2, 1, 4]


class Trace:
    """A trace with numbers for each token, and vectors."""

    def __init__(self, num_steps: int) -> None:
        self.tokens = [int(each) for each in RNG.integers(2, 6, num_steps + 1)]
        self.loss, self.entropy, self.error = ([RNG.random(n) + 0.1 for n in self.tokens] for _ in range(3))
        self.rank = [RNG.integers(1, 300, n) for n in self.tokens]
        self.vectors = RNG.normal(size=(num_steps + 1, 6))
        self.gram = self.vectors @ self.vectors.T


TRACES = [Trace(num) for num in NUM_STEPS]


def flat(numbers: list[list[float]]) -> Any:
    return np.array([each for trace in numbers for each in trace])


def responses(spec: ScoreSpec | None = None) -> Responses:
    means = {
        "loss": lambda t, k: t.loss[k].mean(),
        "entropy": lambda t, k: t.entropy[k].mean(),
        "error": lambda t, k: t.error[k].mean(),
        "hit_rate": lambda t, k: (t.rank[k] == 1).mean(),
        "rank": lambda t, k: np.minimum(t.rank[k], MAX_RANK).mean(),
        "first_loss": lambda t, k: t.loss[k][0],
    }
    packed = [trace.gram[np.tril_indices(len(trace.gram))] for trace in TRACES]
    return Responses(
        spec=spec or ScoreSpec(),
        row=np.array([3, 5, 9]),
        num_steps=np.array(NUM_STEPS),
        num_tokens=flat([trace.tokens for trace in TRACES]),
        gram=np.concatenate(packed),
        statistic={
            name: flat([[of(trace, k) for k in range(len(trace.tokens))] for trace in TRACES])
            for name, of in means.items()
        },
        num_characters=np.array([70, 30, 110]),
        top_entropy=np.array([max(np.concatenate(trace.entropy)) for trace in TRACES]),
    )


def joined(parts: list[Any]) -> Any:
    return np.concatenate(parts)


def aligned(trace: Trace, which: str) -> list[float]:
    found = brute_force(trace.vectors, np.array(trace.tokens), ScoreSpec())
    return [float(each) for each in getattr(found, which)]


EXPECTED = {
    "grace": lambda t: brute_force(t.vectors, np.array(t.tokens), ScoreSpec()).value,
    "answer_alignment": lambda t: np.mean(aligned(t, "answer_alignment")),
    "history_alignment": lambda t: np.mean(aligned(t, "history_alignment")[1:]) if len(t.tokens) > 2 else math.nan,
    "loss": lambda t: joined(t.loss).mean(),
    "later_loss": lambda t: joined([each[1:] for each in t.loss]).mean(),
    "first_loss": lambda t: np.mean([each[0] for each in t.loss[:-1]]),
    "entropy": lambda t: joined(t.entropy).mean(),
    "hit_rate": lambda t: (joined(t.rank) == 1).mean(),
    "rank": lambda t: np.minimum(joined(t.rank), MAX_RANK).mean(),
    "error": lambda t: joined(t.error).mean(),
    "rsr": lambda t: np.minimum(joined(t.rank), MAX_RANK).sum() / joined(t.loss).sum(),
    "hes": lambda t: joined(t.entropy).max(),
    "norm": lambda t: np.linalg.norm(t.vectors[:-1], axis=1).mean(),
    "tokens": lambda t: sum(t.tokens),
    "steps": lambda t: len(t.tokens) - 1,
}
"""Each measure of a trace, from its tokens and vectors."""


@pytest.mark.parametrize("name", [name for name in MEASURES if name not in ("random", "characters")])
def test_a_measure_is_what_a_loop_over_tokens_gives(name):
    better = MEASURES[name].better
    sign = 1 if better == "highest" else -1
    wanted = [sign * EXPECTED[name](trace) for trace in TRACES]
    np.testing.assert_allclose(trace_values(parse_measure(name), responses()), wanted, rtol=1e-6)
    other = "lowest" if better == "highest" else "highest"
    np.testing.assert_allclose(
        trace_values(parse_measure(f"{name}:{other}"), responses()), [-each for each in wanted], rtol=1e-6
    )


def test_measures_of_the_plan():
    assert trace_values(parse_measure("characters"), responses()).tolist() == [70, 30, 110]
    spec = ScoreSpec(measure=("random",), seed=4)
    drawn = random_values(4, np.array([3, 5, 9]))
    np.testing.assert_array_equal(trace_values(parse_measure("random"), responses(spec)), drawn)


OF_STEPS = {
    "loss": lambda t, k: -t.loss[k].mean(),
    "later_loss": lambda t, k: -t.loss[k][1:].mean(),
    "hit_rate": lambda t, k: (t.rank[k] == 1).mean(),
    "rsr": lambda t, k: -np.minimum(t.rank[k], MAX_RANK).sum() / t.loss[k].sum(),
    "norm": lambda t, k: -np.linalg.norm(t.vectors[k]),
    "tokens": lambda t, k: t.tokens[k],
}


@pytest.mark.parametrize("name", OF_STEPS)
def test_steps_have_numbers_too_and_every_aggregation_of_them(name):
    steps = [[OF_STEPS[name](trace, k) for k in range(len(trace.tokens) - 1)] for trace in TRACES]
    np.testing.assert_allclose(step_numbers(parse_measure(name), responses()), flat(steps), rtol=1e-6)
    how = {
        "mean": lambda each, _: np.mean(each),
        "min": lambda each, _: min(each),
        "last": lambda each, _: each[-1],
        "length_weighted": lambda each, tokens: np.average(each, weights=tokens[:-1]),
        "quantile:0.25": lambda each, _: np.quantile(each, 0.25),
    }
    for aggregation, of in how.items():
        found = trace_values(parse_measure(f"{name}:{aggregation}"), responses())
        wanted = [of(each, trace.tokens) for each, trace in zip(steps, TRACES, strict=True)]
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_whole_responses_have_values_and_no_steps():
    whole = Responses(
        spec=ScoreSpec(),
        row=np.arange(2),
        num_steps=np.array([2, 3]),
        num_tokens=np.array([7, 9]),
        statistic={"loss": np.array([1.0, 2.0])},
    )
    assert trace_values(parse_measure("loss:highest"), whole).tolist() == [1, 2]
    assert step_numbers(parse_measure("loss"), whole) is None
    with pytest.raises(SettingError, match="measure loss:lowest:min needs a signal with steps"):
        trace_values(parse_measure("loss:lowest:min"), whole)


def test_alignments_come_only_with_measures_that_read_grams():
    by_norm, by_loss = (scores_by(parse_measure(name), responses()) for name in ("norm", "loss"))
    assert np.isfinite(by_norm.answer_alignment).all()
    assert np.isnan(by_loss.answer_alignment).all()
    assert np.isfinite(by_loss.step_score).all()
    assert scores_by(parse_measure("grace"), responses()).flags.tolist() == by_norm.flags.tolist()


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("given_text", "canonical"),
    [
        ("grace", "grace"),
        ("loss", "loss:lowest"),
        (" loss:highest=0.50", "loss:highest=0.5"),
        ("loss:min", "loss:lowest:min"),
        ("grace:quantile:0.250", "grace:quantile:0.25"),
        ("grace:lowest", "grace:lowest"),
        ("tokens=2", "tokens:highest=2"),
    ],
)
def test_a_measure_has_one_form(given_text, canonical):
    assert str(parse_measure(given_text)) == canonical
    assert parse_measure(canonical) == parse_measure(given_text)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["shortest"], "unknown measure 'shortest': use one of grace, answer_alignment"),
        (["loss:middle"], "unknown value 'middle' of aggregation"),
        (["steps:min"], "steps has no numbers of steps, so leave min out"),
        (["loss=0"], "a weight is a number above 0, as in loss=0.5"),
        (["loss=x"], "a weight is a number above 0"),
        (["loss=inf"], "a weight is a number above 0"),
        ([], "there is no measure"),
        (["loss", "loss:lowest=2"], "measure loss:lowest is given twice"),
        (["loss:lowest", "loss:highest"], "measure loss:highest, loss:lowest is given twice"),
    ],
)
def test_a_measure_that_means_nothing_is_refused(texts, message):
    with pytest.raises(SettingError, match=message):
        ScoreSpec.parse(measure=texts)


@pytest.mark.parametrize(
    ("measure", "setting"),
    [
        ("loss", {"alpha": 0.3}),
        ("answer_alignment", {"alpha": 0.3}),
        ("norm", {"history": "ema:0.5"}),
        ("grace", {"seed": 3}),
    ],
)
def test_a_setting_that_no_measure_uses_is_refused(measure, setting):
    with pytest.raises(SettingError, match=rf"does not use --{next(iter(setting))}"):
        ScoreSpec.parse(measure=[measure], **setting)


def test_an_aggregation_is_given_once():
    with pytest.raises(SettingError, match="names an aggregation: leave --aggregation out"):
        ScoreSpec.parse(measure=["grace:min"], aggregation="last")


@pytest.mark.parametrize("learn", [False, True])
def test_the_weight_of_a_single_measure_is_refused(learn):
    with pytest.raises(
        SettingError, match="a measure that scores alone has no weight: leave that of loss:lowest=3 out"
    ):
        ScoreSpec.parse(measure=["loss=3"], learn=learn)
    assert ScoreSpec(measure=("loss=1",)) == ScoreSpec(measure=("loss",))


# ---------------------------------------------------------------- several together


def test_values_are_standardised_and_weighed():
    spec = ScoreSpec(measure=("loss=3", "tokens"))
    values = [RNG.normal(size=50), RNG.normal(5, 4, size=50)]
    standard = [(each - each.mean()) / each.std() for each in values]
    combined, scales = combine_measures([np.append(each, np.nan) for each in values], spec)
    np.testing.assert_allclose(combined, np.append(0.75 * standard[0] + 0.25 * standard[1], np.nan))
    np.testing.assert_allclose(scales, [(each.mean(), each.std()) for each in values])


def test_the_worst_step_is_the_worst_whichever_way_is_better():
    spec = ScoreSpec(measure=("grace:lowest",), aggregation="min")
    steps = np.split(step_numbers(parse_measure("grace:lowest"), responses()), np.cumsum(NUM_STEPS)[:-1])
    found = trace_values(spec.measures[0], responses(spec))
    np.testing.assert_allclose(found, [each.min() for each in steps])
