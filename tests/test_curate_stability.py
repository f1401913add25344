"""The stability audit of a store: other signals, less precision, other steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import SettingError, UnknownName
from grace_store.base.text import percent
from grace_store.curate.stability import Stability, StabilityRequest, stability
from grace_store.values.agreement import jaccard_by_chance, step_survival, survival
from grace_store.values.ranking import budget, rank
from grace_store.values.score_spec import ScoreSpec
from tests.scored_stores import known_store


def brute_value(vectors: np.ndarray, alpha: float = 0.7) -> float:
    """GRACE's value by its definition, one step at a time."""

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))

    steps, answer = vectors[:-1].astype(np.float64), vectors[-1].astype(np.float64)
    scores = [cosine(steps[0], answer)]
    for k in range(1, len(steps)):
        scores.append(alpha * cosine(steps[k], answer) + (1 - alpha) * cosine(steps[k], steps[:k].mean(axis=0)))
    return float(np.mean(scores))


def test_signals_are_compared_over_the_samples_that_both_have(tmp_path: Path) -> None:
    known = known_store(tmp_path, ("base", "later"), set_aside={"later": [2, 5]})
    found = stability(known.store, StabilityRequest(signal="base", ratio="0.4", draws=10))
    both = [i for i in range(len(known.samples["base"])) if i not in (2, 5)]
    values = [np.array([brute_value(known.samples[name][i][0]) for i in both]) for name in ("base", "later")]
    chosen = [set(rank(value)[: budget("0.4", len(both))].tolist()) for value in values]
    assert found.signals["later"].jaccard == len(chosen[0] & chosen[1]) / len(chosen[0] | chosen[1])
    assert found.signals["later"].num_samples == len(both)
    assert found.num_chosen == budget("0.4", len(known.samples["base"]))


def test_full_precision_survives_and_less_is_tried(tmp_path: Path) -> None:
    found = stability(known_store(tmp_path).store, StabilityRequest(ratio="0.4", draws=10))
    assert list(found.storages) == ["float32", "float16", "int8", "int4"]
    assert found.storages["float32"].jaccard == found.storages["float16"].jaccard == 1.0
    assert found.signals == {}
    assert found.steps is not None
    assert 0 < found.steps.jaccard <= 1
    assert (
        stability(known_store(tmp_path / "b").store, StabilityRequest(spec=ScoreSpec(aggregation="min"), draws=1)).steps
        is None
    )


def test_bad_wishes_get_a_sentence(tmp_path: Path) -> None:
    store = known_store(tmp_path).store
    with pytest.raises(UnknownName, match="has no other signal 'nope'"):
        stability(store, StabilityRequest(against=["nope"]))
    with pytest.raises(SettingError, match="ratio 2 is not"):
        stability(store, StabilityRequest(ratio="2"))
    with pytest.raises(SettingError, match="draws 0 is not at least 1"):
        stability(store, StabilityRequest(draws=0))


# ---------------------------------------------------------------- what it means


def values_of(num: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return values of samples, and the same with noise."""
    rng = np.random.default_rng(5)
    value = rng.normal(size=num)
    return value, value + noise * rng.normal(size=num)


def found_with(num: int, **noises: float) -> Stability:
    """What was found of a choice whose values other signals repeat with some noise."""
    count = budget("0.2", num)
    signals = {name: survival(*values_of(num, noise), "0.2") for name, noise in noises.items()}
    storages = {"int8": survival(*values_of(num, 0.0), "0.2")}
    return Stability("base", "0.2", num, count, jaccard_by_chance(num, count), signals, storages, [], None)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (0.03, "Nearly all of the subset survives: "),
        (0.5, "Most of the subset survives: "),
        (1.0, "More than half of the subset survives: "),
        (2.0, "Less than half of the subset survives: "),
        (1e6, "The subset does not survive: "),
    ],
)
def test_the_share_that_survives_is_told_with_the_tables_numbers(noise: float, words: str) -> None:
    found = found_with(1000, later=noise)
    each = found.signals["later"]
    assert found.conclusion.startswith(words)
    assert f"{percent(each.share_kept)} of the 200 chosen stay when signal later chooses " in found.conclusion
    assert f"(Jaccard {each.jaccard:.3f}, {each.low:.3f} to {each.high:.3f}; two random" in found.conclusion
    assert "two random subsets share 0.111)" in found.conclusion
    assert found.conclusion.endswith("From vectors stored as int8, 100 % would be chosen again (1.000).")
    value, other = values_of(1000, noise)
    both = len(set(rank(value)[:200].tolist()) & set(rank(other)[:200].tolist()))
    assert each.share_kept == pytest.approx(both / 200)


def test_the_change_that_leaves_least_comes_first() -> None:
    found = found_with(1000, near=0.1, far=2.0)
    assert f"{percent(found.signals['far'].share_kept)} of the 200 chosen stay when signal far" in found.conclusion
    near = found.signals["near"]
    assert f", {percent(near.share_kept)} when signal near chooses ({near.jaccard:.3f})." in found.conclusion


def test_too_few_samples_are_told_with_how_many_would_do() -> None:
    few = found_with(60, later=1.0)
    each = few.signals["later"]
    reach = (each.high - each.low) / 2
    assert few.conclusion.startswith("Too few samples to say how much of the subset survives: 12 chosen of 60 samples ")
    assert f"anywhere between {each.low:.3f} and {each.high:.3f}. About " in few.conclusion
    wanted = int(few.conclusion.partition("About ")[2].split()[0])
    assert wanted == pytest.approx(60 * (reach / 0.05) ** 2, abs=10)
    enough = found_with(wanted, later=1.0)
    assert "Too few" not in enough.conclusion
    tiny = found_with(13, later=0.0)  # three chosen, and all of them again: no interval, and yet nothing to build on
    assert tiny.conclusion.startswith("Too few samples to say how much of the subset survives: 3 chosen of 13 samples")


def test_steps_drawn_anew_are_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    score = (rng.normal(size=(1000, 1)) + rng.normal(size=(1000, 9))).ravel()
    drawn = step_survival(score.reshape(1000, 9).mean(axis=1), score, np.arange(1001) * 9, "0.2")
    found = replace(found_with(1000), steps=drawn)
    assert found.conclusion.startswith(
        f"Most of the subset survives: {percent(drawn.share_kept)} of the 200 chosen stay when each trace's steps are "
        f"drawn anew (Jaccard {drawn.jaccard:.3f}, {drawn.low:.3f} to {drawn.high:.3f}; "
    )
    only = stability(known_store(tmp_path).store, StabilityRequest(spec=ScoreSpec(aggregation="min"), draws=1))
    assert only.conclusion.startswith("Nothing but precision could be tried. From vectors stored as int4, ")
