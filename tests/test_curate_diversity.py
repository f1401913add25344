"""How diverse subsets are: against the pool, random subsets, and what was planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grace_store.base.errors import DataError, ResumeMismatch, SettingError
from grace_store.curate.diversity import DiversityRequest, diversity
from grace_store.curate.export import ExportRequest, export
from grace_store.curate.score import score
from grace_store.curate.select import RankRequest, select
from grace_store.curate.trade_curve import TradeSpec
from grace_store.read.descriptors import DescriptorSpec, describe_samples
from grace_store.values.diversity_spec import METHODS
from grace_store.values.methods.method_spec import HeuristicSpec
from tests.clustered_scores import ANSWER, scored_clusters, spec
from tests.planted_stores import planted_store
from tests.scored_stores import known_store

NUM_SAMPLES = 240


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return scored_clusters(tmp_path_factory.mktemp("planted"))


def test_measures_tell_a_narrow_subset_from_a_wide_one(planted, tmp_path):
    folder, found = planted
    paths = []
    for name, choice in (("plain", None), ("wide", spec("clusters"))):
        paths.append(tmp_path / f"{name}.txt")
        subset = select(folder / "scores.parquet", RankRequest(diversity=choice))
        export(subset, paths[-1], ExportRequest(as_format="ids"))
    said = diversity(
        found.store, DiversityRequest(subsets=paths, scores=folder / "scores.parquet", ratio=["0.1"], descriptor=ANSWER)
    )
    plain, wide, best = said.subsets
    assert [plain.num_samples, wide.num_samples, best.num_samples, said.pool.num_samples] == [48, 48, 24, 240]
    assert said.pool.share_touched == 1
    assert said.pool.random is None
    assert said.pool.num_touched == len(said.clusters)
    assert plain.share_touched < plain.random.share_touched.low <= wide.share_touched
    assert plain.vendi < plain.random.vendi.low < wide.vendi
    assert plain.entropy < plain.random.entropy.low
    assert plain.random == wide.random  # one size, the same random subsets
    assert plain.random.share_touched.mean == pytest.approx(plain.random.expected_share_touched, abs=0.02)
    assert plain.mean_value == pytest.approx(np.sort(found.value)[-48:].mean(), abs=1e-6)
    assert best.name == "best 0.1"
    told = said.conclusion.split("The subset ")[1:]
    assert told[0].startswith(
        f"plain.txt is less varied than random subsets of its size: clusters touched {plain.share_touched:.3f} (random "
        f"{plain.random.share_touched.low:.3f} to {plain.random.share_touched.high:.3f}), evenness {plain.entropy:.3f} "
    )
    # Of four measures one may lie outside by chance.
    assert told[1].startswith("wide.txt is about as varied as random subsets of its size, but more by distance to the")
    assert told[2].startswith("best 0.1 is less varied")


def test_clusters_add_up_and_have_their_values(planted):
    folder, found = planted
    said = diversity(
        found.store, DiversityRequest(scores=folder / "scores.parquet", descriptor=ANSWER, num_clusters=40)
    )
    assert sum(each.num_samples for each in said.clusters) == NUM_SAMPLES
    assert sum(each.num_chosen[0] for each in said.clusters) == 48
    total = sum(each.num_samples * each.mean_value for each in said.clusters)
    assert total / NUM_SAMPLES == pytest.approx(found.value.mean(), abs=1e-6)
    for each in said.clusters:
        planted_in = found.cluster[int(each.example.removeprefix("s"))]
        assert each.mean_value == pytest.approx(0.91 - 0.05 * planted_in, abs=0.011)
        assert each.representation[0] == pytest.approx(each.num_chosen[0] / each.num_samples / 0.2)
    over, under = said.represented(0, 3)
    assert len(over) == len(under) == 3
    assert min(each.mean_value for each in over) > max(each.mean_value for each in under)
    assert max(each.num_chosen[0] for each in under) == 0


def test_measures_are_the_same_whatever_the_threads_and_subsets_may_be_objects(planted):
    folder, found = planted
    subset = select(folder / "scores.parquet", RankRequest(diversity=spec("facility")))
    one, two = (
        diversity(
            found.store.location, DiversityRequest(subsets=[subset], descriptor=ANSWER, seed=4), threads=threads
        ).to_json()
        for threads in (1, 3)
    )
    assert one == two
    other = diversity(found.store, DiversityRequest(subsets=[subset], descriptor=ANSWER, seed=5)).to_json()
    assert other["subsets"][0]["random"] != one["subsets"][0]["random"]
    assert one["subsets"][0]["name"] == "subset 1"


def test_samples_that_point_nowhere_are_counted_apart(tmp_path):
    found = planted_store(tmp_path, per_cluster=4, zero=(0, 7))
    scores = score(found.store)
    said = diversity(found.store, DiversityRequest(scores=scores, ratio=["1", "0.5"], descriptor=ANSWER))
    assert said.pool.num_without_direction == 2
    assert sum(each.num_samples for each in said.clusters) == 46
    for method in METHODS:
        assert len(select(scores, RankRequest(diversity=spec(method)), ratio="0.5")) == 24
    only = replace(scores, table=scores.table.take([0, 7]))
    said = diversity(found.store, DiversityRequest(subsets=[select(only, ratio=1)], descriptor=ANSWER, num_random=3))
    assert (said.subsets[0].num_touched, said.subsets[0].num_without_direction) == (0, 2)
    assert said.to_json()["subsets"][0]["vendi"] is None


def test_what_cannot_be_measured_says_why(planted, tmp_path):
    folder, found = planted
    with pytest.raises(SettingError, match="a ratio or a curve needs values: give --scores"):
        diversity(found.store, DiversityRequest(ratio=["0.2"]))
    with pytest.raises(SettingError, match="0 random subsets are too few"):
        diversity(found.store, DiversityRequest(num_random=0))
    with pytest.raises(SettingError, match="at least one weight"):
        TradeSpec.parse(weights=())
    nowhere = planted_store(tmp_path, num_clusters=2, per_cluster=2, zero=(0, 1, 2, 3))
    with pytest.raises(DataError, match=r"No sample of .* has a direction"):
        diversity(nowhere.store, DiversityRequest(descriptor=ANSWER))
    other = known_store(tmp_path).store
    with pytest.raises(ResumeMismatch, match="made from another plan than the one now in"):
        diversity(other, DiversityRequest(scores=folder / "scores.parquet"))


def test_a_random_subset_is_as_varied_as_random_ones_and_copies_are_counted(planted, tmp_path):
    folder, found = planted
    drawn = score(found.store, HeuristicSpec(method="random", seed=3))
    request = DiversityRequest(scores=drawn, descriptor=ANSWER, num_clusters=12)
    said = diversity(found.store, request)
    assert said.conclusion.startswith("The subset best 0.2 is about as varied as random subsets of its size")
    assert said.conclusion.endswith(
        f"{100 * said.subsets[0].share_alike:.0f} % of the samples in it have a near-duplicate there."
    )
    vectors = describe_samples(found.store, DescriptorSpec(descriptor=ANSWER)).vector[drawn.ranked()[:48]]
    cosine = vectors @ vectors.T - 2 * np.eye(48)
    assert said.subsets[0].share_alike == np.mean(cosine.max(axis=1) >= np.float32(0.95))
    far = select(folder / "scores.parquet", RankRequest(diversity=spec("mmr", weight=1.0)))
    wide = diversity(found.store, DiversityRequest(subsets=[far], descriptor=ANSWER))
    random = wide.subsets[0].random.share_touched
    assert wide.conclusion.startswith(
        f"Subset 1 is more varied than random subsets of its size: clusters touched "
        f"{wide.subsets[0].share_touched:.3f} (random {random.low:.3f} to {random.high:.3f})"
    )
    apart = planted_store(tmp_path, per_cluster=4, noise=1.0)
    alone = diversity(apart.store, DiversityRequest(descriptor=ANSWER))
    assert alone.conclusion.startswith("No subset is compared: the 48 samples of the pool lie in ")
    assert alone.conclusion.endswith("No two samples in them are near-duplicates.")
    whole = diversity(apart.store, DiversityRequest(scores=score(apart.store), ratio=["1"], descriptor=ANSWER))
    assert whole.conclusion.startswith("The subset best 1 is the whole pool.")
