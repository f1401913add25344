"""The stability audit of a store: other signals, less precision, other steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import SettingError, UnknownName
from grace_store.curate.stability import StabilityRequest, stability
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
