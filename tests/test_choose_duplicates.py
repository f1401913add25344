"""Duplicates from a store to a table: texts, vectors, subsets, policies, thresholds."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from grace_store.base.errors import DataError, ResumeMismatch, SettingError, Unfinished
from grace_store.base.events import Warned
from grace_store.choose.duplicates import duplicates, regroup
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.likeness.search_base import IndexPlan
from grace_store.pool.descriptors import describe_samples
from grace_store.pool.pool import Pool
from grace_store.run.extract import extract
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.score_table import read_scores
from grace_store.store.opened import Store
from grace_store.study.inspect import neighbours
from tests.duplicated_stores import NUM, duplicated_samples, duplicated_store
from tests.gradient_stores import NO_SPANS
from tests.jobs import make_job, record
from tests.scored_stores import known_store
from tests.stores import STORAGES, UnitWriter, add_signal, complete_signal, random_vectors, write_plan
from tests.vector_stores import brute_force_groups, traces, vector_store

THRESHOLD = 0.95


@pytest.fixture(scope="module")
def samples() -> list[np.ndarray]:
    return duplicated_samples()


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return duplicated_store(tmp_path_factory.mktemp("d"))


@pytest.fixture(scope="module")
def found(store):
    return duplicates(Pool.of(store, threads=1), floor=0.85)


def brute_force(store: Store, threshold: float) -> list[int]:
    vector = describe_samples(store, "steps").vector.astype(np.float64)
    one, other = np.nonzero(vector @ vector.T >= threshold)
    return brute_force_groups(len(vector), [(i, j) for i, j in zip(one, other, strict=True) if i < j])


def groups_of(table) -> list[int]:
    """Return for every sample the lowest one of its group."""
    lowest = {number: np.flatnonzero(table.group == number)[0] for number in range(table.num_groups)}
    return [int(lowest[number]) if number >= 0 else place for place, number in enumerate(table.group.tolist())]


# ---------------------------------------------------------------- vectors


def test_groups_are_those_of_brute_force_and_the_planted_ones(store, found):
    assert groups_of(found) == brute_force(store, THRESHOLD)
    assert found.num_groups == 11
    assert found.group[[0, 60]].tolist() == [0, 0]
    assert found.group[[20, 80, 84]].tolist() == [10, 10, 10]
    assert found.group[[10, 70, 85]].tolist() == [-1, -1, -1]
    assert found.dropped == [f"s{place}" for place in range(60, 70)] + [f"s{place}" for place in range(80, 85)]


def test_every_sample_has_a_row_with_its_nearest(store, found, samples, tmp_path):
    found.write(tmp_path / "d.parquet")
    rows = pq.read_table(tmp_path / "d.parquet").to_pylist()
    vector = describe_samples(store, "steps").vector.astype(np.float64)
    cosine = vector @ vector.T - 3 * np.eye(NUM)
    assert [row["sample_id"] for row in rows] == [f"s{place}" for place in range(NUM)]
    for place, row in enumerate(rows):
        if place == 85:
            assert (row["nearest"], row["similarity"], row["keep"], row["group"]) == (None, None, True, None)
            continue
        assert row["similarity"] == pytest.approx(cosine[place].max(), abs=1e-6)
        assert cosine[place][int(row["nearest"][1:])] == pytest.approx(cosine[place].max(), abs=1e-6)
    assert rows[60]["nearest"] == "s0"
    assert not any(row["exact"] for row in rows)
    assert found.note.num_zero == 1


@pytest.mark.parametrize("storage", STORAGES)
def test_every_storage_finds_what_is_planted(tmp_path, samples, storage):
    store = vector_store(tmp_path / "s.zarr", samples, storage, samples_per_unit=16)
    table = duplicates(Pool.of(store, threads=1))
    assert groups_of(table) == brute_force(store, THRESHOLD)
    assert table.num_groups == 11


@pytest.mark.parametrize("kind", ["cells", "ivf", "ivf-sq8"])
def test_a_large_store_is_searched_by_cells(store, found, monkeypatch, kind):
    monkeypatch.setattr("grace_store.likeness.search.plan_index", lambda *_, **__: IndexPlan(kind, 4, 3))
    table = duplicates(Pool.of(store, threads=1), floor=0.85)
    assert groups_of(table) == groups_of(found)
    search = table.note.search
    assert (search.index, search.num_cells, search.num_probed) == (kind, 4, 3)
    assert search.recall.share == 1


def test_a_poor_search_is_told(store, monkeypatch):
    monkeypatch.setattr("grace_store.likeness.search.plan_index", lambda *_, **__: IndexPlan("cells", 64, 1))
    told = []
    table = duplicates(Pool.of(store, threads=1), floor=0.5, listener=told.append)
    share = table.note.search.recall.share
    assert share < 0.99
    (warned,) = (event.text for event in told if isinstance(event, Warned) and "The search found" in event.text)
    assert f"{share:.3f} of the similar pairs" in warned


def test_a_signal_with_one_vector_a_sample(tmp_path):
    write_plan(tmp_path / "s.zarr", [2] * 10, 4)
    store = Store.open(tmp_path / "s.zarr")
    view = add_signal(store, "float32", 6, per="sample")
    writer = UnitWriter(view)
    for unit in range(3):
        signals = random_vectors(view, unit)
        signals.sample_vector[0] = 0.5
        writer.write(unit, signals, NO_SPANS)
    complete_signal(view)
    table = duplicates(store, keep="shortest", threshold=0.999)
    assert np.flatnonzero(table.group == 0).tolist() == [0, 4, 8]
    assert table.note.descriptor == "sample"
    tokens = np.concatenate([view.unit_array("sample_num_tokens", unit)[:4] for unit in range(3)])[:10]
    assert table.num_tokens.tolist() == tokens.tolist()
    assert neighbours(store, "s0", count=1).tables["neighbours"].rows[0]["sample_id"] == "s4"


# ---------------------------------------------------------------- thresholds afterwards


@pytest.mark.parametrize("threshold", [0.85, 0.9, 0.93, 0.96, 0.98, 1.0])
def test_regrouping_is_what_a_new_search_would_be(store, found, tmp_path, threshold):
    found.write(tmp_path / "d.parquet")
    again = regroup(tmp_path / "d.parquet", threshold=threshold)
    fresh = duplicates(Pool.of(store, threads=1), threshold=threshold, floor=0.85)
    assert again.table.equals(fresh.table)
    assert again.note == fresh.note
    assert groups_of(again) == brute_force(store, threshold if threshold < 1 else 1 - 1e-9)
    (count,) = found.counts([threshold])
    assert (count.num_groups, count.num_dropped) == (fresh.num_groups, len(fresh.dropped))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threshold": 1.2}, "threshold 1.2 is not between 0 and 1"),
        ({"threshold": float("nan")}, "threshold nan is not between 0 and 1"),
        ({"threshold": 0.8, "floor": 0.9}, "floor 0.9 is not between 0 and the threshold 0.8"),
        ({"keep": "value"}, "give a scores table with --scores"),
        ({"keep": "longest"}, "unknown value 'longest' of --keep: use one of value, shortest, earliest"),
    ],
)
def test_what_has_no_meaning_is_refused(store, settings, words):
    with pytest.raises(SettingError, match=words):
        duplicates(store, **settings)


# ---------------------------------------------------------------- what is kept


def test_the_shortest_and_the_best_of_a_group(store, found, tmp_path):
    shortest = found.regrouped(keep="shortest")
    scores = score(store)
    score(store, out=tmp_path / "scores.parquet")
    best = duplicates(Pool.of(store, threads=1), scores=tmp_path / "scores.parquet", floor=0.85)
    assert best.note.spec.keep == "value"
    np.testing.assert_array_equal(best.value, scores.value)
    for number in range(found.num_groups):
        members = np.flatnonzero(found.group == number)
        assert members[shortest.keep[members]].tolist() == [members[np.argmin(2 * (10 - members % 7))]]
        assert members[best.keep[members]].tolist() == [members[np.argmax(scores.value[members])]]
        assert members[found.keep[members]].tolist() == [members[0]]


def test_values_may_come_later(store, found, tmp_path):
    found.write(tmp_path / "d.parquet")
    with pytest.raises(SettingError, match="--keep value needs the values of the samples"):
        regroup(tmp_path / "d.parquet", keep="value")
    scores = score(store)
    again = regroup(tmp_path / "d.parquet", keep="value", scores=scores)
    assert np.array_equal(again.keep, duplicates(Pool.of(store, threads=1), scores=scores, floor=0.85).keep)


def test_scores_of_another_plan_are_refused(store, found, tmp_path):
    other = score(vector_store(tmp_path / "o.zarr", traces([1, 1])))
    with pytest.raises(ResumeMismatch, match="another plan"):
        duplicates(store, scores=other)
    found.write(tmp_path / "d.parquet")
    with pytest.raises(DataError, match="come from different plans"):
        regroup(tmp_path / "d.parquet", scores=other)


# ---------------------------------------------------------------- unfinished stores and subsets


def test_an_unfinished_store(tmp_path, samples):
    store = vector_store(tmp_path / "s.zarr", samples, samples_per_unit=16, units=[0, 4], set_aside=[0])
    with pytest.raises(Unfinished, match="give --partial"):
        duplicates(store)
    table = duplicates(Pool.of(store, partial=True, threads=1))
    assert table.row.tolist() == [*range(1, 16), *range(64, 80)]
    assert [table.sample_id[place] for place in np.flatnonzero(table.group == 0)] == ["s4", "s64"]
    assert table.note.partial


def test_a_subset_by_ids_scores_or_select(store, tmp_path):
    (tmp_path / "ids.txt").write_text("s60\ns0\ns5\n")
    by_ids = duplicates(Pool.of(store, threads=1), subset=tmp_path / "ids.txt")
    assert by_ids.sample_id == ["s0", "s5", "s60"]
    assert by_ids.dropped == ["s60"]
    scores = score(store)
    subset = select(scores, ratio="0.3")
    export(subset, tmp_path / "subset.ids", as_format="ids")
    chosen = duplicates(Pool.of(store, threads=1), subset=tmp_path / "subset.ids")
    assert chosen.sample_id == subset.sample_id
    score(store, out=tmp_path / "scores.parquet")
    assert len(duplicates(Pool.of(store, threads=1), subset=tmp_path / "scores.parquet")) == NUM
    assert duplicates(Pool.of(store, threads=1), subset=np.array([60, 0])).dropped == ["s60"]


# ---------------------------------------------------------------- texts


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Records of which two are copies under other ids, and one a copy with another prompt, on the fake model."""
    folder = tmp_path_factory.mktemp("texts")
    records = [record(i) for i in range(8)]
    records += [record(2) | {"id": "copy-a"}, record(2) | {"id": "copy-b", "source": "elsewhere"}]
    records += [record(3) | {"id": "asked-otherwise", "prompt": "And what is 3 + 1?"}]
    (folder / "traces.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    extract(make_job(folder))
    return folder


def test_the_same_text_under_another_id_is_an_exact_duplicate(texts):
    table = duplicates(str(texts / "store.zarr"), threshold=1, floor=1)
    assert [table.sample_id[place] for place in np.flatnonzero(table.exact)] == ["case-2", "copy-a", "copy-b"]
    assert table.group[[2, 8, 9]].tolist() == [0, 0, 0]
    assert table.note.exact_by == "text"
    assert not table.exact[10]


def test_a_copy_counts_as_one_even_where_vectors_differ_or_are_zero(tmp_path, monkeypatch):
    vectors = [np.eye(2, 4, k=place % 3).astype(np.float32) * (place != 1) for place in range(4)]
    store = vector_store(tmp_path / "s.zarr", vectors)
    digests = [b"a", b"a", b"b", b"a"]
    monkeypatch.setattr("grace_store.choose.duplicates.sample_digests", lambda *_: (digests, "text"))
    table = duplicates(store, threshold=0.99)
    assert table.group.tolist() == [0, 0, -1, 0]
    assert table.similarity.tolist()[:2] == [1, 1]
    assert table.exact.tolist() == [True, True, False, True]


def test_without_the_dataset_whole_records_are_compared(texts, tmp_path):
    shutil.copytree(texts, tmp_path / "moved")
    store = tmp_path / "moved/store.zarr"
    (texts / "traces.jsonl").rename(texts / "away.jsonl")
    try:
        told = []
        table = duplicates(str(store), listener=told.append)
        there = duplicates(Pool.of(str(store), data=[str(texts / "away.jsonl")]))
        with pytest.raises(DataError, match="No such file or folder"):
            duplicates(Pool.of(str(store), data=[str(tmp_path / "nowhere.jsonl")]))
    finally:
        (texts / "away.jsonl").rename(texts / "traces.jsonl")
    assert table.note.exact_by == "record"
    assert not table.exact.any()
    assert any(
        "Whole records are compared instead of texts" in event.text for event in told if isinstance(event, Warned)
    )
    assert there.exact.sum() == 3


# ---------------------------------------------------------------- the commands


def test_the_signal_is_the_one_scored(tmp_path):
    store = known_store(tmp_path, ("early", "late")).store
    score(store, ScoreRequest(signals="late"), out=tmp_path / "s.parquet")
    found = duplicates(store, scores=tmp_path / "s.parquet")
    assert found.note.signal.name == "late"
    near = neighbours(store, "#0", descriptor="weighted", scores=read_scores(tmp_path / "s.parquet"))
    assert near.numbers["signal"] == "late"
