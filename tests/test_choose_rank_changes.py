"""What a comparison means: shared against chance, and which part of their values moved samples, where it is planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grace_store.choose.compare import compare
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.scoring.score_table import ScoreRows, read_scores, write_scores
from grace_store.values.gram import pack
from grace_store.values.measures import Responses, scores_by
from grace_store.values.methods.grace import value_parts
from grace_store.values.methods.method import ScoreSpec
from tests.score_tables import NOTE

NUM, STEPS, KEPT = 60, 4, 12


def write(path: Path, answer, history, spec=None, num_tokens=None) -> Path:
    """Write a table of samples with these alignments, (n, K), as `score` would."""
    spec = spec or ScoreSpec()
    step = np.where(np.arange(STEPS) == 0, answer, spec.alpha * answer + (1 - spec.alpha) * history)
    flat = history.copy()
    flat[:, 0] = np.nan
    note = NOTE.model_copy(update={"spec": spec})
    rows = ScoreRows(
        sample_id=np.array([f"s{i}" for i in range(len(answer))]),
        row=np.arange(len(answer)),
        num_steps=np.full(len(answer), STEPS),
        num_tokens=np.full(len(answer), 80) if num_tokens is None else num_tokens,
        value=step.mean(axis=1),
        flags=np.zeros(len(answer), np.uint8),
        text_flags=np.zeros(len(answer), np.uint32),
        steps=(step.ravel(), answer.ravel(), flat.ravel()),
    )
    with write_scores(path, note) as writer:
        writer.write_table(rows.to_table(note))
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Alignments of samples, the first the worst, and their table."""
    rng = np.random.default_rng(3)
    level = np.linspace(0, 0.4, NUM)[:, None]
    answer, history = (level + 0.002 * rng.normal(size=(NUM, STEPS)) for _ in range(2))
    return answer, history, write(tmp_path_factory.mktemp("base") / "a.parquet", answer, history)


def ids(changes) -> set[str]:
    return {change["sample_id"] for change in changes}


def test_the_part_that_was_planted_is_the_part_that_is_named(base, tmp_path):
    answer, history, a = base[0].copy(), base[1].copy(), base[2]
    answer[:3] += 0.9  # three enter by the answer, two by history; two of the best leave by history
    history[3:5] += 2.5
    history[-2:] -= 1.5
    found = compare(a, write(tmp_path / "b.parquet", answer, history))
    entered = {change["sample_id"]: change["moved_by"] for change in found.tables["entered"].rows}
    assert entered == dict.fromkeys(("s0", "s1", "s2"), "answer") | dict.fromkeys(("s3", "s4"), "history")
    left = {change["sample_id"]: change["moved_by"] for change in found.tables["left"].rows}
    assert {left[f"s{NUM - 1}"], left[f"s{NUM - 2}"]} == {"history"}
    assert len(left) == len(entered) == 5
    assert list(left.values()).count(None) == 3  # for whom there was no room
    for change in [*found.tables["entered"].rows, *found.tables["left"].rows]:
        assert (" as others rose or are new (" in change["why"]) == (change["moved_by"] is None)
        assert {name for name in change if name.startswith("moved_")} == {"moved_by", "moved_answer", "moved_history"}
        part = change["moved_by"] or "answer"
        assert f"{change[f'moved_{part}']:+.2f}" in change["why"]
        assert change["moved_by"] is None or f"by {change['moved_by']} (" in change["why"]
    chance = "The subsets share 7 of 12; random ones would share 2.4."
    in_words = "for 3 their alignment with the answer and for 2 their alignment with the steps before"
    assert found.conclusion.startswith(
        f"{chance} What moved 5 in: {in_words}; 5 out: for 3 others that rose or are new and "
        "for 2 their alignment with the steps before."
    )


def test_what_moves_all_samples_alike_moves_none(base, tmp_path):
    answer, history, a = base
    again = compare(a, write(tmp_path / "b.parquet", 0.5 * answer - 0.2, 0.5 * history + 0.1))
    assert again.conclusion == "Both subsets hold the same 12 samples."
    raised = answer.copy()
    raised[0] += 0.9
    found = compare(a, write(tmp_path / "c.parquet", 0.5 * raised - 0.2, 0.5 * history + 0.1))
    assert [change["moved_by"] for change in found.tables["entered"].rows] == ["answer"]
    assert abs(found.tables["entered"].rows[0]["moved_history"]) < 0.2 < found.tables["entered"].rows[0]["moved_answer"]
    pushed_out = found.tables["left"].rows[0]
    assert (pushed_out["by_rank"], pushed_out["moved_by"]) == (True, None)
    assert found.conclusion.endswith(
        "What moved 1 in: their alignment with the answer; 1 out: others that rose or are new."
    )


def test_length_that_was_taken_out_is_the_only_mover_of_what_it_moved(base, tmp_path):
    answer, history, _ = base
    tokens = np.exp(np.random.default_rng(0).uniform(3, 6, NUM)).astype(np.int64)
    answer = answer + 0.1 * np.log(tokens)[:, None]  # long responses are preferred
    a = write(tmp_path / "a.parquet", answer, history, num_tokens=tokens)
    subset = select(read_scores(a), Selection(control=["response_length"]), ratio="0.2")
    export(subset, tmp_path / "b.txt", as_format="ids")
    found = compare(a, tmp_path / "b.txt")
    assert found.tables["entered"].rows
    for change in found.tables["entered"].rows + found.tables["left"].rows:
        assert change["moved_by"] in ("length", None)
        assert change["moved_answer"] == change["moved_history"] == 0
    assert "length, which was taken out of the values" in found.conclusion
    entered, left = (
        np.mean([tokens[c["row"]] for c in some]) for some in (found.tables["entered"].rows, found.tables["left"].rows)
    )
    assert f"shorter: {entered:.0f} tokens in the mean, and {left:.0f} for" in found.conclusion


def test_longer_ones_are_told(base, tmp_path):
    answer, history, _ = base
    tokens = np.full(NUM, 50)
    tokens[:3] = 200
    a = write(tmp_path / "a.parquet", answer, history, num_tokens=tokens)
    raised = answer.copy()
    raised[:3] += 0.9
    found = compare(a, write(tmp_path / "b.parquet", raised, history, num_tokens=tokens))
    assert found.conclusion.endswith(
        "Those that entered are longer: 200 tokens in the mean, and 50 for those that left."
    )


def test_what_chance_gives_is_told_from_more_and_from_less(tmp_path):
    rng = np.random.default_rng(1)
    tables = [rng.normal(size=(2, 100, STEPS)) / 9 for _ in range(2)]
    a, b = (write(tmp_path / f"{name}.parquet", *each) for name, each in zip("ab", tables, strict=True))
    found = compare(a, b)
    assert f"share {found.numbers['num_both']} of 20; random ones would share 4.0" in found.conclusion
    assert "no better than chance" in found.conclusion
    opposite = compare(a, write(tmp_path / "c.parquet", *-tables[0]))
    assert "share 0 of 20; random ones would share 4.0, so each avoids" in opposite.conclusion


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ScoreSpec(measure=("tokens",)), "values by tokens:highest in b.parquet are not made of alignments"),
        (
            ScoreSpec(measure=("grace=0.5", "loss:lowest")),
            "values by grace=0.5 + loss:lowest in b.parquet are not made of alignments with answer and history alone",
        ),
        (ScoreSpec(aggregation="min"), "with aggregation min, values of b.parquet cannot be split"),
        (ScoreSpec(measure=("grace:min",)), "with aggregation min, values of b.parquet cannot be split"),
        (ScoreSpec(alpha=0.2), "the values in b.parquet are not those of its step scores"),
    ],
)
def test_what_cannot_be_taken_apart_says_so(base, tmp_path, spec, words):
    answer, history, a = base
    rows = read_scores(write(tmp_path / "b.parquet", answer[::-1], history[::-1])).table
    note = NOTE.model_copy(update={"spec": spec})
    with write_scores(tmp_path / "b.parquet", note) as writer:
        writer.write_table(rows.replace_schema_metadata(None))
    found = compare(a, tmp_path / "b.parquet")
    assert f"moved 24 in or out cannot be said: {words}" in found.conclusion
    assert not any(change["moved_by"] or "moved_answer" in change for change in found.tables["entered"])


def test_other_sizes_and_reasons_are_told(base, tmp_path):
    export(select(base[2], count=5), tmp_path / "five.txt", as_format="ids")
    found = compare(base[2], tmp_path / "five.txt")
    assert found.conclusion.startswith("The subsets share 5 of 12 in A and 5 in B; random ones would share 1.0.")
    assert found.conclusion.endswith("Reason for 7: the other keeps 5.")
    assert ids(found.tables["left"].rows) == {f"s{i}" for i in range(48, 55)}


@pytest.mark.parametrize(
    "spec",
    [
        ScoreSpec(),
        ScoreSpec(alpha=0.2, history="window:2", target="suffix"),
        ScoreSpec(aggregation="last"),
        ScoreSpec(measure=("grace:last",)),
        ScoreSpec(aggregation="length_weighted", alpha=0.4),
        ScoreSpec(without_answer=True),
    ],
    ids=str,
)
def test_parts_add_up_to_the_value(spec):
    rng = np.random.default_rng(1)
    num_steps = np.array([3, 1, 6, 2])
    vectors = [rng.normal(size=(steps + 1, 9)) for steps in num_steps]
    tokens = [rng.integers(1, 30, len(each)) for each in vectors]
    packed = np.concatenate([pack((each @ each.T)[None])[0] for each in vectors])
    arrays = {"row": num_steps, "num_steps": num_steps, "num_tokens": np.concatenate(tokens), "gram": packed}
    scores = scores_by(spec.measures[0], Responses(spec=spec, **arrays))
    step_tokens = np.concatenate([each[:-1] for each in tokens])
    parts = value_parts(spec, num_steps, step_tokens, scores.answer_alignment, scores.history_alignment)
    np.testing.assert_allclose(parts.sum(axis=0), scores.value, atol=1e-12)
    if spec.without_answer:
        assert not parts[0][np.isfinite(parts[0])].any()
