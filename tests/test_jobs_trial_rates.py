"""The error rates of trials: the table in the repository is that of its trials, and a repetition is a whole trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from grace_store.values.intervals import ERROR
from grace_store.values.subset_trial import POWER
from jobs.study import trial_rates
from jobs.study.trial_rates import LINES, QUESTIONS, RESULT, Outcome, choose, make_pool, rates_table, read_outcomes, run

RESULTS = Path(trial_rates.__file__).parent / "results"


def test_the_table_is_that_of_the_trials_and_they_keep_what_is_stated():
    outcomes = read_outcomes(RESULTS / LINES)
    assert rates_table(outcomes).markdown() in (RESULTS / RESULT).read_text()
    for question, right in zip(QUESTIONS, (None, "subset", "random"), strict=True):
        said = [each.said for each in outcomes if each.question == question]
        assert len(said) >= 100
        if right is None:
            assert 1 - said.count("neither") / len(said) <= ERROR
        else:
            assert said.count(right) / len(said) >= POWER


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0.1, 0.2, "random"), (-0.2, -0.1, "subset"), (-0.1, 0.1, "neither")]
)
def test_what_a_trial_says_follows_from_its_interval(low, high, said):
    assert Outcome("clean", 0, 0.0, low, high, 1, 6).said == said


def test_a_repetition_is_a_trial_and_is_done_once(tmp_path, monkeypatch):
    monkeypatch.setattr(trial_rates, "SPENT", {"num_updates": 8, "num_random": 2, "num_seeds": 1})
    monkeypatch.setattr(trial_rates, "QUESTIONS", ("spoilt",))
    found = run(tmp_path / "out", tmp_path / "work", 1)
    assert [(each.question, each.repetition, each.num_runs) for each in found] == [("spoilt", 0, 3)]

    def refuse(*_):
        raise AssertionError("done twice")

    monkeypatch.setattr(trial_rates, "repeat", refuse)
    with (tmp_path / "out" / LINES).open("a") as stream:
        stream.write('{"question": "spo')  # as a kill leaves it
    assert run(tmp_path / "out", tmp_path / "work", 1) == found
    pool = {record["id"]: record["quality"] for record in make_pool(tmp_path / "work")}
    assert {pool[name] for name in choose(make_pool(tmp_path / "work"), "clean", 1)} == {"clean"}
