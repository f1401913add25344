"""Duplicates and neighbours from a store to a table: texts, vectors, subsets, policies, thresholds, commands."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from grace_store.artifacts.duplicate_table import read_duplicates
from grace_store.base.errors import DataError, ResumeMismatch, SettingError, Unfinished, UnknownName
from grace_store.base.events import Warned
from grace_store.cli import main
from grace_store.curate.duplicates import DuplicatesRequest, duplicates, regroup
from grace_store.curate.export import ExportRequest, export
from grace_store.curate.neighbours import NeighboursRequest, neighbours, read_vectors
from grace_store.curate.score import ScoreRequest, score
from grace_store.curate.select import select
from grace_store.likeness.search import IndexPlan
from grace_store.read.descriptors import DescriptorSpec, describe_samples
from grace_store.run.extract import extract
from grace_store.store.opened import Store
from tests.gradient_stores import NO_SPANS
from tests.jobs import make_job, record
from tests.scored_stores import known_store
from tests.stores import STORAGES, UnitWriter, add_signal, complete_signal, random_vectors, write_plan
from tests.vector_stores import at_cosine, brute_force_groups, traces, vector_store

NUM = 90
THRESHOLD = 0.95


@pytest.fixture(scope="module")
def samples() -> list[np.ndarray]:
    """Traces of one step; 60-69 are 0-9 at a cosine of 0.97, 70-79 are 10-19 at 0.91, 80-84 equal 20, 85 is zero."""
    rng = np.random.default_rng(0)
    step = rng.normal(size=(NUM, 48))
    step /= np.linalg.norm(step, axis=1, keepdims=True)
    step[60:70], step[70:80] = at_cosine(step[:10], 0.97, rng), at_cosine(step[10:20], 0.91, rng)
    step[80:85], step[85] = step[20], 0
    return [np.stack([each, rng.normal(size=48)]).astype(np.float32) for each in step]


@pytest.fixture(scope="module")
def store(tmp_path_factory, samples) -> Store:
    tokens = [10 - place % 7 for place in range(NUM)]
    return vector_store(tmp_path_factory.mktemp("d") / "s.zarr", samples, samples_per_unit=16, num_tokens=tokens)


@pytest.fixture(scope="module")
def found(store):
    return duplicates(store, DuplicatesRequest(floor=0.85), threads=1)


def brute_force(store: Store, threshold: float) -> list[int]:
    vector = describe_samples(store, DescriptorSpec(descriptor="steps")).vector.astype(np.float64)
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
    vector = describe_samples(store, DescriptorSpec(descriptor="steps")).vector.astype(np.float64)
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
    assert found.made_by["num_zero"] == 1


@pytest.mark.parametrize("storage", STORAGES)
def test_every_storage_finds_what_is_planted(tmp_path, samples, storage):
    store = vector_store(tmp_path / "s.zarr", samples, storage, samples_per_unit=16)
    table = duplicates(store, threads=1)
    assert groups_of(table) == brute_force(store, THRESHOLD)
    assert table.num_groups == 11


@pytest.mark.parametrize("kind", ["ivf", "ivf-sq8"])
def test_a_large_store_is_searched_by_cells(store, found, monkeypatch, kind):
    monkeypatch.setattr("grace_store.likeness.search.plan_index", lambda *_, **__: IndexPlan(kind, 4, 3))
    table = duplicates(store, DuplicatesRequest(floor=0.85), threads=1)
    assert groups_of(table) == groups_of(found)
    search = table.made_by["search"]
    assert (search["index"], search["num_cells"], search["num_probed"]) == (kind, 4, 3)
    assert search["recall"]["share"] == 1


def test_a_poor_search_is_told(store, monkeypatch):
    monkeypatch.setattr("grace_store.likeness.search.plan_index", lambda *_, **__: IndexPlan("ivf", 64, 1))
    told = []
    table = duplicates(store, DuplicatesRequest(floor=0.5), listener=told.append, threads=1)
    share = table.made_by["search"]["recall"]["share"]
    assert share < 0.99
    assert Warned(f"The search found {share:.3f} of the similar pairs of samples at random.") in told


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
    table = duplicates(store, DuplicatesRequest(keep="shortest", threshold=0.999))
    assert np.flatnonzero(table.group == 0).tolist() == [0, 4, 8]
    assert table.made_by["descriptor"] == "sample"
    tokens = np.concatenate([view.unit_array("sample_num_tokens", unit)[:4] for unit in range(3)])[:10]
    assert table.num_tokens.tolist() == tokens.tolist()
    assert neighbours(store, "s0", NeighboursRequest(count=1)).neighbours[0].sample_id == "s4"


# ---------------------------------------------------------------- thresholds afterwards


@pytest.mark.parametrize("threshold", [0.85, 0.9, 0.93, 0.96, 0.98, 1.0])
def test_regrouping_is_what_a_new_search_would_be(store, found, tmp_path, threshold):
    found.write(tmp_path / "d.parquet")
    again = regroup(tmp_path / "d.parquet", threshold=threshold)
    fresh = duplicates(store, DuplicatesRequest(threshold=threshold, floor=0.85), threads=1)
    assert again.table.equals(fresh.table)
    assert again.made_by == fresh.made_by
    assert groups_of(again) == brute_force(store, threshold if threshold < 1 else 1 - 1e-9)
    (count,) = found.counts([threshold])
    assert (count.num_groups, count.num_dropped) == (fresh.num_groups, len(fresh.dropped))


def test_a_threshold_below_the_floor_is_refused(found):
    with pytest.raises(SettingError, match=r"threshold 0.8 is below 0.85, where the search stopped.*--floor 0.8"):
        found.regrouped(0.8)
    with pytest.raises(SettingError, match=r"threshold 0\.5 is below 0\.85"):
        found.counts([0.5])
    assert [count.threshold for count in found.counts()][:3] == [0.85, 0.9, 0.92]


def test_groups_only_come_apart_as_the_threshold_rises(found):
    dropped = [count.num_dropped for count in found.counts()]
    assert dropped == sorted(dropped, reverse=True)
    assert dropped[0] == 25
    assert dropped[-1] == 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threshold": 1.2}, "threshold 1.2 is not between 0 and 1"),
        ({"threshold": float("nan")}, "threshold nan is not between 0 and 1"),
        ({"threshold": 0.8, "floor": 0.9}, "floor 0.9 is not between 0 and the threshold 0.8"),
        ({"keep": "value"}, "give the --scores that have the values"),
        ({"keep": "longest"}, "'longest' is none of value, shortest, earliest"),
    ],
)
def test_what_has_no_meaning_is_refused(store, settings, words):
    with pytest.raises(SettingError, match=words):
        duplicates(store, DuplicatesRequest(**settings))


# ---------------------------------------------------------------- what is kept


def test_the_shortest_and_the_best_of_a_group(store, found, tmp_path):
    shortest = found.regrouped(keep="shortest")
    scores = score(store)
    score(store, out=tmp_path / "scores.parquet")
    best = duplicates(store, DuplicatesRequest(scores=tmp_path / "scores.parquet", floor=0.85), threads=1)
    assert best.made_by["spec"]["keep"] == "value"
    np.testing.assert_array_equal(best.value, scores.value)
    for number in range(found.num_groups):
        members = np.flatnonzero(found.group == number)
        assert members[shortest.keep[members]].tolist() == [members[np.argmin(2 * (10 - members % 7))]]
        assert members[best.keep[members]].tolist() == [members[np.argmax(scores.value[members])]]
        assert members[found.keep[members]].tolist() == [members[0]]


def test_values_may_come_later(store, found, tmp_path):
    found.write(tmp_path / "d.parquet")
    with pytest.raises(SettingError, match="give the scores that have the values"):
        regroup(tmp_path / "d.parquet", keep="value")
    scores = score(store)
    again = regroup(tmp_path / "d.parquet", keep="value", scores=scores)
    assert np.array_equal(again.keep, duplicates(store, DuplicatesRequest(scores=scores, floor=0.85), threads=1).keep)


def test_scores_of_another_plan_are_refused(store, found, tmp_path):
    other = score(vector_store(tmp_path / "o.zarr", traces([1, 1])))
    with pytest.raises(ResumeMismatch, match="another plan"):
        duplicates(store, DuplicatesRequest(scores=other))
    found.write(tmp_path / "d.parquet")
    with pytest.raises(DataError, match="of different plans"):
        regroup(tmp_path / "d.parquet", scores=other)


# ---------------------------------------------------------------- unfinished stores and subsets


def test_an_unfinished_store(tmp_path, samples):
    store = vector_store(tmp_path / "s.zarr", samples, samples_per_unit=16, units=[0, 4], set_aside=[0])
    with pytest.raises(Unfinished, match="give --partial"):
        duplicates(store)
    table = duplicates(store, DuplicatesRequest(partial=True), threads=1)
    assert table.row.tolist() == [*range(1, 16), *range(64, 80)]
    assert [table.sample_id[place] for place in np.flatnonzero(table.group == 0)] == ["s4", "s64"]
    assert table.made_by["partial"]


def test_a_subset_by_ids_scores_or_select(store, tmp_path):
    (tmp_path / "ids.txt").write_text("s60\ns0\ns5\n")
    by_ids = duplicates(store, DuplicatesRequest(subset=tmp_path / "ids.txt"), threads=1)
    assert by_ids.sample_id == ["s0", "s5", "s60"]
    assert by_ids.dropped == ["s60"]
    scores = score(store)
    subset = select(scores, ratio="0.3")
    export(subset, tmp_path / "subset.ids", ExportRequest(as_format="ids"))
    chosen = duplicates(store, DuplicatesRequest(subset=tmp_path / "subset.ids"), threads=1)
    assert chosen.sample_id == subset.sample_id
    score(store, out=tmp_path / "scores.parquet")
    assert len(duplicates(store, DuplicatesRequest(subset=tmp_path / "scores.parquet"), threads=1)) == NUM
    assert duplicates(store, DuplicatesRequest(subset=np.array([60, 0])), threads=1).dropped == ["s60"]


def test_a_file_that_names_no_samples_is_refused(store, tmp_path):
    (tmp_path / "ids.txt").write_text("s60\nnobody\n")
    with pytest.raises(DataError, match=r"1 lines are no id there \('nobody'\)"):
        duplicates(store, DuplicatesRequest(subset=tmp_path / "ids.txt"))
    with pytest.raises(DataError, match="cannot be read as a list of ids"):
        duplicates(store, DuplicatesRequest(subset=tmp_path / "missing.txt"))
    (tmp_path / "old.jsonl.spec.json").write_text('{"made_by": "grace-store 0"}')
    with pytest.raises(DataError, match=r"does not say which records old\.jsonl holds"):
        duplicates(store, DuplicatesRequest(subset=tmp_path / "old.jsonl"))


def test_a_file_that_is_no_table_of_duplicates_is_refused(store, found, tmp_path):
    with pytest.raises(DataError, match="does not exist; `grace-store duplicates` makes"):
        read_duplicates(tmp_path / "no.parquet")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(DataError, match="is not a Parquet file"):
        read_duplicates(tmp_path / "text.parquet")
    score(store, out=tmp_path / "scores.parquet")
    with pytest.raises(DataError, match="is not a table that `grace-store duplicates` made"):
        read_duplicates(tmp_path / "scores.parquet")
    pq.write_table(found.table.slice(0, 50), tmp_path / "half.parquet")
    with pytest.raises(DataError, match="does not hold the 90 samples it was written with"):
        read_duplicates(tmp_path / "half.parquet")


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {}}, {"spec": {"threshold": "x", "floor": 0.9, "keep": "value"}}, {"search": None}, {"kind": "scores"},
        {"spec": {"threshold": 0.9, "floor": 0.9, "keep": "all"}}, {"num_samples": None},
    ],
)  # fmt: skip
def test_a_table_with_a_strangers_note_is_refused(found, tmp_path, change):
    note = json.dumps(found.made_by | change).encode()
    pq.write_table(found.table.replace_schema_metadata({b"grace_store": note}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match="is not a table that `grace-store duplicates` made"):
        read_duplicates(tmp_path / "d.parquet")


@pytest.mark.parametrize("note", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_table_with_a_damaged_note_is_refused(found, tmp_path, note):
    pq.write_table(found.table.replace_schema_metadata({b"grace_store": note}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match="is not a table that `grace-store duplicates` made"):
        read_duplicates(tmp_path / "d.parquet")


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("link", lambda n: pa.array([10**6] * n), "names samples that it does not hold"),
        ("nearest", lambda n: pa.array(["nobody"] * n), "names samples that it does not hold"),
        ("row", lambda n: pa.array(["one"] * n), "is not a table that `grace-store duplicates` made"),
    ],
)
def test_columns_that_cannot_be_are_refused(found, tmp_path, name, column, words):
    place = found.table.column_names.index(name)
    pq.write_table(found.table.set_column(place, name, column(len(found))), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=words):
        read_duplicates(tmp_path / "d.parquet")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": ["x"]}, "does not say which records"),
        ({"rows": 5}, "does not say which records"),
        ({"scores": 5}, "does not say which records"),
        ({"rows": [0, 10**6]}, "names records that .* has no samples of"),
    ],
)
def test_a_subset_with_a_strangers_note_is_refused(store, tmp_path, change, words):
    export(select(score(store), ratio="0.3"), tmp_path / "s.ids", ExportRequest(as_format="ids"))
    sidecar = tmp_path / "s.ids.spec.json"
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | change))
    with pytest.raises(DataError, match=words):
        duplicates(store, DuplicatesRequest(subset=tmp_path / "s.ids"))


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
    table = duplicates(str(texts / "store.zarr"), DuplicatesRequest(threshold=1, floor=1))
    assert [table.sample_id[place] for place in np.flatnonzero(table.exact)] == ["case-2", "copy-a", "copy-b"]
    assert table.group[[2, 8, 9]].tolist() == [0, 0, 0]
    assert table.made_by["exact_by"] == "text"
    assert not table.exact[10]


def test_a_copy_counts_as_one_even_where_vectors_differ_or_are_zero(tmp_path, monkeypatch):
    vectors = [np.eye(2, 4, k=place % 3).astype(np.float32) * (place != 1) for place in range(4)]
    store = vector_store(tmp_path / "s.zarr", vectors)
    digests = [b"a", b"a", b"b", b"a"]
    monkeypatch.setattr("grace_store.curate.duplicates.sample_digests", lambda *_: (digests, "text"))
    table = duplicates(store, DuplicatesRequest(threshold=0.99))
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
        there = duplicates(str(store), DuplicatesRequest(data=[str(texts / "away.jsonl")]))
        with pytest.raises(DataError, match="No such file or folder"):
            duplicates(str(store), DuplicatesRequest(data=[str(tmp_path / "nowhere.jsonl")]))
    finally:
        (texts / "away.jsonl").rename(texts / "traces.jsonl")
    assert table.made_by["exact_by"] == "record"
    assert not table.exact.any()
    assert any(
        "whole records are compared instead of texts" in event.text for event in told if isinstance(event, Warned)
    )
    assert there.exact.sum() == 3


# ---------------------------------------------------------------- neighbours


@pytest.mark.parametrize("descriptor", ["answer", "steps", "projected"])
@pytest.mark.parametrize("least", [False, True])
def test_neighbours_are_those_of_brute_force(store, descriptor, least):
    vector = describe_samples(store, DescriptorSpec(descriptor=descriptor)).vector.astype(np.float64)
    cosine = vector @ vector[7]
    order = np.argsort(cosine if least else -cosine, kind="stable")
    truth = [place for place in order.tolist() if place != 7 and vector[place].any()][:5]
    found = neighbours(store, "s7", NeighboursRequest(count=5, least=least, descriptor=descriptor), threads=2)
    assert [neighbour.row for neighbour in found.neighbours] == truth
    np.testing.assert_allclose([neighbour.cosine for neighbour in found.neighbours], cosine[truth], atol=1e-6)
    assert (found.sample_id, found.descriptor, found.least) == ("s7", descriptor, least)


def test_neighbours_of_a_trace_that_is_not_there(store, samples, tmp_path):
    np.save(tmp_path / "new.npy", samples[7].astype(np.float64))
    found = neighbours(store, read_vectors(tmp_path / "new.npy"), NeighboursRequest(count=2))
    assert found.sample_id is None
    assert found.neighbours[0].sample_id == "s7"
    assert found.neighbours[0].cosine == pytest.approx(1, abs=1e-6)
    assert found.neighbours[1].sample_id == "s67"
    weighted = neighbours(store, samples[7], NeighboursRequest(descriptor="weighted", scores=score(store), count=1))
    assert weighted.neighbours[0].sample_id == "s7"


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        (np.ones((2, 5)), r"shape \(2, 5\).*has vectors \(K\+1, 48\), the answer's last"),
        (np.ones((1, 48)), r"shape \(1, 48\)"),
        (np.ones(48), r"shape \(48,\)"),
        (np.full((2, 48), np.inf), "not finite"),
        (np.zeros((2, 48)), "a descriptor of zeros"),
    ],
)
def test_vectors_that_fit_no_sample_are_refused(store, vectors, words):
    with pytest.raises(DataError, match=words):
        neighbours(store, vectors.astype(np.float32))


def test_files_that_hold_no_vectors_are_refused(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "words.npy", np.array(["a"]))
    (tmp_path / "text.npy").write_text("1 2 3")
    for name in ("objects", "text"):
        with pytest.raises(
            DataError, match=r"cannot be read as an array of numbers in the \.npy format; `numpy\.save`"
        ):
            read_vectors(tmp_path / f"{name}.npy")
    with pytest.raises(DataError, match=r"missing\.npy is not there; --vectors takes an array"):
        read_vectors(tmp_path / "missing.npy")
    with pytest.raises(DataError, match="does not hold one array of numbers"):
        read_vectors(tmp_path / "words.npy")


def test_samples_without_neighbours_are_refused_with_the_reason(tmp_path, samples):
    store = vector_store(tmp_path / "s.zarr", samples, samples_per_unit=16, units=[0, 5], set_aside=[3])
    with pytest.raises(Unfinished, match="unit 1 of base, which is not done yet"):
        neighbours(store, "s20", NeighboursRequest(partial=True))
    with pytest.raises(DataError, match=r"it was set aside \(too_long\)"):
        neighbours(store, "s3", NeighboursRequest(partial=True))
    with pytest.raises(DataError, match="descriptor is zero"):
        neighbours(store, "s85", NeighboursRequest(partial=True))
    with pytest.raises(UnknownName, match="has no sample 'nobody'"):
        neighbours(store, "nobody", NeighboursRequest(partial=True))
    with pytest.raises(SettingError, match="count 0 is below 1"):
        neighbours(store, "s1", NeighboursRequest(count=0))
    told = []
    found = neighbours(store, "s1", NeighboursRequest(count=99, partial=True), listener=told.append)
    assert len(found.neighbours) == 14 + 9
    assert told == [Warned("Only 23 other samples can be compared with.")]


# ---------------------------------------------------------------- the commands


def run(*arguments: object, exit_code: int = 0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + result.stderr
    return result


def test_the_commands_as_users_type_them(store, tmp_path):
    out = tmp_path / "d.parquet"
    result = run("duplicates", store.location, "--out", out, "--floor", 0.85, "--threads", 1)
    assert (
        "90 samples, 26 of them in 11 groups from 0.95 up; 15 dropped, the earliest of each group kept."
        in result.output
    )
    assert "every sample was compared with every other" in result.output
    assert "0.9       21         46       25" in result.output
    assert "whole records are compared" in result.stderr
    again = run("duplicates", "--from", out, "--threshold", 0.9, "--out", tmp_path / "e.parquet", "--json")
    said = json.loads(again.stdout)
    assert (said["num_groups"], said["num_dropped"], said["spec"]["threshold"]) == (21, 25, 0.9)
    assert read_duplicates(tmp_path / "e.parquet").num_groups == 21
    near = json.loads(run("neighbours", store.location, "s0", "--count", 1, "--json").stdout)
    assert near["neighbours"][0]["sample_id"] == "s60"
    shown = run("neighbours", store.location, "#0", "--count", 2, "--least").stdout.splitlines()
    assert shown[0] == "Least aligned with s0, by steps of base:"
    assert len(shown) == 3


def test_the_signal_is_the_one_scored(tmp_path):
    store = known_store(tmp_path, ("early", "late")).store
    score(store, ScoreRequest(signals="late"), out=tmp_path / "s.parquet")
    found = duplicates(store, DuplicatesRequest(scores=tmp_path / "s.parquet"))
    assert found.made_by["signal"]["name"] == "late"
    near = run("neighbours", store.location, "#0", "--descriptor", "weighted", "--scores", tmp_path / "s.parquet")
    assert "by weighted of late" in near.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("duplicates {store} --scores {scores} --scores {scores} --out {out}", "--scores is given 2 times"),
        ("duplicates --out {out}", "Missing argument 'STORE'"),
        ("duplicates {store} --from {table} --out {out}", "has no use for STORE"),
        (
            "duplicates --from {table} --floor 0.5 --descriptor steps --out {out}",
            "has no use for --floor, --descriptor",
        ),
        ("duplicates --from {table} --threshold 0.5 --out {out}", "Search again with --floor 0.5"),
        ("duplicates --from {table} --out {table}", "which is read for it; choose another --out"),
        ("duplicates {store} --out {store}/d.parquet", "the store; choose another --out"),
        ("neighbours {store}", "Give a SAMPLE or --vectors"),
        ("neighbours {store} s0 --vectors {out}", "Give a SAMPLE or --vectors"),
        ("neighbours {store} nobody", "has no sample 'nobody'"),
        ("neighbours {store} s0 --scores {scores}", "scores are for the descriptor weighted"),
        ("neighbours {store} s0 --seed 1", "a seed is for the random projection"),
    ],
)
def test_wrong_commands_are_told_what_is_wrong(store, found, tmp_path, arguments, words):
    found.write(tmp_path / "d.parquet")
    score(store, out=tmp_path / "scores.parquet")
    places = {"store": store.location, "table": tmp_path / "d.parquet", "out": tmp_path / "out.parquet"}
    places |= {"scores": tmp_path / "scores.parquet"}
    result = CliRunner().invoke(main, arguments.format(**places).split())
    assert result.exit_code != 0
    assert words in " ".join(result.stderr.split())
    assert not (tmp_path / "out.parquet").exists()


def test_it_all_runs_without_torch_and_regrouping_without_faiss(store, tmp_path):
    """On a machine with the core install and faiss."""
    code = textwrap.dedent("""
        import importlib.abc, sys

        class Missing(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {missing!r}.split():
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Missing())
        from grace_store.cli import main
        main({arguments!r})
    """)
    core = "torch transformers peft safetensors PIL ray plotly"
    search = ["duplicates", store.location, "--out", str(tmp_path / "d.parquet"), "--threads", "1"]
    again = [
        "duplicates",
        "--from",
        str(tmp_path / "d.parquet"),
        "--threshold",
        "0.97",
        "--out",
        str(tmp_path / "e.parquet"),
    ]
    done = [
        subprocess.run(
            [sys.executable, "-c", code.format(missing=missing, arguments=arguments)], capture_output=True, text=True
        )
        for missing, arguments in ((core, search), (f"{core} faiss", again), (f"{core} faiss", search))
    ]
    assert [each.returncode for each in done] == [0, 0, 1], [each.stderr for each in done]
    assert "pip install 'grace-store[faiss]'" in done[2].stderr
