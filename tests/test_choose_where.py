"""--where and --by in every command that has them: only what is kept counts, and every note says what was asked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import grace_store as gs
from grace_store.base.documents import document_metadata, read_document
from grace_store.base.errors import SettingError
from grace_store.base.files import sidecar_of
from grace_store.base.finding import WhereNote
from grace_store.choose.selection import SubsetNote
from grace_store.pool.filter_expression import FilterExpression
from grace_store.pool.sample_fields import SampleFields
from grace_store.scoring.score import replay
from grace_store.scoring.score_table import read_scores, read_scores_note
from grace_store.scoring.sweep import sweep
from grace_store.store.opened import Store
from grace_store.values.grid import Grid, SweepSpec
from grace_store.values.methods.method import ScoreSpec
from tests.commands import run, run_json
from tests.field_stores import RECORDS, make_field_store

WHERE = "is_correct and source in ('math', 'code')"
ROWS = [i for i, record in enumerate(RECORDS) if record["is_correct"] and record["source"] in ("math", "code")]
NOTE = WhereNote(sql=WHERE, num_samples=len(RECORDS), num_kept=len(ROWS))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("where")
    store = make_field_store(folder)
    gs.score(store, out=folder / "scores.parquet")
    return store


@pytest.fixture(scope="module")
def scores(store: Store) -> Path:
    return Path(store.location).parent / "scores.parquet"


# ---------------------------------------------------------------- score, replay, sweep


@pytest.mark.parametrize("spec", [gs.ScoreSpec(alpha=0.3), ScoreSpec(measure=("tokens",))], ids=lambda s: s.method)
def test_a_filtered_table_has_the_rows_that_are_kept_with_their_values(store: Store, spec) -> None:
    whole, found = gs.score(store, spec), gs.score(store, gs.ScoreRequest(spec=spec, where=WHERE))
    assert found.row.tolist() == ROWS
    assert found.value.tolist() == whole.value[ROWS].tolist()
    assert found.note.where == NOTE
    assert "where" not in whole.note.to_json()


def test_a_filtered_table_is_made_again_from_its_note(store: Store, tmp_path: Path) -> None:
    gs.score(store, gs.ScoreRequest(where=WHERE), out=tmp_path / "a.parquet")
    replay(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_note_with_a_hostile_filter_does_no_harm_when_it_is_replayed(store: Store, tmp_path: Path) -> None:
    """A table may be a stranger's: the filter in its note is worked out as strictly as one that is given."""
    table = gs.score(store)
    hostile = table.note.model_copy(update={"where": NOTE.model_copy(update={"sql": "load_extension('x')"})})
    pq.write_table(table.table.replace_schema_metadata(document_metadata(hostile)), tmp_path / "theirs.parquet")
    with pytest.raises(SettingError, match="the function load_extension is not allowed"):
        replay(tmp_path / "theirs.parquet", tmp_path / "out.parquet")


def test_values_are_not_known_before_scoring(store: Store) -> None:
    with pytest.raises(SettingError, match="keeps none of the 48 samples: value is 0, -1, -2"):
        gs.score(store, gs.ScoreRequest(where="value > 0"))  # a field of the records, here


def test_texts_that_are_compared_with_numbers_are_counted_over_all_samples(store: Store, monkeypatch) -> None:
    monkeypatch.setattr("grace_store.pool.sample_fields.ROWS_AT_ONCE", 7)
    refused = f"compares source with a number, but source is a text that is not a number in {len(RECORDS)} samples"
    with pytest.raises(SettingError, match=refused):
        gs.score(store, gs.ScoreRequest(where="source >= 3"))


def test_such_texts_are_counted_once_where_right_and_wrong_are_asked_for(store: Store) -> None:
    with pytest.raises(SettingError, match=f"not a number in {len(RECORDS)} samples"):
        gs.Pool(store).fields().right("source >= 3")


MIXED = [1, 1.0, True, "1", "a", None, 0, 1, "a"] * 100


@pytest.mark.parametrize("condition", ["typeof(x) = 'text'", "typeof(x) = 'real'", "x = 'a'", "x is null", "x"])
def test_equal_values_are_tried_once_and_unlike_ones_apart(condition: str, monkeypatch) -> None:
    column = {"x": lambda start, stop: MIXED[start:stop]}
    fields = SampleFields(column, len(MIXED), lambda: pytest.fail("no record is needed"))
    keeps, tried = FilterExpression.keeps, []

    def counted(self: FilterExpression, rows: list[list[object]], **options: bool) -> list[int]:
        tried.append(len(rows))
        return keeps(self, rows, **options)

    monkeypatch.setattr(FilterExpression, "keeps", counted)
    is_true, is_false, _ = fields.truth(condition, "--right")
    monkeypatch.undo()
    assert tried == [7, 7]
    for found, negated in ((is_true, False), (is_false, True)):
        alone = [bool(FilterExpression(condition, ["x"]).keeps([[each]], negated=negated)) for each in MIXED[:9]]
        assert found.tolist() == alone * 100


def test_a_sweep_compares_settings_over_what_is_kept(store: Store, tmp_path: Path) -> None:
    spec = SweepSpec(grid=(Grid(alpha="0.1,0.9"),))
    found = sweep(gs.Pool(store, where=WHERE), spec, out=tmp_path / "sweep")
    assert (found.num_samples, found.note.where) == (len(ROWS), NOTE)
    whole = gs.score(store, gs.ScoreSpec(alpha=0.9))
    assert found.value(1) == pytest.approx(whole.value[ROWS])
    assert all("--where" in row["command"] and "source in" in row["command"] for row in found.summary)


# ---------------------------------------------------------------- select, audit


def test_a_ratio_is_a_share_of_what_is_kept(scores: Path) -> None:
    subset = gs.select(scores, gs.Selection(where=WHERE), ratio="0.5")
    value = read_scores(scores).value
    best = sorted(ROWS, key=lambda row: -value[row])[: -(-len(ROWS) // 2)]
    assert subset.row.tolist() == sorted(best)
    assert (subset.num_with_value, subset.spec.where) == (len(ROWS), NOTE)
    assert not subset.spec.is_by_value
    assert [(each.group, each.pool, each.chosen) for each in subset.groups] == [
        ("kept by --where", len(ROWS), len(best)),
        ("left out by it", len(RECORDS) - len(ROWS), 0),
    ]
    one = gs.select(scores, gs.Selection(where=WHERE, per_group="1"))
    assert [each.pool for each in one.groups] == [each.pool for each in subset.groups]


def test_a_filter_may_ask_for_what_the_table_knows(scores: Path) -> None:
    table = read_scores(scores)
    middle = float(np.median(table.value))
    where = f"value >= {middle!r} and flags not like '%restates%' and num_tokens > 0"
    subset = gs.select(scores, gs.Selection(where=where, by="source,num_steps"), ratio=1)
    kept = (table.value >= middle) & ~table.is_flagged(["restates_question"])
    assert subset.row.tolist() == np.flatnonzero(kept).tolist()
    assert sum(each.pool for each in subset.groups) == len(subset)
    assert {each.group for each in subset.groups} == {
        f"{RECORDS[row]['source']}, {len(RECORDS[row]['steps'])}" for row in subset.row.tolist()
    }
    assert all(each.share == 1 for each in subset.groups)


def test_crossed_strata_keep_their_shares(scores: Path) -> None:
    subset = gs.select(scores, gs.Selection(by="source,tags"), ratio="0.25")
    assert len(subset.groups) == 6
    assert all((each.pool, each.chosen) == (8, 2) for each in subset.groups)
    assert subset.spec.by == "source,tags"


def test_step_scores_of_a_filtered_subset_are_its_own(scores: Path, tmp_path: Path) -> None:
    subset = gs.select(gs.read_scores(scores, steps=False), gs.Selection(where="num_steps = 5"), count=3)
    gs.export(subset, tmp_path / "steps.jsonl", as_format="steps")
    table = read_scores(scores)
    for line in (tmp_path / "steps.jsonl").read_text().splitlines():
        record = json.loads(line)
        place = table.sample_id.index(record["id"])
        scored = table.flat("step_score")[table.offsets[place] : table.offsets[place + 1]]
        assert record["grace_store"]["step_score"] == pytest.approx(scored.tolist())
    note = read_document(sidecar_of(tmp_path / "steps.jsonl"), SubsetNote)
    assert note.spec.where == WhereNote(sql="num_steps = 5", num_samples=48, num_kept=12)


def test_an_audit_is_of_what_is_kept(scores: Path) -> None:
    table = read_scores(scores)
    found, brute = gs.audit(scores, where=WHERE), gs.audit(table.among(np.array(ROWS)))
    assert found.numbers["num_samples"] == len(ROWS)
    assert found.pool.where == NOTE
    rows = (each.tables["lengths"].row(length="num_steps") for each in (found, brute))
    assert next(rows) == next(rows)


# ---------------------------------------------------------------- duplicates, diversity, stability, neighbours


def test_points_are_those_that_are_kept(store: Store, scores: Path) -> None:
    found = gs.duplicates(gs.Pool.of(store, where=WHERE))
    assert (found.row.tolist(), found.note.where) == (ROWS, NOTE)
    valued = gs.Pool.of(store, where=f"{WHERE} and value is not null")
    some = gs.duplicates(valued, scores=scores, subset=np.arange(20))
    assert some.row.tolist() == [row for row in ROWS if row < 20]
    near = gs.neighbours(gs.Pool.of(store, where=WHERE), "t2", count=5)
    assert set(near.tables["neighbours"].column("row")) <= set(ROWS)


def test_diversity_is_of_the_kept_pool_and_of_what_subsets_have_of_it(store: Store, scores: Path) -> None:
    half = gs.select(scores, ratio="0.5")
    found = gs.diversity(
        gs.Pool(store, where=WHERE), [half], scores=scores, ratio=("0.5",), settings=gs.DiversitySettings(random=5)
    )
    both = len(set(half.row.tolist()) & set(ROWS))
    assert found.tables["subsets"].column("num_samples") == [len(ROWS), both, -(-len(ROWS) // 2)]
    assert found.pool.where == NOTE
    with pytest.raises(SettingError, match="keeps no sample of subset 1"):
        gs.diversity(gs.Pool(store, where="row = 0"), [gs.select(scores, count=1)])


def test_stability_is_of_what_is_kept(store: Store) -> None:
    found = gs.stability(gs.Pool.of(store, where=WHERE), gs.StabilitySettings(draws=3))
    assert (found.numbers["num_samples"], found.pool.where) == (len(ROWS), NOTE)
    assert set(found.tables["changes"].column("num_samples")) == {len(ROWS), None}


# ---------------------------------------------------------------- as users type it


def test_commands_say_what_was_kept_and_what_a_share_is_of(store: Store, scores: Path, tmp_path: Path) -> None:
    kept = f"{len(ROWS)} of 48 samples; shares are of these {len(ROWS)}"
    out = tmp_path / "s.parquet"
    assert kept in run("score", store.location, "--out", out, "--where", WHERE).stdout
    assert read_scores_note(out).where == NOTE
    said = run("select", scores, "--where", WHERE, "--by", "source,tags", "--out", tmp_path / "x.jsonl").stdout
    assert kept in said
    table = [line.split() for line in said.splitlines()]
    assert ["source,tags", "pool", "chosen", "share", "by", "value"] in table
    assert any(line[0] == "math," and line[-2] == "%" for line in table if line)
    assert kept in run("duplicates", store.location, "--where", WHERE, "--out", tmp_path / "d.parquet").stdout
    assert kept in run("stability", store.location, "--where", WHERE, "--draws", 3).stdout
    assert kept in " ".join(run("sweep", store.location, "--where", WHERE, "--out", tmp_path / "sweep").stdout.split())
    assert kept in " ".join(run("diversity", store.location, "--scores", scores, "--where", WHERE).stdout.split())
    assert f"where {WHERE[:20]}" in run("audit", scores, "--where", WHERE).stdout
    said = run("audit", scores, "--by", "source").stdout
    assert ["source", "samples", "best", "0.2", "share", "controlled"] in [line.split() for line in said.splitlines()]
    assert "source" in said.splitlines()[0]
    assert "t" in run("inspect", store.location, "t2", "--where", WHERE, "--neighbours", 3).stdout


def test_results_for_machines_have_filter_and_groups(scores: Path, tmp_path: Path) -> None:
    found = run_json("select", scores, "--where", WHERE, "--by", "source", "--out", tmp_path / "x.jsonl")
    assert found["where"] == NOTE.model_dump()
    assert found["num_groups"] == len(found["groups"]) == 2
    assert sum(each["chosen"] for each in found["groups"]) == found["num_samples"]
    assert set(found["groups"][0]) == {"group", "pool", "chosen", "by_value", "share"}
    plain = run_json("select", scores, "--out", tmp_path / "y.jsonl")
    assert not {"where", "groups"} & set(plain)


def test_mistakes_are_told_in_a_sentence(store: Store, scores: Path, tmp_path: Path) -> None:
    wrong = run("select", scores, "--where", "is_corect", "--out", tmp_path / "x.jsonl", code=1).stderr
    assert "has a field 'is_corect'. Did you mean is_correct?" in " ".join(wrong.split())
    wrong = run("score", store.location, "--where", 'source = "math"', "--out", tmp_path / "x.parquet", code=1).stderr
    assert "a text stands in single quotes" in " ".join(wrong.split())
    wrong = run("report", store.location, "--by", "source,lvl", "--out", tmp_path / "x.html", code=1).stderr
    assert "has a field 'lvl'" in " ".join(wrong.split())
    assert not list(tmp_path.iterdir())


def test_two_subsets_are_compared_with_their_filters_named(scores: Path, tmp_path: Path) -> None:
    for name, where in (("a.txt", None), ("b.txt", WHERE)):
        gs.export(gs.select(scores, gs.Selection(where=where)), tmp_path / name, as_format="ids")
    found = gs.compare(tmp_path / "a.txt", tmp_path / "b.txt")
    assert any(f"b.txt was chosen with a filter ({WHERE})" in note for note in found.notes)
