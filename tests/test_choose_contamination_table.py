"""The table of benchmark items in samples: what it concludes, and files that are none."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace_store.base.documents import METADATA_KEY
from grace_store.base.errors import DataError
from grace_store.choose.contamination_table import SCHEMA, AgainstTable, read_against
from grace_store.pages.findings import against_section
from grace_store.scoring.notes import AgainstNote, AgainstSpec, BenchmarkNote
from tests.example_notes import BENCHMARK, DUPLICATES, MADE_FROM

WHAT = {"sample_id": "s", "benchmark": "a/test.jsonl", "item_id": "q", "part": "question"}
ROW = WHAT | {"where": "prompt", "passage": "p", "item_text": "t"}


def table_of(*matches: tuple[int, int, str, float], num_samples: int = 200, **more: int) -> AgainstTable:
    """A table of matches, each a row, an item, a kind and a strength."""
    names = ("row", "item_row", "kind", "strength")
    rows = [ROW | dict(zip(names, match, strict=True)) for match in matches]
    copies = [match for match in matches if match[2] != "template"]
    counts = {"num_items": 20, "num_found": len({each[1] for each in copies}), "num_set_aside": 0, "num_templates": 0}
    benchmark = BENCHMARK.model_copy(update={"name": "a/test.jsonl"} | counts | more)
    note = AgainstNote(
        **MADE_FROM,
        spec=AgainstSpec(ngram=5, share=0.3, cosine=0.95),
        benchmarks=(benchmark,),
        num_samples=num_samples,
        num_contaminated=len({each[0] for each in copies}),
    )
    return AgainstTable(pa.Table.from_pylist(rows, schema=SCHEMA), note)


MATCHES = [(3, 1, "ngram", 0.5), (3, 2, "vector", 0.97), (7, 1, "exact", 1.0), (9, 4, "template", 0.9)]


def test_templates_are_no_contamination():
    found = table_of(*MATCHES, num_templates=1)
    assert found.contaminated.tolist() == [3, 7]
    assert found.counts == {"exact": 1, "ngram": 1, "vector": 1, "template": 1}
    assert found.conclusion == (
        "2 of 200 samples (1 %) have items of a benchmark in the text or close to it: 2 of 20 items of test.jsonl. "
        "`select --exclude-contaminated` never chooses them. 1 more sample has the words of an item with other "
        "numbers, which is another question and does not count. Only the text of test.jsonl was compared; for vectors, "
        "give a store with a signal of it."
    )


def test_nothing_found_is_said_and_what_could_not_be_looked_for():
    told = table_of(num_set_aside=3).conclusion
    assert told.startswith("None of 200 samples has one of 20 items of test.jsonl in it. Only the text")
    assert told.endswith("3 records without a question could not be looked for.")


def test_the_worst_of_each_item_comes_first():
    worst = table_of(*MATCHES).worst(5)
    assert [(row["item_row"], row["kind"]) for row in worst] == [(1, "exact"), (2, "vector"), (4, "template")]
    assert table_of(*MATCHES).worst(1, "a/test.jsonl")[0]["row"] == 7
    assert table_of(*MATCHES).worst(5, "another") == []


def test_it_is_read_as_it_was_written(tmp_path):
    written = table_of(*MATCHES)
    written.write(tmp_path / "a.parquet")
    found = read_against(tmp_path / "a.parquet")
    assert found.note == written.note
    assert found.table.equals(written.table)
    assert found.table.schema.metadata[METADATA_KEY]
    assert "4 rows, 2 of 200 samples contaminated" in repr(found)


def test_the_report_shows_benchmarks_and_matches_side_by_side():
    opening, benchmarks, matches = against_section(table_of(*MATCHES)).blocks
    assert opening["text"].startswith("2 of 200 samples")
    assert benchmarks["rows"] == [["a/test.jsonl", 20, 2, 4, 0, "texts"]]
    assert [row[0] for row in matches["rows"]] == ["exact", "vector", "template"]
    assert matches["rows"][0][1:] == [1.0, "s", "prompt", "p", "q", "t"]


def spoil(path, change) -> None:
    table = pq.read_table(path)
    pq.write_table(change(table), path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.slice(0, 1), "does not hold the 2 contaminated samples"),
        (lambda table: table.drop_columns("kind"), "no column kind"),
        (lambda table: table.set_column(1, "row", pa.array([None, 3, 7, 9], pa.int64())), "without a sample"),
        (lambda table: table.set_column(5, "kind", pa.array(["copy"] * 4)), "kind 'copy'"),
        (lambda table: table.set_column(1, "row", pa.array(["x"] * 4)), "column row cannot be read"),
        (lambda table: table.replace_schema_metadata({}), "has no note"),
    ],
)
def test_a_table_that_was_changed_is_refused(tmp_path, change, words):
    path = tmp_path / "a.parquet"
    table_of(*MATCHES).write(path)
    spoil(path, change)
    with pytest.raises(DataError, match=words):
        read_against(path)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "d.parquet"
    with pytest.raises(DataError, match=r"does not exist; `grace-store contamination` makes it"):
        read_against(path)
    note = DUPLICATES.to_json()
    pq.write_table(pa.table({"row": [1]}).replace_schema_metadata({METADATA_KEY: str(note).encode()}), path)
    with pytest.raises(DataError, match="damaged note"):
        read_against(path)


def test_several_benchmarks_are_told_apart():
    found = table_of(*MATCHES)
    more = BenchmarkNote(**found.note.benchmarks[0].model_dump() | {"name": "mmlu.zarr", "num_found": 0})
    both = AgainstTable(found.table, found.note.model_copy(update={"benchmarks": (*found.note.benchmarks, more)}))
    assert "2 of 20 items of test.jsonl and 0 of 20 items of mmlu.zarr." in both.conclusion
