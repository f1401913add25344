"""A subset as a file with its note: from the same data as before, and never over what it was made from."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from grace_store.base.documents import read_document
from grace_store.base.errors import DatasetChanged, ResumeMismatch, SettingError
from grace_store.base.settings import DataSpec
from grace_store.choose.export import export
from grace_store.choose.exports import EXPORTS
from grace_store.choose.select import select
from grace_store.choose.selection import Selection, SubsetNote
from grace_store.data.dataset import Dataset
from grace_store.run.extract import extract
from grace_store.scoring.score import score
from grace_store.scoring.score_table import read_scores
from tests.exported import chosen_lines, everything, scored_store
from tests.jobs import NUM_RECORDS, make_job


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    return scored_store(tmp_path_factory.mktemp("scored"))


@pytest.fixture
def small(tmp_path):
    extract(make_job(tmp_path))
    score(tmp_path / "store.zarr", out=tmp_path / "scores.parquet")
    return tmp_path


def test_what_made_a_subset_lies_beside_it_and_is_no_record(scored, tmp_path):
    subset = select(scored / "scores.parquet", count=4)
    export(subset, tmp_path / "a.jsonl")
    note = read_document(tmp_path / "a.jsonl.spec.json", SubsetNote)
    assert note.rows == tuple(subset.row.tolist())
    assert note.spec == Selection(count=4)
    assert note.scores == read_scores(scored / "scores.parquet").note
    assert (note.as_format, note.num_samples, note.num_with_value) == ("source", 4, 15)
    assert note.threshold == note.smallest_value == subset.threshold
    with Dataset.open([tmp_path]) as folder:
        assert [file.path.name for file in folder.files] == ["a.jsonl"]


def test_a_table_in_memory_selects_and_exports_too(scored, tmp_path):
    subset = select(score(scored / "store.zarr"), ratio="0.2")
    export(subset, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes().splitlines() == chosen_lines(scored, subset)
    assert subset.to_pandas().value.is_monotonic_decreasing


def test_data_that_changed_is_refused_and_nothing_is_written(small):
    subset = select(small / "scores.parquet")
    traces = small / "traces.jsonl"
    content = traces.read_text()
    traces.write_text(content.replace("part 0 of case 3.", "part 9 of case 3."))
    with pytest.raises(DatasetChanged, match="changed records: row 3"):
        export(subset, small / "a.jsonl")
    traces.rename(small / "moved.jsonl")
    with pytest.raises(DatasetChanged, match="no longer there"):
        export(subset, small / "a.jsonl")
    assert not list(small.glob("a.jsonl*"))
    (small / "moved.jsonl").write_text(content)
    export(subset, small / "a.jsonl", data=[str(small / "moved.jsonl")])
    assert len((small / "a.jsonl").read_text().splitlines()) == len(subset)


def test_a_table_of_another_plan_is_refused(small):
    subset = select(small / "scores.parquet")
    (small / "store.zarr").rename(small / "old.zarr")
    extract(make_job(small, data_request=DataSpec(min_steps=3)))
    with pytest.raises(ResumeMismatch, match="made from another plan"):
        export(subset, small / "a.jsonl")
    export(subset, small / "a.jsonl", store=str(small / "old.zarr"))
    assert len((small / "a.jsonl").read_text().splitlines()) == len(subset)
    assert len(select(small / "scores.parquet", by="id", store=str(small / "old.zarr"))) == len(subset)


@pytest.mark.parametrize("as_format", EXPORTS)
@pytest.mark.parametrize(
    ("out", "source"),
    [
        ("traces.jsonl", "traces.jsonl, which"),
        ("model/../traces.jsonl", "traces.jsonl, which"),
        ("link.jsonl", "traces.jsonl, which"),
        ("hard.jsonl", "traces.jsonl, which"),
        ("scores.parquet", "scores.parquet, the table of scores"),
        ("store.zarr", "store.zarr, the store"),
        ("store.zarr/subset", "store.zarr, the store"),
        ("linked/subset", "store.zarr, the store"),
        ("../{name}", "{name}/.*"),
    ],
)
def test_what_a_subset_is_made_from_is_never_written_over(small, out, source, as_format):
    (small / "link.jsonl").symlink_to(small / "traces.jsonl")
    (small / "hard.jsonl").hardlink_to(small / "traces.jsonl")
    (small / "linked").symlink_to(small / "store.zarr")
    before = everything(small)
    subset = select(small / "scores.parquet", count=3)
    if EXPORTS[as_format].is_of_pairs:
        subset = replace(subset, rejected=subset.ranked[::-1])
    out, source = (text.format(name=small.name) for text in (out, source))
    with pytest.raises(SettingError, match=f"would replace or change .*{source}.* choose another --out"):
        export(subset, small / out, as_format=as_format)
    assert everything(small) == before
    assert len((small / "traces.jsonl").read_text().splitlines()) == NUM_RECORDS


@pytest.mark.parametrize("as_format", ["source", "ids"])
def test_neither_is_data_that_moved_nor_where_it_was(small, as_format):
    shutil.copy(small / "traces.jsonl", small / "moved.jsonl")
    subset = select(small / "scores.parquet", count=3)
    for out in ("moved.jsonl", "traces.jsonl"):
        with pytest.raises(SettingError, match=f"would replace or change .*{out}, which"):
            export(subset, small / out, as_format=as_format, data=[str(small / "moved.jsonl")])


def test_nor_by_what_is_written_beside_a_subset(tmp_path):
    make_job(tmp_path)
    for name in ("a.jsonl.spec.json", "dataset_info.json"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        shutil.copy(tmp_path / "traces.jsonl", folder / name)
        extract(make_job(folder, data=(str(folder / name),)))
        subset = select(score(folder / "store.zarr"), count=3)
        with pytest.raises(SettingError, match=f"Writing .*/{name} would replace or change .*/{name}, which"):
            export(subset, folder / "a.jsonl", as_format="llama-factory")
        assert len((folder / name).read_text().splitlines()) == NUM_RECORDS


def test_ids_need_no_store_and_leave_its_place_alone(small):
    subset = select(small / "scores.parquet", count=3)
    shutil.rmtree(small / "store.zarr")
    with pytest.raises(SettingError, match="the store; choose another"):
        export(subset, small / "store.zarr", as_format="ids")
    export(subset, small / "ids.txt", as_format="ids")
    assert (small / "ids.txt").read_text().split() == subset.sample_id
    with pytest.raises(SettingError, match="does not end in a name"):
        export(subset, ".", as_format="ids")
