"""What diversity costs: a curve from value to coverage."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from grace_store.curate.diversity import DiversityRequest, diversity
from grace_store.curate.select import RankRequest, select
from grace_store.curate.trade_curve import TradeSpec, curve_svg
from tests.clustered_scores import ANSWER, scored_clusters, spec

NUM_CLUSTERS = 12


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return scored_clusters(tmp_path_factory.mktemp("planted"))


def test_the_curve_goes_from_value_to_coverage(planted):
    folder, found = planted
    request = DiversityRequest(
        scores=folder / "scores.parquet",
        descriptor=ANSWER,
        curve=TradeSpec(weights=(1.0, 0.0, 0.3)),
        num_clusters=NUM_CLUSTERS,
    )
    said = diversity(found.store, request).curve
    assert [(point.method, point.weight) for point in said.points] == [
        (method, weight) for method in ("clusters", "facility", "mmr") for weight in (0.0, 0.3, 1.0)
    ]
    for point in said.points:
        subset = select(folder / "scores.parquet", RankRequest(diversity=spec(point.method, weight=point.weight)))
        assert point.mean_value == pytest.approx(found.value[subset.row].mean(), abs=1e-6)
        if point.weight == 0:
            assert (point.value_lost, point.share_touched) == (0, said.best.share_touched)
        if point.weight == 1:
            assert point.share_touched > said.best.share_touched
            assert point.value_lost > 0.2
    assert said.random.mean_value == pytest.approx(found.value.mean(), abs=1e-6)
    picture = ElementTree.fromstring(curve_svg(said, "note"))
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) == 2 * (9 + 2)
    written = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("clusters", "facility", "mmr"):
        assert written.count(name) == 3, "in the legend, and at its line in each panel"
    for name in ("by value alone", "random"):
        assert written.count(name) == 2
