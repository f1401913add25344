"""Results that were written before notes said a version: today's code reads them, and makes the same again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace_store.artifacts.duplicate_table import read_duplicates
from grace_store.artifacts.measures import Diversity
from grace_store.artifacts.notes import SubsetNote, SweepNote
from grace_store.artifacts.score_table import ScoreTable, read_scores, read_scores_note
from grace_store.artifacts.subset_file import read_subset, selected_rows
from grace_store.base.documents import FIRST_VERSION, VERSION, Document, read_document
from grace_store.base.files import sidecar_of
from grace_store.curate.compare import compare
from grace_store.curate.diversity import DiversityRequest, diversity
from grace_store.curate.duplicates import DuplicatesRequest, duplicates, regroup
from grace_store.curate.score import replay, request_of, score
from grace_store.curate.select import RankRequest, select
from grace_store.curate.sweep import read_sweep, sweep
from grace_store.curate.trade_curve import TradeSpec
from grace_store.store.opened import Store
from grace_store.values.diversity_spec import DiversitySpec

GOLDEN = Path(__file__).parent / "golden"
NOTES = GOLDEN / "notes-1.0"
DATA = GOLDEN / "1.0" / "data.jsonl"
TABLES = ("scores-float32", "scores-int8", "both", "longest")
SUBSETS = ("subset.jsonl", "subset-mmr.jsonl", "ids.txt")


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    """The store that they were made from; their notes name it by where it lay then."""
    folder = tmp_path_factory.mktemp("golden")
    shutil.unpack_archive(GOLDEN / "1.0" / "store.zip", folder)
    return Store.open(folder / "store.zarr")


def close(found: Any, expected: Any, rel: float = 1e-5) -> bool:
    """Whether two JSON values say the same, numbers to the last digits that arithmetic may change."""
    if isinstance(expected, dict):
        return set(found) == set(expected) and all(close(found[key], expected[key], rel) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            close(one, other, rel) for one, other in zip(found, expected, strict=True)
        )
    return found == (pytest.approx(expected, rel=rel, nan_ok=True) if isinstance(expected, float) else expected)


def same(found: ScoreTable, expected: ScoreTable) -> bool:
    """Whether two tables have the same rows, numbers to the last digits but those that processors round differently."""
    one, other = found.table.to_pydict(), expected.table.to_pydict()
    return close(one, other, rel=1e-12)


def said(note: Document, *but: str) -> dict[str, Any]:
    """Return what a note says, but for its version and where things lay."""
    return {key: value for key, value in note.to_json().items() if key not in ("version", "made_by", "store", *but)}


def test_every_file_is_tried_here():
    known = {f"{name}.parquet" for name in TABLES} | set(SUBSETS) | {f"{name}.spec.json" for name in SUBSETS}
    known |= {"duplicates.parquet", "diversity.json", "sweep"}
    assert {path.name for path in NOTES.iterdir()} == known


# ---------------------------------------------------------------- scores


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_scores_is_read_and_made_again(store, tmp_path, name):
    table = read_scores(NOTES / f"{name}.parquet")
    assert table.note.version == FIRST_VERSION
    again = score(store, request_of(table.note))
    assert same(again, table)
    assert table.note.hygiene is None
    assert again.note.hygiene == (() if name == "longest" else ("same_direction",))
    assert said(again.note, "hygiene") == said(table.note)
    run = replay(NOTES / f"{name}.parquet", tmp_path / "again.parquet", store)
    assert same(read_scores(run.out), table)


@pytest.mark.parametrize("name", ["float32", "int8"])
def test_its_values_are_those_that_the_golden_store_knows(name):
    expected = json.loads((GOLDEN / "1.0" / "expected.json").read_text())["signals"][name]["value"]
    table = read_scores(NOTES / f"scores-{name}.parquet")
    assert table.sample_id == list(expected)
    np.testing.assert_allclose(table.value, list(expected.values()), rtol=1e-12)


# ---------------------------------------------------------------- subsets


@pytest.mark.parametrize("name", SUBSETS)
def test_a_subset_is_read_and_chosen_again(store, name):
    note = read_document(sidecar_of(NOTES / name), SubsetNote)
    assert note.version == note.scores.version == FIRST_VERSION
    assert selected_rows(store, NOTES / name).tolist() == list(note.rows)
    spec = note.spec
    chosen = None
    if spec.diversity is not None:
        chosen = DiversitySpec(**spec.diversity.model_dump(exclude={"duplicates"}))
    request = RankRequest(by=spec.by, control=spec.control, diversity=chosen, store=store.location)
    again = select(NOTES / "scores-float32.parquet", request, ratio=spec.ratio, count=spec.count)
    assert again.row.tolist() == list(note.rows)
    assert again.spec == spec
    assert again.threshold == pytest.approx(note.smallest_value)


def test_a_subset_finds_its_table_beside_it():
    found = read_subset(NOTES / "subset.jsonl")
    assert found.scores.path.name == "scores-float32.parquet"
    assert found.scores.row[found.chosen].tolist() == [6, 8, 9, 12]
    compared = compare(NOTES / "subset.jsonl", NOTES / "subset-mmr.jsonl")
    assert [change.sample_id for change in compared.entered] == ["sample-9"]
    assert [change.sample_id for change in compared.left] == ["sample-7"]


# ---------------------------------------------------------------- sweeps


def test_a_sweep_is_read_and_made_again(store):
    found = read_sweep(store, NOTES / "sweep")
    assert read_document(NOTES / "sweep" / "sweep.json", SweepNote) == found.note
    assert found.note.version == FIRST_VERSION
    again = sweep(store, found.note.spec)
    assert again.settings == found.settings
    assert again.labels == found.labels
    np.testing.assert_array_equal(again.values(), found.values())
    np.testing.assert_array_equal(again.jaccard, found.jaccard)
    np.testing.assert_allclose(again.rank_correlation, found.rank_correlation)
    assert again.num_ranked == found.num_ranked
    numbers = [{key: value for key, value in row.items() if key != "command"} for row in again.summary]
    assert close(numbers, [{key: row[key] for key in numbers[0]} for row in found.summary])


# ---------------------------------------------------------------- duplicates


def test_a_table_of_duplicates_is_read_and_made_again(store):
    table = read_duplicates(NOTES / "duplicates.parquet")
    assert table.note.version == table.note.scores.version == FIRST_VERSION
    spec = table.note.spec
    request = DuplicatesRequest(
        signal=table.note.signal.name,
        threshold=spec.threshold,
        floor=spec.floor,
        scores=NOTES / "scores-float32.parquet",
        keep=spec.keep,
        data=[DATA],
    )
    again = duplicates(store, request, threads=1)
    assert said(again.note, "scores") == said(table.note, "scores")
    assert close(again.table.to_pylist(), table.table.to_pylist())


def test_a_table_of_duplicates_is_grouped_anew_and_says_todays_version():
    again = regroup(NOTES / "duplicates.parquet", threshold=0.99)
    assert again.threshold == 0.99
    assert again.note.version == VERSION


# ---------------------------------------------------------------- diversity


def test_a_measure_of_diversity_is_read_and_made_again(store):
    found = read_document(NOTES / "diversity.json", Diversity)
    assert found.version == FIRST_VERSION
    request = DiversityRequest(
        subsets=[NOTES / "subset.jsonl"],
        scores=NOTES / "scores-float32.parquet",
        ratio=[found.curve.ratio],
        num_clusters=found.num_clusters,
        seed=found.seed,
        num_random=found.num_random,
        curve=TradeSpec(),
    )
    again = diversity(store, request, threads=1)
    expected, made = said(found, "compared", "conclusion"), said(again, "compared", "conclusion")
    for each in (*expected["subsets"], *made["subsets"]):
        each.pop("name")
    assert all(0 <= each.pop("share_alike") <= 1 for each in (made["pool"], *made["subsets"]))  # newer than these
    assert (found.conclusion, again.conclusion[:11]) == ("", "The subset ")
    assert close(made, expected)


# ---------------------------------------------------------------- the notes themselves


def notes() -> list[Document]:
    documents: list[Document] = [read_scores_note(NOTES / f"{name}.parquet") for name in TABLES]
    documents += [read_document(sidecar_of(NOTES / name), SubsetNote) for name in SUBSETS]
    documents += [read_document(NOTES / "sweep" / "sweep.json", SweepNote)]
    documents += [
        read_duplicates(NOTES / "duplicates.parquet").note,
        read_document(NOTES / "diversity.json", Diversity),
    ]
    return documents


@pytest.mark.parametrize("note", notes(), ids=lambda note: note.kind)
def test_a_note_is_written_again_with_the_version_it_has(note):
    """What is copied into another note must not pretend to be newer than it is."""
    raw = json.dumps(note.to_json())
    assert type(note).model_validate_json(raw) == note
    assert note.to_json()["version"] == FIRST_VERSION
