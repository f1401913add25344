"""The stability audit of a store: other signals, less precision, other steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import SettingError, UnknownName
from grace_store.base.finding import Estimate
from grace_store.base.text import percent
from grace_store.pool.pool import Pool
from grace_store.study.stability import STEPS, StabilitySettings, conclude_stability, stability
from grace_store.values.agreement import share_kept, step_survival, survival
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.ranking import budget, rank
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


def changes(store: object, settings: StabilitySettings, **pool: object) -> dict[str, Estimate]:
    """Return what survives each change."""
    table = stability(Pool.of(store, **pool), settings).tables["changes"]  # type: ignore[arg-type]
    return {str(row["change"]): row["jaccard"] for row in table.rows}  # type: ignore[misc]


def test_signals_are_compared_over_the_samples_that_both_have(tmp_path: Path) -> None:
    known = known_store(tmp_path, ("base", "later"), set_aside={"later": [2, 5]})
    found = stability(Pool.of(known.store, signals="base"), StabilitySettings(ratio="0.4", draws=10))
    both = [i for i in range(len(known.samples["base"])) if i not in (2, 5)]
    values = [np.array([brute_value(known.samples[name][i][0]) for i in both]) for name in ("base", "later")]
    chosen = [set(rank(value)[: budget("0.4", len(both))].tolist()) for value in values]
    later = found.tables["changes"].row(change="signal later")
    assert later["jaccard"].value == len(chosen[0] & chosen[1]) / len(chosen[0] | chosen[1])
    assert later["num_samples"] == len(both)
    assert found.numbers["num_chosen"] == budget("0.4", len(known.samples["base"]))
    assert list(found.pool.signals) == ["base", "later"]


def test_full_precision_survives_and_less_is_tried(tmp_path: Path) -> None:
    found = changes(known_store(tmp_path).store, StabilitySettings(ratio="0.4", draws=10))
    storages = [f"vectors as {name}" for name in ("float32", "float16", "int8", "int4")]
    assert list(found) == [STEPS, *storages, "two random subsets"]
    assert found["vectors as float32"].value == found["vectors as float16"].value == 1.0
    assert 0 < found[STEPS].value <= 1
    by_worst = StabilitySettings(score=ScoreSpec(aggregation="min"), draws=1)
    assert STEPS not in changes(known_store(tmp_path / "b").store, by_worst)


def test_a_filter_narrows_the_choice(tmp_path: Path) -> None:
    found = stability(Pool.of(known_store(tmp_path).store, where="num_steps > 2"), StabilitySettings(draws=2))
    assert found.numbers["num_samples"] == found.pool.where.num_kept < 13


def test_bad_wishes_get_a_sentence(tmp_path: Path) -> None:
    store = known_store(tmp_path).store
    with pytest.raises(UnknownName, match="has no other signal 'nope'"):
        stability(store, StabilitySettings(against=("nope",)))
    with pytest.raises(SettingError, match="ratio 2 is not"):
        stability(store, StabilitySettings(ratio="2"))
    with pytest.raises(SettingError, match="draws 0: input should be greater than or equal to 1"):
        StabilitySettings.parse(draws=0)


# ---------------------------------------------------------------- what it means


def values_of(num: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return values of samples, and the same with noise."""
    rng = np.random.default_rng(5)
    value = rng.normal(size=num)
    return value, value + noise * rng.normal(size=num)


def concluded(num: int, **noises: float) -> tuple[str, dict[str, Estimate]]:
    """What is said of a choice whose values other signals repeat with some noise, and the estimates it is said of."""
    tried = {f"signal {name}": survival(*values_of(num, noise), "0.2") for name, noise in noises.items()}
    storages = {"vectors as int8": survival(*values_of(num, 0.0), "0.2")}
    return conclude_stability(tried, storages, num, budget("0.2", num)), tried


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
    told, tried = concluded(1000, later=noise)
    each = tried["signal later"]
    assert told.startswith(words)
    assert f"{percent(share_kept(each.value))} of the 200 chosen stay when signal later chooses " in told
    assert f"(Jaccard {each.value:.3f}, {each.low:.3f} to {each.high:.3f}; two random" in told
    assert "two random subsets share 0.111)" in told
    assert told.endswith("From vectors stored as int8, 100 % would be chosen again (1.000).")
    value, other = values_of(1000, noise)
    both = len(set(rank(value)[:200].tolist()) & set(rank(other)[:200].tolist()))
    assert share_kept(each.value) == pytest.approx(both / 200)


def test_the_change_that_leaves_least_comes_first() -> None:
    told, tried = concluded(1000, near=0.1, far=2.0)
    near, far = (tried[f"signal {name}"].value for name in ("near", "far"))
    assert f"{percent(share_kept(far))} of the 200 chosen stay when signal far" in told
    assert f", {percent(share_kept(near))} when signal near chooses ({near:.3f})." in told


def test_too_few_samples_are_told_with_how_many_would_do() -> None:
    told, tried = concluded(60, later=1.0)
    each = tried["signal later"]
    assert told.startswith("Too few samples to say how much of the subset survives: 12 chosen of 60 samples ")
    assert f"anywhere between {each.low:.3f} and {each.high:.3f}. About " in told
    wanted = int(told.partition("About ")[2].split()[0])
    assert wanted == pytest.approx(60 * (each.half_width / 0.05) ** 2, abs=10)
    assert "Too few" not in concluded(wanted, later=1.0)[0]
    tiny, _ = concluded(13, later=0.0)  # three chosen, and all of them again: no interval, and yet nothing to build on
    assert tiny.startswith("Too few samples to say how much of the subset survives: 3 chosen of 13 samples")


def test_steps_drawn_anew_are_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    score = (rng.normal(size=(1000, 1)) + rng.normal(size=(1000, 9))).ravel()
    drawn = step_survival(score.reshape(1000, 9).mean(axis=1), score, np.arange(1001) * 9, "0.2")
    assert conclude_stability({STEPS: drawn}, {}, 1000, 200).startswith(
        f"Most of the subset survives: {percent(share_kept(drawn.value))} of the 200 chosen stay when each trace's "
        f"steps are drawn anew (Jaccard {drawn.value:.3f}, {drawn.low:.3f} to {drawn.high:.3f}; "
    )
    only = stability(known_store(tmp_path).store, StabilitySettings(score=ScoreSpec(aggregation="min"), draws=1))
    assert only.conclusion.startswith("Nothing but precision could be tried. Too few samples to say how much")
    told = conclude_stability({}, {"vectors as int4": drawn}, 1000, 200)
    assert told.startswith("Nothing but precision could be tried. From vectors stored as int4, ")


@pytest.mark.parametrize(("measure", "remedy"), [("loss", "To add one: `warmup"), ("steps", "from the plan alone")])
def test_a_measure_without_vectors_has_no_precision_to_try(tmp_path: Path, measure: str, remedy: str) -> None:
    found = stability(known_store(tmp_path).store, StabilitySettings(score=ScoreSpec(measure=(measure,))))
    assert found.conclusion == (
        "Nothing could be tried: there is no other signal to compare with, and this measure does not depend on the "
        "precision of vectors."
    )
    assert remedy in found.notes[-1]
