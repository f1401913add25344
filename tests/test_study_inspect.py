"""The nearest samples, and the least aligned ones, against brute force."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from grace_store.base.errors import DataError, SettingError, Unfinished, UnknownName
from grace_store.base.events import Warned
from grace_store.base.finding import Finding
from grace_store.pool.descriptors import describe_samples
from grace_store.pool.pool import Pool
from grace_store.run.extract import extract
from grace_store.scoring.score import score
from grace_store.store.opened import Store
from grace_store.study.inspect import inspect, neighbours, read_vectors
from grace_store.values.measures import MEASURES
from grace_store.values.methods.method import ScoreSpec
from tests.commands import run
from tests.duplicated_stores import duplicated_samples, duplicated_store
from tests.gradient_stores import DIMENSION, add_gradients, gradient_spec, plan_store, record
from tests.jobs import make_job
from tests.stores import write_store
from tests.vector_stores import vector_store


def rows_of(found: Finding) -> Sequence[Mapping[str, Any]]:
    return found.tables["neighbours"].rows


@pytest.fixture(scope="module")
def samples() -> list[np.ndarray]:
    return duplicated_samples()


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return duplicated_store(tmp_path_factory.mktemp("d"))


@pytest.mark.parametrize("descriptor", ["answer", "steps", "projected"])
@pytest.mark.parametrize("least", [False, True])
def test_neighbours_are_those_of_brute_force(store, descriptor, least):
    vector = describe_samples(store, descriptor).vector.astype(np.float64)
    cosine = vector @ vector[7]
    order = np.argsort(cosine if least else -cosine, kind="stable")
    truth = [place for place in order.tolist() if place != 7 and vector[place].any()][:5]
    found = neighbours(Pool.of(store, threads=2), "s7", count=5, least=least, descriptor=descriptor)
    assert [neighbour["row"] for neighbour in rows_of(found)] == truth
    np.testing.assert_allclose([neighbour["cosine"] for neighbour in rows_of(found)], cosine[truth], atol=1e-6)
    assert found.numbers["sample_id"] == "s7"
    assert found.settings == {"count": 5, "least": least, "descriptor": descriptor}


def test_neighbours_of_a_trace_that_is_not_there(store, samples, tmp_path):
    np.save(tmp_path / "new.npy", samples[7].astype(np.float64))
    found = neighbours(store, read_vectors(tmp_path / "new.npy"), count=2)
    assert found.numbers["sample_id"] is None
    assert rows_of(found)[0]["sample_id"] == "s7"
    assert rows_of(found)[0]["cosine"] == pytest.approx(1, abs=1e-6)
    assert rows_of(found)[1]["sample_id"] == "s67"
    weighted = neighbours(store, samples[7], descriptor="weighted", scores=score(store), count=1)
    assert rows_of(weighted)[0]["sample_id"] == "s7"


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        (np.ones((2, 5)), r"shape \(2, 5\).*has vectors \(K\+1, 48\), the answer's last"),
        (np.ones((1, 48)), r"shape \(1, 48\)"),
        (np.ones(48), r"shape \(48,\)"),
        (np.full((2, 48), np.inf), "not finite"),
        (np.zeros((2, 48)), "The descriptor of these vectors is zero"),
    ],
)
def test_vectors_that_fit_no_sample_are_refused(store, vectors, words):
    with pytest.raises(DataError, match=words):
        neighbours(store, vectors.astype(np.float32))


@pytest.mark.parametrize("name", [*MEASURES, "loss:highest", "rsr:lowest:min"])
def test_a_sample_is_shown_by_any_measure_as_score_writes_it(tmp_path, name):
    store = write_store(tmp_path / "s", [1, 4, 2, 7, 3], 4, "float32", 5).store
    spec = ScoreSpec(measure=(name,))
    table = score(store, spec)
    for place, (row, value) in enumerate(zip(table.row.tolist(), table.value.tolist(), strict=True)):
        shown = inspect(store, f"#{row}", score=spec)
        assert shown["value"] == pytest.approx(value, rel=0, nan_ok=True)
        wanted = [math.nan] * shown["num_steps"]
        if table.has_step_scores:
            wanted = table.flat("step_score")[slice(*table.offsets[place : place + 2])].tolist()
        steps = [segment["step_score"] for segment in shown["segments"]]
        assert steps == [*(None if math.isnan(each) else each for each in wanted), None]
    near = rows_of(neighbours(store, "#1", count=3, score=spec))
    wanted = table.values_of(np.array([each["row"] for each in near])).tolist()
    assert [each["value"] for each in near] == [None if math.isnan(each) else each for each in wanted]


def test_measures_without_meaning_are_refused(tmp_path):
    store = write_store(tmp_path / "s", [1, 4], 4, "float32", 5).store
    for find in (inspect, neighbours):
        with pytest.raises(SettingError, match="inspect takes one measure: 2 are given, loss:lowest=2, norm:lowest"):
            find(store, "#1", score=ScoreSpec(measure=("loss=2", "norm")))
        with pytest.raises(SettingError, match="--target group needs the vectors of other traces"):
            find(store, "#1", score=ScoreSpec(target="group"))


def test_whole_responses_have_the_measures_that_score_gives_them(tmp_path):
    pool = plan_store(tmp_path, "pool", {"pool.jsonl": [record(f"p{i}") for i in range(4)]})
    add_gradients(pool, "ck", np.random.default_rng(0).normal(size=(4, DIMENSION)), gradient_spec())
    assert inspect(pool, "#1")["value"] is None
    for name in ("loss", "tokens", "steps"):
        table = score(pool, ScoreSpec(measure=(name,)))
        assert inspect(pool, "#1", score=ScoreSpec(measure=(name,)))["value"] == table.values_of(np.array([1]))[0]
    with pytest.raises(SettingError, match="has one vector per sample, so there are no steps"):
        inspect(pool, "#1", score=ScoreSpec(measure=("norm",)))


def test_files_that_hold_no_vectors_are_refused(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "words.npy", np.array(["a"]))
    (tmp_path / "text.npy").write_text("1 2 3")
    for name in ("objects", "text"):
        with pytest.raises(
            DataError,
            match=r"cannot be read as an array of numbers in the \.npy format\. Write the array with `numpy\.save`",
        ):
            read_vectors(tmp_path / f"{name}.npy")
    with pytest.raises(DataError, match=r"missing\.npy does not exist\. --vectors takes a file"):
        read_vectors(tmp_path / "missing.npy")
    with pytest.raises(DataError, match="does not hold one array of numbers"):
        read_vectors(tmp_path / "words.npy")


def test_samples_without_neighbours_are_refused_with_the_reason(tmp_path, samples):
    store = vector_store(tmp_path / "s.zarr", samples, samples_per_unit=16, units=[0, 5], set_aside=[3])
    with pytest.raises(Unfinished, match="unit 1 of base, which is not done yet"):
        neighbours(Pool.of(store, partial=True), "s20")
    with pytest.raises(DataError, match=r"the sample was set aside \(too_long\)"):
        neighbours(Pool.of(store, partial=True), "s3")
    with pytest.raises(DataError, match="descriptor is zero"):
        neighbours(Pool.of(store, partial=True), "s85")
    with pytest.raises(UnknownName, match="has no sample 'nobody'"):
        neighbours(Pool.of(store, partial=True), "nobody")
    with pytest.raises(SettingError, match="--neighbours 0 is below 1"):
        neighbours(store, "s1", count=0)
    told = []
    found = neighbours(Pool.of(store, partial=True), "s1", count=99, listener=told.append)
    assert len(rows_of(found)) == 14 + 9
    assert told == [Warned("Only 23 other samples can be compared with this sample.")]


# ---------------------------------------------------------------- texts, values, conclusions


def test_neighbours_have_the_values_of_a_table_or_those_by_default(store, samples):
    table = score(store, ScoreSpec(target="trace"))
    by_table = neighbours(store, "s7", count=3, scores=table)
    by_default = neighbours(store, "s7", count=3)
    assert [each["sample_id"] for each in rows_of(by_table)] == [each["sample_id"] for each in rows_of(by_default)]
    for found, values in ((by_table, table), (by_default, score(store))):
        truth = values.values_of(np.array([7, *(each["row"] for each in rows_of(found))])).tolist()
        assert [found.numbers["value"], *(each["value"] for each in rows_of(found))] == truth
        theirs = [each["value"] for each in rows_of(found)]
        span = f"Values of those shown: {min(theirs):.4f} to {max(theirs):.4f}; that of s7 is {truth[0]:.4f}."
        assert found.conclusion.endswith(span)
    assert by_default.notes[0].startswith("Texts are not shown: ")
    assert rows_of(by_default)[0]["prompt"] is None


@pytest.mark.parametrize(
    ("sample", "least", "words"),
    [
        ("s7", False, "The nearest trace, s67 (0.9700), is nearly the same: `grace-store duplicates` finds all such"),
        ("s20", False, "The nearest trace, s80 (1.0000), and 4 others of the 6 shown are nearly the same:"),
        ("s10", False, "No trace is nearly the same (0.95 or more): the nearest is s70 (0.91"),
        ("s7", True, "All 6 shown pull the other way, "),
    ],
)
def test_the_conclusion_is_what_was_planted(store, sample, least, words):
    found = neighbours(store, sample, count=6, least=least)
    assert found.conclusion.startswith(words)
    assert f"{rows_of(found)[0]['sample_id']} ({rows_of(found)[0]['cosine']:.4f})" in found.conclusion


def test_texts_are_shown_harmless_and_short(tmp_path):
    questions = ["What of\x1b[2J \n" + "seven " * 40, "What of\x1b[2J \n" + "seven " * 40, "And of eight?"]
    lines = [
        {"id": f"t{i}", "prompt": question, "steps": ["Take it.", "Add one."], "answer": f"{i}\x07"}
        for i, question in enumerate(questions)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    extract(make_job(tmp_path, data=(str(tmp_path / "data.jsonl"),)))
    found = neighbours(tmp_path / "store.zarr", "t0", count=2)
    assert found.notes == ()
    assert {each["sample_id"]: each["prompt"] for each in rows_of(found)} == {"t1": questions[1], "t2": questions[2]}
    assert "1 of the 2 answers the same question." in found.conclusion
    shown = run("inspect", tmp_path / "store.zarr", "t0", "--neighbours", 2).stdout.partition("Nearest, by steps")[2]
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "What of\\x1b[2J seven seven" in shown
    assert "And of eight? -> " in shown
    assert max(map(len, shown.splitlines()[1:])) < 120
    (tmp_path / "data.jsonl").unlink()
    assert "Texts are not shown: " in run("inspect", tmp_path / "store.zarr", "t0", "--neighbours", 1).stdout
