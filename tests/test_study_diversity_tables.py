"""What diversity costs: a curve from value to coverage."""

from __future__ import annotations

import pytest

from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.study.diversity import DiversitySettings, diversity
from grace_store.study.diversity_tables import curve_choices
from tests.clustered_scores import ANSWER, scored_clusters, spec

NUM_CLUSTERS = 12


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return scored_clusters(tmp_path_factory.mktemp("planted"))


def test_the_curve_goes_from_value_to_coverage(planted):
    folder, found = planted
    curve = curve_choices(weights=(1.0, 0.0, 0.3))
    scores = folder / "scores.parquet"
    said = diversity(
        found.store, scores=scores, curve=curve, settings=DiversitySettings(descriptor=ANSWER, clusters=NUM_CLUSTERS)
    ).tables["curve"]
    best, *points, random = said.rows
    assert [(point["method"], point["weight"]) for point in points] == [
        (method, weight) for method in ("clusters", "facility", "mmr") for weight in (0.0, 0.3, 1.0)
    ]
    for point in points:
        subset = select(scores, Selection(diversity=spec(point["method"], weight=point["weight"])))
        assert point["mean_value"] == pytest.approx(found.value[subset.row].mean(), abs=1e-6)
        if point["weight"] == 0:
            assert (point["value_lost"], point["share_touched"]) == (0, best["share_touched"])
        if point["weight"] == 1:
            assert point["share_touched"] > best["share_touched"]
            assert point["value_lost"] > 0.2
    assert random["mean_value"] == pytest.approx(found.value.mean(), abs=1e-6)
