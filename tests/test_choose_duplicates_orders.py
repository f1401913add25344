"""Diverse subsets of a real store: more coverage than the best by value, at a stated loss, for the same budget."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, SettingError
from grace_store.choose.compare import compare
from grace_store.choose.duplicates import duplicates
from grace_store.choose.export import export
from grace_store.choose.select import rank_samples, select
from grace_store.choose.selection import Selection, SubsetNote
from grace_store.likeness.clusters import cluster_vectors
from grace_store.pool.descriptors import describe_samples
from grace_store.scoring.score import ScoreRequest, score
from grace_store.store.opened import Store
from grace_store.values.diverse_orders import METHODS, DiversitySpec
from tests.clustered_scores import ANSWER, scored_clusters, spec
from tests.scored_stores import known_store

NUM_CLUSTERS = 12


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return scored_clusters(tmp_path_factory.mktemp("planted"))


def num_touched(planted, subset) -> int:
    return len(set(planted[1].cluster[subset.row].tolist()))


@pytest.mark.parametrize(
    ("settings", "at_least", "value_lost"),
    [
        (spec("dedup"), 12, 0.30),
        (spec("clusters"), 12, 0.30),
        (spec("facility"), 12, 0.10),
        (spec("facility", weight=0.5), 12, 0.20),
        (spec("mmr"), 6, 0.10),
        (spec("mmr", weight=0.8), 12, 0.32),
    ],
    ids=lambda value: value.method if isinstance(value, DiversitySpec) else str(value),
)
def test_diversity_touches_more_clusters_for_the_same_budget_at_a_stated_loss(planted, settings, at_least, value_lost):
    folder, found = planted
    plain = select(folder / "scores.parquet", ratio="0.2")
    assert num_touched(planted, plain) == 3
    diverse = select(folder / "scores.parquet", Selection(diversity=settings), ratio="0.2")
    assert len(diverse) == len(plain) == 48
    assert len(set(diverse.row.tolist())) == 48
    assert num_touched(planted, diverse) >= at_least
    loss = found.value[plain.row].mean() - found.value[diverse.row].mean()
    assert 0 < loss <= value_lost
    most, mean = found.value[plain.row].mean(), found.value[diverse.row].mean()
    assert f"mean value {mean:.4f}, {most:.4f} for the best 48 by value alone" in diverse.notes[0]


@pytest.mark.parametrize("method", METHODS)
def test_every_budget_is_exact_and_smaller_subsets_lie_within_larger_ones(planted, method):
    ranking = rank_samples(planted[0] / "scores.parquet", Selection(diversity=spec(method)))
    before: set[int] = set()
    for count in (1, 2, 7, 11, 12, 13, 48, 100, 239, 240):
        subset = ranking.take(count=count)
        assert len(subset) == count
        assert before < set(subset.row.tolist())
        before = set(subset.row.tolist())
    assert len(ranking.take(ratio="0.07")) == 17


def test_dedup_keeps_the_best_of_each_group_and_fills_up_by_value(planted):
    folder, found = planted
    ranking = rank_samples(folder / "scores.parquet", Selection(diversity=spec("dedup")))
    members = [np.flatnonzero(found.cluster == each) for each in range(NUM_CLUSTERS)]
    best = [int(mine[found.value[mine].argmax()]) for mine in members]
    assert set(ranking.take(count=12).row.tolist()) == set(best)
    assert len(ranking.take(count=12).notes) == 1
    subset = ranking.take(count=15)
    left = [place for place in np.argsort(-found.value).tolist() if place not in best]
    assert set(subset.row.tolist()) == {*best, *left[:3]}
    told = "12 samples are left without near-duplicates, so 3 of those fill the budget, the best first"
    assert subset.notes[1] == told


def test_a_table_of_duplicates_does_as_well_as_a_search(planted, tmp_path):
    folder, found = planted
    table = duplicates(found.store, descriptor=ANSWER, threshold=0.95, floor=0.9)
    table.write(tmp_path / "duplicates.parquet")
    one = select(folder / "scores.parquet", Selection(diversity=spec("dedup", similarity=0.95)))
    other = select(folder / "scores.parquet", Selection(diversity="dedup", duplicates=tmp_path / "duplicates.parquet"))
    assert one.row.tolist() == other.row.tolist()
    assert other.spec.diversity.similarity == 0.95
    loose = DiversitySpec(method="dedup", similarity=0.9)
    third = select(folder / "scores.parquet", Selection(diversity=loose, duplicates=tmp_path / "duplicates.parquet"))
    assert third.row.tolist() == select(folder / "scores.parquet", Selection(diversity=spec("dedup"))).row.tolist()
    few = duplicates(found.store, descriptor=ANSWER, subset=np.arange(100))
    few.write(tmp_path / "few.parquet")
    with pytest.raises(DataError, match=r"few\.parquet lacks 140 of the samples that have a value"):
        select(folder / "scores.parquet", Selection(diversity="dedup", duplicates=tmp_path / "few.parquet"))
    with pytest.raises(SettingError, match="leave --signal and --descriptor out"):
        select(folder / "scores.parquet", Selection(diversity=spec("dedup"), duplicates=tmp_path / "few.parquet"))
    with pytest.raises(SettingError, match="table of duplicates: leave --duplicates out with mmr"):
        select(folder / "scores.parquet", Selection(diversity="mmr", duplicates=tmp_path / "few.parquet"))
    elsewhere = known_store(tmp_path).store
    score(elsewhere, out=tmp_path / "other.parquet")
    with pytest.raises(DataError, match="was made from another plan than the scores"):
        select(tmp_path / "other.parquet", Selection(diversity="dedup", duplicates=tmp_path / "few.parquet"))


def test_clusters_share_the_budget_and_the_best_come_first(planted):
    folder, found = planted
    subset = select(folder / "scores.parquet", Selection(diversity=spec("clusters", num_clusters=10)), ratio="0.2")
    label = cluster_vectors(describe_samples(found.store, ANSWER).vector, 10).label
    size, counts = np.bincount(label), np.bincount(label[subset.row], minlength=10)
    assert counts.max() - counts[counts < size].min() <= 1
    for each in range(10):
        mine = np.flatnonzero(label == each)
        best = mine[np.argsort(-found.value[mine])][: counts[each]]
        assert set(best.tolist()) <= set(subset.row.tolist())
    half = select(folder / "scores.parquet", Selection(diversity=spec("clusters", weight=0.5)), ratio="0.2")
    assert found.value[subset.row].mean() < found.value[half.row].mean()


@pytest.mark.parametrize("method", ["clusters", "facility", "mmr"])
def test_without_weight_the_subset_is_the_best_by_value(planted, method):
    path = planted[0] / "scores.parquet"
    subset = select(path, Selection(diversity=spec(method, weight=0)))
    assert subset.row.tolist() == select(path).row.tolist()


def test_what_made_a_subset_is_kept_and_compared(planted, tmp_path):
    folder, _ = planted
    subset = select(folder / "scores.parquet", Selection(diversity=spec("mmr", weight=0.8)))
    said = DiversitySpec(method="mmr", weight=0.8, seed=0, signal="base", descriptor="answer")
    assert subset.spec.diversity == said
    exported = export(subset, tmp_path / "diverse.txt", as_format="ids")
    assert exported.notes == list(subset.notes)
    assert read_document(tmp_path / "diverse.txt.spec.json", SubsetNote).spec.diversity == said
    export(select(folder / "scores.parquet"), tmp_path / "plain.txt", as_format="ids")
    found = compare(tmp_path / "plain.txt", tmp_path / "diverse.txt")
    settings = "weight 0.8, seed 0, signal base, descriptor answer"
    told = f"diverse.txt was chosen with diversity by mmr ({settings}); ranks are those without these rules"
    scored = [f"{name} was scored by grace" for name in ("plain.txt", "diverse.txt")]
    assert found.notes[1:] == (*scored, told)
    assert {change["why"] for change in found.tables["left"].rows} == {"diversity by mmr"}
    assert {change["why"] for change in found.tables["entered"].rows} == {"diversity by mmr"}


def test_the_usual_descriptor_is_the_steps_and_weights_come_from_the_table(planted):
    path = planted[0] / "scores.parquet"
    assert select(path, Selection(diversity="mmr")).spec.diversity.descriptor == "steps"
    weighted = select(path, Selection(diversity=DiversitySpec(method="mmr", descriptor="weighted")))
    # With one step each, its weight changes nothing.
    assert weighted.row.tolist() == select(path, Selection(diversity="mmr")).row.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"diversity": "mmr", "by": "num_steps"}, "--by and --diversity cannot be combined"),
        ({"diversity": "best"}, "method 'best': input should be"),
        ({"diversity": DiversitySpec(method="mmr", descriptor="colour")}, "unknown descriptor 'colour': use"),
    ],
)
def test_selections_without_meaning_are_refused(planted, settings, message):
    with pytest.raises(SettingError, match=message):
        select(planted[0] / "scores.parquet", **settings)


def test_a_threshold_leaves_no_choice_to_diversity(planted):
    with pytest.raises(SettingError, match="--threshold cannot be combined with --diversity"):
        select(planted[0] / "scores.parquet", Selection(diversity="mmr"), threshold=0.5)


def test_scores_of_several_signals_need_a_signal_to_be_named(tmp_path):
    known = known_store(tmp_path, ("early", "late"), set_aside={"late": [2, 5]})
    both = score(known.store, ScoreRequest(signals=["early", "late"]))
    with pytest.raises(SettingError, match=r"scored from early, late: .*--signal"):
        select(both, Selection(diversity="mmr"))
    assert len(select(both, Selection(diversity=DiversitySpec(method="mmr", signal="late")), count=4)) == 4
    early = score(known.store, ScoreRequest(signals="early"))
    with pytest.raises(DataError, match="2 of the 13 samples of the table have no vector in signal 'late'"):
        select(early, Selection(diversity=DiversitySpec(method="mmr", signal="late")))


def test_a_store_that_moved_is_found_where_it_is_said_to_be(planted, tmp_path):
    folder, found = planted
    moved = Store.open(shutil.copytree(found.store.location, tmp_path / "moved.zarr"))
    table = score(found.store)
    table = replace(table, note=table.note.model_copy(update={"store": "gone.zarr"}))
    subset = select(table, diversity=spec("facility"), store=moved.location)
    assert subset.row.tolist() == select(folder / "scores.parquet", Selection(diversity=spec("facility"))).row.tolist()
    assert math.isfinite(subset.threshold)
