"""Two subsets side by side: what they share, what entered, what left, and why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from grace_store.artifacts.notes import ChosenDiversity, SubsetNote, SubsetSpec, WhereNote
from grace_store.artifacts.score_table import read_scores
from grace_store.base.documents import read_document, write_document
from grace_store.base.errors import DataError
from grace_store.base.files import sidecar_of
from grace_store.curate.compare import compare, rules_in_words
from grace_store.curate.export import ExportRequest, export
from grace_store.curate.score import ScoreRequest, score
from grace_store.curate.select import RankRequest, select
from grace_store.values.score_spec import ScoreSpec
from tests.example_notes import AGAINST
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
        export(select(tmp_path / f"{name}.parquet", count=5), tmp_path / f"{name}.txt", ExportRequest(as_format="ids"))
    return tmp_path


def test_two_subsets_side_by_side(two):
    found = compare(two / "a.txt", two / "b.txt")
    a, b = (set((two / f"{name}.txt").read_text().split()) for name in "ab")
    assert (found.num_a, found.num_b, found.num_both) == (5, 5, len(a & b))
    assert found.jaccard == len(a & b) / len(a | b)
    assert {change.sample_id for change in found.entered} == b - a
    assert {change.sample_id for change in found.left} == a - b
    tables = {name: read_scores(two / f"{name}.parquet") for name in "ab"}
    for change in [*found.entered, *found.left]:
        for name, value, place in (("a", change.value_a, change.rank_a), ("b", change.value_b, change.rank_b)):
            table = tables[name]
            if change.row not in table.row:
                assert (value, place) == (None, None)
                continue
            assert value == table.value[table.row.tolist().index(change.row)]
            assert place == 1 + int((table.value > value).sum())
    assert [change.rank_b for change in found.entered] == sorted(change.rank_b for change in found.entered)


def test_tables_that_moved_along_with_their_subsets_are_found(two, tmp_path):
    before = compare(two / "a.txt", two / "b.txt")
    (tmp_path / "moved").mkdir()
    for path in two.glob("[ab].*"):
        path.rename(tmp_path / "moved" / path.name)
    assert compare(tmp_path / "moved/a.txt", tmp_path / "moved/b.txt") == before


def test_the_reason_is_told(two):
    found = compare(two / "a.parquet", two / "b.parquet", ratio=1)
    assert [(change.sample_id, change.why) for change in found.left] == [("s0", "not among the other table's samples")]
    assert found.entered == []
    nested = compare(two / "a.parquet", two / "a.txt", ratio=1)
    assert {change.why for change in nested.left} == {"the other keeps 5"}
    one_step = known_store(two / "steps", ("base",)).store
    score(one_step, out=two / "x.parquet")
    score(one_step, ScoreSpec(without_answer=True), out=two / "y.parquet")
    found = compare(two / "x.parquet", two / "y.parquet", ratio=1)
    assert {change.why for change in found.left} == {"no value in the other table (no_value)"}
    assert {change.num_steps for change in found.left} == {1}
    moved = compare(two / "x.parquet", two / "y.parquet", ratio="0.2")
    assert all("from rank" in change.why or "no value" in change.why for change in moved.left + moved.entered)


def test_other_plans_are_matched_by_id_and_other_choices_are_noted(two, tmp_path):
    other = known_store(tmp_path / "other", ("early",), num_steps=[3, 1, 9, 2, 5]).store
    score(other, out=two / "c.parquet")
    found = compare(two / "a.parquet", two / "c.parquet", ratio=1)
    assert found.num_both == 5
    assert found.notes == ["the tables are of different plans: samples are matched by their ids"]
    subset = select(two / "a.parquet", RankRequest(by="num_steps", control=["num_steps"]))
    export(subset, two / "d.txt", ExportRequest(as_format="ids"))
    notes = compare(two / "a.txt", two / "d.txt").notes
    assert ["num_steps taken out" in notes[0], "strata of num_steps" in notes[1]] == [True, True]
    export(
        select(two / "a.parquet", RankRequest(by="num_steps"), count=5), two / "e.txt", ExportRequest(as_format="ids")
    )
    found = compare(two / "a.txt", two / "e.txt")
    assert {change.why for change in found.left} == {"strata of num_steps"}
    assert {change.why for change in found.entered} == {"the other keeps 5"}


def test_a_controlled_subset_is_compared_by_what_it_was_ranked_by(two):
    subset = select(two / "a.parquet", RankRequest(control=["length"]), count=5)
    export(subset, two / "d.txt", ExportRequest(as_format="ids"))
    found = compare(two / "a.txt", two / "d.txt")
    assert found.entered
    for change in found.entered:
        assert change.rank_b <= 5 < change.rank_a
        assert change.value_b >= subset.threshold
        assert "from rank" in change.why


SAID: dict[str, tuple[Any, str]] = {
    "ratio": ("0.4", r"a\.txt is cut by count 5, b\.txt by ratio 0\.4$"),
    "count": (4, r"a\.txt is cut by count 5, b\.txt by count 4$"),
    "threshold": (0.25, r"a\.txt is cut by count 5, b\.txt by count 5 and threshold 0\.25$"),
    "by": ("kind", "chosen with strata of kind;"),
    "exclude_flagged": (("cut_off",), "chosen without samples flagged cut_off$"),
    "exclude_contaminated": (AGAINST, r"chosen with samples with benchmark items left out \(test\.jsonl\);"),
    "control": (("num_steps",), "chosen with num_steps taken out of the values"),
    "diversity": (ChosenDiversity(method="mmr", weight=0.3), r"chosen with diversity by mmr \(weight 0\.3\);"),
    "balanced": ("capability", "ranked in turns over its capabilities"),
    "where": (WhereNote(sql="level > 2", num_samples=9, num_kept=5), r"chosen with a filter \(level > 2\);"),
    "per_group": ("2", "chosen with at most 2 of the traces of a question;"),
    "margin": (
        0.5,
        r"chosen with pairs of the best and the worst trace of a question \(differing by 0\.5 or more\);",
    ),
    "group_by": ("task", "chosen with questions told apart by task;"),
}
"""Of every field of a spec: a value, and how it is told."""
BY_RANK = {"ratio", "count", "threshold", "exclude_flagged", "control", "balanced"}
"""Fields that leave the choice to ranks as they are shown."""


def test_every_field_of_a_spec_is_looked_at():
    assert SAID.keys() == SubsetSpec.model_fields.keys()


@pytest.mark.parametrize("field", SAID)
def test_a_field_that_differs_is_told_and_is_the_reason(two, field):
    """The second subset is another one of the same table, and its note says that the field decided."""
    value, told = SAID[field]
    export(select(two / "a.parquet", count=5), two / "b.txt", ExportRequest(as_format="ids"))
    note = read_document(sidecar_of(two / "b.txt"), SubsetNote)
    rows = (*note.rows[1:], max(set(range(13)) - set(note.rows)))
    size = {"count": None} if field == "ratio" else {}
    other = note.model_copy(
        update={"spec": note.spec.model_copy(update={field: value, **size}), "rows": tuple(sorted(rows))}
    )
    before = compare(two / "a.txt", two / "a.txt").notes
    write_document(sidecar_of(two / "b.txt"), other)
    found = compare(two / "a.txt", two / "b.txt")
    (note_of_it,) = set(found.notes) - set(before)
    assert re.search(told, note_of_it)
    (left,) = found.left
    if field in BY_RANK:
        assert left.by_rank or left.why == "the other keeps 5"
    else:
        assert f"chosen with {left.why}" in note_of_it


def test_a_field_that_has_no_words_of_its_own_is_told_by_its_name():
    class LaterSpec(SubsetSpec):
        season: str | None = None

    assert rules_in_words(LaterSpec(count=3, by="kind", season="winter")) == ["strata of kind", "season winter"]


def test_another_trace_of_its_question_is_no_matter_of_rank(tmp_path):
    """The best trace of each question against the best of all: what left had a rank that was good enough."""
    store = grouped_store(tmp_path)
    score(store, out=tmp_path / "scores.parquet")
    best = select(tmp_path / "scores.parquet", RankRequest(per_group=1))
    export(best, tmp_path / "best.txt", ExportRequest(as_format="ids"))
    export(select(tmp_path / "scores.parquet", count=len(best)), tmp_path / "all.txt", ExportRequest(as_format="ids"))
    found = compare(tmp_path / "all.txt", tmp_path / "best.txt")
    assert min(change.rank_b for change in found.left) <= len(best)
    assert {change.why for change in found.left} == {"at most 1 of the traces of a question"}
    assert "Reasons for" in found.conclusion
    assert f"at most 1 of the traces of a question ({len(found.left)})" in found.conclusion
    pairs = select(tmp_path / "scores.parquet", RankRequest(margin=0.0))
    export(pairs, tmp_path / "pairs.jsonl", ExportRequest(as_format="trl-pairs"))
    left = compare(tmp_path / "best.txt", tmp_path / "pairs.jsonl").left
    assert {change.why for change in left} == {"pairs of the best and the worst trace of a question"}


def test_what_cannot_be_compared_says_why(two):
    (two / "plain.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"plain\.jsonl has no plain\.jsonl\.spec\.json beside it"):
        compare(two / "a.txt", two / "plain.jsonl")
    with pytest.raises(DataError, match="does not exist"):
        compare(two / "a.txt", two / "none.parquet")
    score(two / "known.zarr", ScoreRequest(spec=ScoreSpec(alpha=0.2), signals="early"), out=two / "a.parquet")
    with pytest.raises(DataError, match="was overwritten by other scores"):
        compare(two / "a.txt", two / "b.txt")
    (two / "a.parquet").unlink()
    with pytest.raises(DataError, match="is no longer there"):
        compare(two / "a.txt", two / "b.txt")
    export(
        select(score(two / "known.zarr", ScoreRequest(signals="early"))), two / "m.txt", ExportRequest(as_format="ids")
    )
    with pytest.raises(DataError, match="from a table in memory"):
        compare(two / "m.txt", two / "b.txt")
