"""How diverse subsets are: against the pool, random subsets, and what was planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grace_store.base.errors import DataError, ResumeMismatch, SettingError
from grace_store.base.finding import Finding
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.pool.descriptors import describe_samples
from grace_store.pool.pool import Pool
from grace_store.scoring.score import score
from grace_store.study.diversity import DiversitySettings, diversity
from grace_store.study.diversity_tables import curve_choices
from grace_store.values.diverse_orders import METHODS
from grace_store.values.methods.method import ScoreSpec
from tests.clustered_scores import ANSWER, scored_clusters, spec
from tests.planted_stores import planted_store
from tests.scored_stores import known_store

NUM_SAMPLES = 240


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return scored_clusters(tmp_path_factory.mktemp("planted"))


def random_like(found: Finding, row) -> dict:
    """Return what random subsets of the size of a subset have."""
    return found.tables["random"].row(num_samples=row["num_samples"] - row["num_without_direction"])


def test_measures_tell_a_narrow_subset_from_a_wide_one(planted, tmp_path):
    folder, found = planted
    paths = []
    for name, choice in (("plain", None), ("wide", spec("clusters"))):
        paths.append(tmp_path / f"{name}.txt")
        subset = select(folder / "scores.parquet", Selection(diversity=choice))
        export(subset, paths[-1], as_format="ids")
    said = diversity(
        found.store,
        paths,
        scores=folder / "scores.parquet",
        ratio=["0.1"],
        settings=DiversitySettings(descriptor=ANSWER),
    )
    pool, plain, wide, best = said.tables["subsets"].rows
    assert [each["num_samples"] for each in (plain, wide, best, pool)] == [48, 48, 24, 240]
    assert pool["share_touched"] == 1
    assert said.tables["random"].column("num_samples") == [
        48,
        24,
    ]  # one size, the same random subsets; none of the pool
    assert pool["num_touched"] == len(said.tables["clusters"]) == said.numbers["num_clusters"]
    random = random_like(said, plain)
    assert plain["share_touched"] < random["share_touched"].low <= wide["share_touched"]
    assert plain["vendi"] < random["vendi"].low < wide["vendi"]
    assert plain["entropy"] < random["entropy"].low
    assert random["share_touched"].value == pytest.approx(random["expected_share_touched"], abs=0.02)
    assert plain["mean_value"] == pytest.approx(np.sort(found.value)[-48:].mean(), abs=1e-6)
    assert best["subset"] == "best 0.1"
    told = said.conclusion.split("The subset ")[1:]
    touched = random["share_touched"]
    assert told[0].startswith(
        f"plain.txt is less varied than random subsets of its size: clusters touched {plain['share_touched']:.3f} "
        f"(random {touched.low:.3f} to {touched.high:.3f}), evenness {plain['entropy']:.3f} "
    )
    # Of four measures one may lie outside by chance.
    assert told[1].startswith("wide.txt is about as varied as random subsets of its size, but more by distance to the")
    assert told[2].startswith("best 0.1 is less varied")


def test_clusters_add_up_and_have_their_values(planted):
    folder, found = planted
    said = diversity(
        found.store, scores=folder / "scores.parquet", settings=DiversitySettings(descriptor=ANSWER, clusters=40)
    )
    clusters = said.tables["clusters"]
    assert sum(clusters.column("num_samples")) == NUM_SAMPLES
    assert sum(clusters.column("num_chosen_1")) == 48
    total = sum(each["num_samples"] * each["mean_value"] for each in clusters)
    assert total / NUM_SAMPLES == pytest.approx(found.value.mean(), abs=1e-6)
    for each in clusters:
        planted_in = found.cluster[int(each["example"].removeprefix("s"))]
        assert each["mean_value"] == pytest.approx(0.91 - 0.05 * planted_in, abs=0.011)
        assert each["representation_1"] == pytest.approx(each["num_chosen_1"] / each["num_samples"] / 0.2)
    rows = said.tables["represented"].rows
    over, under = ([row for row in rows if row["amount"] == amount] for amount in ("too much", "too little"))
    assert len(over) == len(under) == 3
    assert min(each["mean_value"] for each in over) > max(each["mean_value"] for each in under)
    assert max(each["num_chosen"] for each in under) == 0
    brute = sorted(clusters, key=lambda each: each["num_samples"] * 0.2 - each["num_chosen_1"])
    assert [each["cluster"] for each in over] == [each["cluster"] for each in brute[:3]]
    quiet = diversity(
        found.store, scores=folder / "scores.parquet", settings=DiversitySettings(descriptor=ANSWER, show=0)
    )
    assert "represented" not in quiet.tables


def test_measures_are_the_same_whatever_the_threads_and_subsets_may_be_objects(planted):
    folder, found = planted
    subset = select(folder / "scores.parquet", Selection(diversity=spec("facility")))
    one, two = (
        diversity(
            Pool.of(found.store.location, threads=threads),
            [subset],
            settings=DiversitySettings(descriptor=ANSWER, seed=4),
        ).to_json()
        for threads in (1, 3)
    )
    assert one == two
    other = diversity(found.store, [subset], settings=DiversitySettings(descriptor=ANSWER, seed=5)).to_json()
    assert other["tables"]["random"]["rows"] != one["tables"]["random"]["rows"]
    assert one["tables"]["subsets"]["rows"][1]["subset"] == "subset 1"


def test_samples_that_point_nowhere_are_counted_apart(tmp_path):
    found = planted_store(tmp_path, per_cluster=4, zero=(0, 7))
    scores = score(found.store)
    said = diversity(found.store, scores=scores, ratio=["1", "0.5"], settings=DiversitySettings(descriptor=ANSWER))
    assert said.tables["subsets"].row(subset="pool")["num_without_direction"] == 2
    assert sum(said.tables["clusters"].column("num_samples")) == 46
    for method in METHODS:
        assert len(select(scores, Selection(diversity=spec(method)), ratio="0.5")) == 24
    only = replace(scores, table=scores.table.take([0, 7]))
    said = diversity(found.store, [select(only, ratio=1)], settings=DiversitySettings(descriptor=ANSWER, random=3))
    row = said.tables["subsets"].row(subset="subset 1")
    assert (row["num_touched"], row["num_without_direction"]) == (0, 2)
    assert said.to_json()["tables"]["subsets"]["rows"][1]["vendi"] is None


def test_what_cannot_be_measured_says_why(planted, tmp_path):
    folder, found = planted
    with pytest.raises(SettingError, match="--ratio and --curve need the values of the samples: give --scores"):
        diversity(found.store, ratio=["0.2"])
    with pytest.raises(SettingError, match="0 random subsets are too few"):
        diversity(found.store, settings=DiversitySettings(random=0))
    with pytest.raises(SettingError, match="at least one weight"):
        curve_choices(weights=())
    nowhere = planted_store(tmp_path, num_clusters=2, per_cluster=2, zero=(0, 1, 2, 3))
    with pytest.raises(DataError, match=r"No sample of .* has a vector other than zero"):
        diversity(nowhere.store, settings=DiversitySettings(descriptor=ANSWER))
    other = known_store(tmp_path).store
    with pytest.raises(ResumeMismatch, match="made from another plan than the present plan of"):
        diversity(other, scores=folder / "scores.parquet")


def test_a_random_subset_is_as_varied_as_random_ones_and_copies_are_counted(planted, tmp_path):
    folder, found = planted
    drawn = score(found.store, ScoreSpec(measure=("random",), seed=3))
    said = diversity(found.store, scores=drawn, settings=DiversitySettings(descriptor=ANSWER, clusters=12))
    alike = said.tables["subsets"].row(subset="best 0.2")["share_alike"]
    assert said.conclusion.startswith("The subset best 0.2 is about as varied as random subsets of its size")
    assert said.conclusion.endswith(f"{100 * alike:.0f} % of the samples in it have a near-duplicate there.")
    vectors = describe_samples(found.store, ANSWER).vector[drawn.ranked()[:48]]
    cosine = vectors @ vectors.T - 2 * np.eye(48)
    assert alike == np.mean(cosine.max(axis=1) >= np.float32(0.95))
    far = select(folder / "scores.parquet", Selection(diversity=spec("mmr", weight=1.0)))
    wide = diversity(found.store, [far], settings=DiversitySettings(descriptor=ANSWER))
    row = wide.tables["subsets"].row(subset="subset 1")
    random = random_like(wide, row)["share_touched"]
    assert wide.conclusion.startswith(
        f"Subset 1 is more varied than random subsets of its size: clusters touched "
        f"{row['share_touched']:.3f} (random {random.low:.3f} to {random.high:.3f})"
    )
    apart = planted_store(tmp_path, per_cluster=4, noise=1.0)
    alone = diversity(apart.store, settings=DiversitySettings(descriptor=ANSWER))
    assert alone.conclusion.startswith("No subset is compared: the 48 samples of the pool lie in ")
    assert alone.conclusion.endswith("No two samples in them are near-duplicates.")
    whole = diversity(
        apart.store, scores=score(apart.store), ratio=["1"], settings=DiversitySettings(descriptor=ANSWER)
    )
    assert whole.conclusion.startswith("The subset best 1 is the whole pool.")
