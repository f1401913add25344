"""Two subsets side by side: what they share, what entered, what left, and why."""

from __future__ import annotations

import pytest

from grace_store.base.errors import DataError
from grace_store.choose.compare import compare
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.score_table import read_scores
from grace_store.values.methods.method import ScoreSpec
from tests.grouped_stores import grouped_store
from tests.scored_stores import known_store


@pytest.fixture
def two(tmp_path):
    """Tables by two settings of one store, and a subset of each."""
    store = known_store(tmp_path, ("early", "late"), set_aside={"late": [0]}).store
    for name, spec in (("a", ScoreSpec(alpha=1)), ("b", ScoreSpec(alpha=0, history="window:1"))):
        score(
            store, ScoreRequest(spec=spec, signals={"a": "early", "b": "late"}[name]), out=tmp_path / f"{name}.parquet"
        )
        export(select(tmp_path / f"{name}.parquet", count=5), tmp_path / f"{name}.txt", as_format="ids")
    return tmp_path


def test_two_subsets_side_by_side(two):
    found = compare(two / "a.txt", two / "b.txt")
    a, b = (set((two / f"{name}.txt").read_text().split()) for name in "ab")
    assert (found.numbers["num_a"], found.numbers["num_b"], found.numbers["num_both"]) == (5, 5, len(a & b))
    assert found.numbers["jaccard"] == len(a & b) / len(a | b)
    assert {change["sample_id"] for change in found.tables["entered"].rows} == b - a
    assert {change["sample_id"] for change in found.tables["left"].rows} == a - b
    tables = {name: read_scores(two / f"{name}.parquet") for name in "ab"}
    for change in [*found.tables["entered"].rows, *found.tables["left"].rows]:
        for name, value, place in (
            ("a", change["value_a"], change["rank_a"]),
            ("b", change["value_b"], change["rank_b"]),
        ):
            table = tables[name]
            if change["row"] not in table.row:
                assert (value, place) == (None, None)
                continue
            assert value == table.value[table.row.tolist().index(change["row"])]
            assert place == 1 + int((table.value > value).sum())
    assert [change["rank_b"] for change in found.tables["entered"].rows] == sorted(
        change["rank_b"] for change in found.tables["entered"].rows
    )


def test_tables_that_moved_along_with_their_subsets_are_found(two, tmp_path):
    before = compare(two / "a.txt", two / "b.txt")
    (tmp_path / "moved").mkdir()
    for path in two.glob("[ab].*"):
        path.rename(tmp_path / "moved" / path.name)
    assert compare(tmp_path / "moved/a.txt", tmp_path / "moved/b.txt").tables == before.tables


def test_the_reason_is_told(two):
    found = compare(two / "a.parquet", two / "b.parquet", ratio=1)
    assert [(change["sample_id"], change["why"]) for change in found.tables["left"].rows] == [
        ("s0", "not in the other table")
    ]
    assert found.tables["entered"].rows == ()
    nested = compare(two / "a.parquet", two / "a.txt", ratio=1)
    assert {change["why"] for change in nested.tables["left"].rows} == {"the other keeps 5"}
    one_step = known_store(two / "steps", ("base",)).store
    score(one_step, out=two / "x.parquet")
    score(one_step, ScoreSpec(without_answer=True), out=two / "y.parquet")
    found = compare(two / "x.parquet", two / "y.parquet", ratio=1)
    assert {change["why"] for change in found.tables["left"].rows} == {"no value in the other table (no_value)"}
    assert {change["num_steps"] for change in found.tables["left"].rows} == {1}
    moved = compare(two / "x.parquet", two / "y.parquet", ratio="0.2")
    assert all(
        "from rank" in change["why"] or "no value" in change["why"]
        for change in moved.tables["left"].rows + moved.tables["entered"].rows
    )


def test_other_plans_are_matched_by_id_and_other_choices_are_noted(two, tmp_path):
    other = known_store(tmp_path / "other", ("early",), num_steps=[3, 1, 9, 2, 5]).store
    score(other, out=two / "c.parquet")
    found = compare(two / "a.parquet", two / "c.parquet", ratio=1)
    assert found.numbers["num_both"] == 5
    assert found.notes[1:] == (
        "the tables are of different plans: samples are matched by their ids",
        "a.parquet was scored by grace",
        "c.parquet was scored by grace",
    )
    subset = select(two / "a.parquet", Selection(by="num_steps", control=["num_steps"]))
    export(subset, two / "d.txt", as_format="ids")
    notes = compare(two / "a.txt", two / "d.txt").notes
    assert ["num_steps taken out" in notes[3], "strata of num_steps" in notes[4]] == [True, True]
    export(select(two / "a.parquet", Selection(by="num_steps"), count=5), two / "e.txt", as_format="ids")
    found = compare(two / "a.txt", two / "e.txt")
    assert {change["why"] for change in found.tables["left"].rows} == {"strata of num_steps"}
    assert {change["why"] for change in found.tables["entered"].rows} == {"strata of num_steps"}


def test_a_controlled_subset_is_compared_by_what_it_was_ranked_by(two):
    subset = select(two / "a.parquet", Selection(control=["length"]), count=5)
    export(subset, two / "d.txt", as_format="ids")
    found = compare(two / "a.txt", two / "d.txt")
    assert found.tables["entered"].rows
    for change in found.tables["entered"].rows:
        assert change["rank_b"] <= 5 < change["rank_a"]
        assert change["value_b"] >= subset.threshold
        assert "from rank" in change["why"]


def test_another_trace_of_its_question_is_no_matter_of_rank(tmp_path):
    """The best trace of each question against the best of all: what left had a rank that was good enough."""
    store = grouped_store(tmp_path)
    score(store, out=tmp_path / "scores.parquet")
    best = select(tmp_path / "scores.parquet", Selection(per_group=1))
    export(best, tmp_path / "best.txt", as_format="ids")
    export(select(tmp_path / "scores.parquet", count=len(best)), tmp_path / "all.txt", as_format="ids")
    found = compare(tmp_path / "all.txt", tmp_path / "best.txt")
    assert min(change["rank_b"] for change in found.tables["left"].rows) <= len(best)
    assert {change["why"] for change in found.tables["left"].rows} == {"at most 1 of the traces of a question"}
    assert "Reason for 4: at most 1 of the traces of a question" in found.conclusion
    pairs = select(tmp_path / "scores.parquet", Selection(margin=0.0))
    export(pairs, tmp_path / "pairs.jsonl", as_format="trl-pairs")
    left = compare(tmp_path / "best.txt", tmp_path / "pairs.jsonl").tables["left"]
    assert {change["why"] for change in left} == {"pairs of the best and the worst trace of a question"}


def test_what_cannot_be_compared_says_why(two):
    (two / "plain.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"plain\.jsonl has no plain\.jsonl\.spec\.json beside it"):
        compare(two / "a.txt", two / "plain.jsonl")
    with pytest.raises(DataError, match="does not exist"):
        compare(two / "a.txt", two / "none.parquet")
    score(two / "known.zarr", ScoreRequest(spec=ScoreSpec(alpha=0.2), signals="early"), out=two / "a.parquet")
    with pytest.raises(DataError, match="now holds other scores than those"):
        compare(two / "a.txt", two / "b.txt")
    (two / "a.parquet").unlink()
    with pytest.raises(DataError, match="this file no longer exists"):
        compare(two / "a.txt", two / "b.txt")
    export(select(score(two / "known.zarr", ScoreRequest(signals="early"))), two / "m.txt", as_format="ids")
    with pytest.raises(DataError, match="from a table in memory"):
        compare(two / "m.txt", two / "b.txt")
