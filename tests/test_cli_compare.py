"""grace-store compare, as a user types it."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import refuses, run


def test_compare_lists_what_changed(scored, tmp_path):
    run("score", scored / "store.zarr", "--out", tmp_path / "b.parquet", "--alpha", 0)
    arguments = ("compare", scored / "scores.parquet", tmp_path / "b.parquet", "--out", tmp_path / "changes.json")
    found = json.loads(run(*arguments, "--json").output)
    said = found["numbers"]
    assert said["num_a"] == said["num_b"] == 5
    assert said["num_entered"] == said["num_left"] == 5 - said["num_both"] > 0
    assert len(found["tables"]["entered"]["rows"]) == said["num_entered"]
    assert json.loads((tmp_path / "changes.json").read_text()) == found
    shown = run(*arguments).stdout
    first, *others = (row["sample_id"] for row in found["tables"]["entered"]["rows"])
    assert first in shown
    short = run(*arguments[:3], "--show", 1).stdout
    assert first in short
    assert f"and {len(others)} more" in short
    run("report", scored / "store.zarr", "--out", tmp_path / "page.html", "--finding", tmp_path / "changes.json")
    assert first in (tmp_path / "page.html").read_text()


def test_compare_takes_tables_of_any_measures_and_names_them(scored, tmp_path):
    several = ("--measure", "grace=0.5", "--measure", "loss:lowest")
    for name, measures in (("loss", ("--measure", "loss")), ("several", several)):
        run("score", scored / "store.zarr", "--out", tmp_path / f"{name}.parquet", *measures)
    found = json.loads(run("compare", tmp_path / "loss.parquet", tmp_path / "several.parquet", "--json").stdout)
    best = []
    for name in ("loss", "several"):
        table = pq.read_table(tmp_path / f"{name}.parquet").to_pylist()
        ranked = sorted(table, key=lambda row: (-row["value"], row["row"]))
        best.append({row["sample_id"] for row in ranked[:5]})
    assert {row["sample_id"] for row in found["tables"]["entered"]["rows"]} == best[1] - best[0]
    assert {row["sample_id"] for row in found["tables"]["left"]["rows"]} == best[0] - best[1]
    said = ["loss.parquet was scored by loss:lowest", "several.parquet was scored by grace=0.5 + loss:lowest"]
    assert found["notes"][1:] == said


def test_compare_writes_over_neither_side_and_shows_ids_as_they_stand(scored, tmp_path):
    table = pq.read_table(scored / "scores.parquet")
    ids = pa.array([f"[bold]{text}[/nothing]\x1b[2J" for text in table["sample_id"].to_pylist()])
    pq.write_table(table.set_column(0, "sample_id", ids), tmp_path / "a.parquet")
    run("score", scored / "store.zarr", "--out", tmp_path / "b.parquet", "--alpha", 0)
    before = (tmp_path / "b.parquet").read_bytes()
    (tmp_path / "link.json").symlink_to(tmp_path / "b.parquet")
    told = run("compare", tmp_path / "a.parquet", tmp_path / "b.parquet", "--out", tmp_path / "link.json", code=1)
    assert "Nothing was written." in told.stderr
    assert (tmp_path / "b.parquet").read_bytes() == before
    shown = "".join(run("compare", tmp_path / "a.parquet", tmp_path / "b.parquet").stdout.split())
    assert "[bold]" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("compare {scores} {nothing}", 1, "does not exist"),
        ("compare {scores} {data}", 1, "has no traces.jsonl.spec.json beside it"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(scored, tmp_path, arguments, code, message):
    refuses(scored, tmp_path, arguments, code, message)
