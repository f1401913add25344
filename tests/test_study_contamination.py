"""A pool held against benchmarks: planted items are found by text and by vectors, and nothing else is."""

from __future__ import annotations

import json
import shutil

import pytest

from grace_store.base.errors import DataError, DatasetChanged, SettingError, TargetMismatch
from grace_store.base.events import Note, Progressed, Warned
from grace_store.choose.contamination_table import AgainstTable, read_against
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.pool.pool import Pool
from grace_store.scoring.score import score
from grace_store.store.opened import Store
from grace_store.study.contamination import contamination
from tests.benchmark_stores import (
    DILUTED,
    EXACT,
    NUM_ITEMS,
    NUM_POOL,
    RENUMBERED,
    SAME_STEPS,
    WRAPPED,
    extracted,
    item_records,
    planned,
    pool_records,
    question,
    write_records,
)


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> Store:
    return extracted(tmp_path_factory.mktemp("pool"), pool_records())


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory) -> Store:
    return extracted(tmp_path_factory.mktemp("benchmark"), item_records())


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    records = [{"question": each["prompt"]} for each in item_records()]
    return str(write_records(tmp_path_factory.mktemp("file") / "test.jsonl", records))


def found_in(table: AgainstTable) -> list[tuple[int, int, str]]:
    return [(row["row"], row["item_row"], row["kind"]) for row in table.table.to_pylist()]


BY_TEXT = [(EXACT, 0, "exact"), (WRAPPED, 1, "ngram"), (DILUTED, 2, "ngram"), (RENUMBERED, 3, "template")]

WITH_SOLUTIONS = [*BY_TEXT, (SAME_STEPS, 4, "exact")]


def test_a_file_of_questions_is_compared_by_text(pool, file):
    told: list[object] = []
    table = contamination(pool, [file], listener=told.append)
    assert found_in(table) == BY_TEXT
    assert table.table["where"].to_pylist() == ["prompt", "prompt", "step 2", "prompt"]
    assert table.contaminated.tolist() == [EXACT, WRAPPED, DILUTED]
    (about,) = table.note.benchmarks
    assert (about.name, about.num_items, about.num_found, about.num_samples, about.num_templates) == (file, 8, 3, 3, 1)
    assert (table.note.num_samples, table.note.signal, about.signal) == (NUM_POOL, None, None)
    assert [each for each in told if isinstance(each, Progressed)][-1].done == NUM_POOL
    assert [each.text for each in told if isinstance(each, Note)] == [
        "Comparing 24 samples with 8 items of test.jsonl."
    ]


@pytest.mark.parametrize("is_file", [True, False])
def test_a_pool_that_is_held_against_itself_is_told_so(pool, is_file):
    told: list[object] = []
    own = pool.plan.files[0].path if is_file else pool
    table = contamination(pool, [own], listener=told.append)
    assert len(table.contaminated) == NUM_POOL
    name = own if is_file else pool.location
    assert [each.text for each in told if isinstance(each, Warned)] == [
        f"{pool.location} was planned from {name}, so every sample matches itself."
    ]


def test_settings_of_vectors_are_refused_where_only_texts_are_compared(pool, file):
    with pytest.raises(SettingError, match=r"^--threshold, --seed needs a store as benchmark"):
        contamination(pool, [file], threshold=0.9, seed=3)


def test_how_records_are_read_is_refused_where_all_benchmarks_are_stores(pool, benchmark):
    with pytest.raises(SettingError, match=r"^--format is only for files, but every benchmark is a store"):
        contamination(pool, [benchmark], format="gsm8k")


def test_a_store_is_compared_by_vectors_too(pool, benchmark):
    table = contamination(pool, [benchmark], threshold=0.999)
    vectors = [each for each in found_in(table) if each[2] == "vector"]
    assert vectors == [(SAME_STEPS, 4, "vector")]
    assert [each for each in found_in(table) if each[2] != "vector"] == WITH_SOLUTIONS
    row = next(row for row in table.table.to_pylist() if row["kind"] == "vector")
    assert row["strength"] == pytest.approx(1, abs=1e-6)
    assert row["item_text"].startswith("In the station of old town")
    assert table.note.signal is not None
    assert table.note.benchmarks[0].signal is not None
    assert (table.note.descriptor, table.note.benchmarks[0].num_found) == ("steps", 4)


def test_a_pool_without_a_signal_is_compared_by_text(tmp_path, file):
    assert found_in(contamination(planned(tmp_path, pool_records()), [file])) == BY_TEXT


def test_a_planned_benchmark_is_compared_by_text(pool, tmp_path):
    told: list[object] = []
    table = contamination(pool, [planned(tmp_path, item_records())], listener=told.append)
    assert found_in(table) == WITH_SOLUTIONS
    assert "no signal yet" in next(each.text for each in told if isinstance(each, Warned))


def test_a_benchmark_whose_dataset_is_gone_is_compared_by_vectors(pool, tmp_path):
    store = extracted(tmp_path, item_records())
    (tmp_path / "data.jsonl").unlink()
    told: list[object] = []
    table = contamination(pool, [store.location], threshold=0.999, listener=told.append)
    assert found_in(table) == [(SAME_STEPS, 4, "vector")]
    assert "no texts" in next(each.text for each in told if isinstance(each, Warned))


def test_another_model_is_refused(pool, tmp_path):
    other = extracted(tmp_path, item_records()[:2], weights="others")
    with pytest.raises(TargetMismatch, match=r"cannot be compared .*\n  model weights: pool .*, benchmark .*\nExtract"):
        contamination(pool, [other])


def test_several_benchmarks_are_kept_apart(pool, file, tmp_path):
    one = write_records(tmp_path / "one.jsonl", [{"problem": item_records()[2]["prompt"], "answer": "1"}])
    table = contamination(pool, [file, one])
    assert {(row["benchmark"], row["item_row"]) for row in table.table.to_pylist() if row["row"] == DILUTED} == {
        (file, 2),
        (str(one), 0),
    }
    assert [each.num_items for each in table.note.benchmarks] == [8, 1]
    with pytest.raises(SettingError, match="given twice"):
        contamination(pool, [file, file])


def test_blocks_change_nothing(pool, file, monkeypatch):
    whole = contamination(pool, [file])
    monkeypatch.setattr("grace_store.study.contamination.SAMPLES_AT_ONCE", 5)
    told: list[object] = []
    assert contamination(pool, [file], listener=told.append).table.equals(whole.table)
    assert any("The comparison of texts takes about" in each.text for each in told if isinstance(each, Note))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ngram": 1}, "between 2 and 100"),
        ({"share": 0}, "share 0 is not above 0"),
        ({"threshold": 1.5}, "threshold 1.5"),
    ],
)
def test_settings_without_a_meaning_are_refused(pool, benchmark, settings, words):
    with pytest.raises(SettingError, match=words):
        contamination(pool, [benchmark], **settings)


def test_what_is_missing_is_said(pool, file, benchmark, tmp_path):
    with pytest.raises(SettingError, match="no benchmark"):
        contamination(pool, [])
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        contamination(pool, [tmp_path / "nowhere.jsonl"])
    with pytest.raises(SettingError, match="weighted needs the scores of both"):
        contamination(pool, [benchmark], descriptor="weighted")
    moved = planned(tmp_path, pool_records())
    shutil.move(tmp_path / "data.jsonl", tmp_path / "moved.jsonl")
    with pytest.raises(DatasetChanged, match="--data"):
        contamination(moved, [file])
    assert len(contamination(Pool.of(moved, data=[str(tmp_path / "moved.jsonl")]), [file])) == len(BY_TEXT)


def test_a_contaminated_trace_is_never_chosen(pool, file, tmp_path):
    contamination(pool, [file]).write(tmp_path / "a.parquet")
    scores = score(pool)
    request = Selection(exclude_contaminated=tmp_path / "a.parquet")
    subset = select(scores, request, ratio=1)
    assert set(subset.row.tolist()) == set(range(NUM_POOL)) - {EXACT, WRAPPED, DILUTED}
    assert subset.notes == ("3 samples left out for items of test.jsonl; ratios are shares of the 21 that remain",)
    assert subset.spec.exclude_contaminated == read_against(tmp_path / "a.parquet").note
    assert not subset.spec.is_by_value
    assert "that have no item of a benchmark in them" in subset.conclusion
    both = select(
        scores, Selection(exclude_contaminated=contamination(pool, [file]), exclude_flagged=["cut_off"]), count=5
    )
    assert both.excluded is not None
    assert str(both.excluded).endswith("; 3 samples left out for items of test.jsonl")
    questions = select(scores, Selection(exclude_contaminated=tmp_path / "a.parquet", per_group=1))
    assert not {EXACT, WRAPPED, DILUTED} & set(questions.row.tolist())


def test_a_copy_whose_numbers_are_written_otherwise_is_never_chosen_either(file, tmp_path):
    records = pool_records()
    told = {0: "ten", 1: "eleven", 2: "१२", 3: "13.0", 4: "fourteen", 5: "１５"}
    for item, amount in told.items():
        records[item]["prompt"] = question(item, amount=amount).replace("half of those", "1/2 of those")
    records[6]["prompt"] = question(6, amount="thirty-one")
    pool = extracted(tmp_path, records)
    found = contamination(pool, [file])
    assert found_in(found)[:7] == [*((item, item, "ngram") for item in told), (6, 6, "template")]
    subset = select(score(pool), Selection(exclude_contaminated=found), ratio=1)
    assert not set(told) & set(subset.row.tolist())
    assert 6 in subset.row


def test_a_table_from_another_store_is_refused(pool, file, tmp_path):
    other = planned(tmp_path / "other", pool_records()[:-1])
    contamination(other, [file]).write(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet was made from another plan than the scores: it belongs to"):
        select(score(pool), Selection(exclude_contaminated=tmp_path / "a.parquet"))


def test_the_same_items_in_a_json_array_are_found_too(pool, tmp_path):
    path = tmp_path / "test.json"
    path.write_text(json.dumps([{"q": each["prompt"]} for each in item_records()]))
    assert found_in(contamination(pool, [path], map={"prompt": "q"})) == BY_TEXT
    assert len(json.loads(path.read_text())) == NUM_ITEMS
