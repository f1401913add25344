"""A value learned from labels of traces or steps: on stores whose losses tell right from wrong, and on others."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

import grace_store as gs
from grace_store.base.errors import DataError, SettingError
from grace_store.base.finding import Estimate, LabelsNote
from grace_store.scoring import learn as learning
from grace_store.scoring.learn import FEWEST_LABELS, FEWEST_QUESTIONS
from grace_store.values.methods.method import ScoreSpec
from tests.commands import run
from tests.scored_stores import KnownStore, known_store

NUM = 120
RIGHT = LabelsNote(field="good = 'yes'", says="traces")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> KnownStore:
    return known_store(tmp_path_factory.mktemp("known"), num_steps=[2 + i % 3 for i in range(NUM)])


def losses(known: KnownStore) -> np.ndarray:
    pairs = zip(known.samples["base"], known.loss["base"], strict=True)
    return np.array([np.average(loss, weights=sample[1]) for sample, loss in pairs if sample is not None])


def label_file(path: Path, known: KnownStore, right: np.ndarray, num: int = NUM) -> Path:
    ids = known.store.column("sample_id").tolist()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "good"])
        writer.writerows([name, "yes" if good else "no"] for name, good in zip(ids[:num], right[:num], strict=True))
    return path


def learned(known: KnownStore, labels: Path, **more: object) -> gs.ScoreTable:
    request = gs.ScoreRequest(spec=ScoreSpec(learn=True), labels=labels, learn_from=RIGHT, **more)  # type: ignore[arg-type]
    return gs.score(known.store, request)


def test_what_is_planted_in_the_losses_is_learned(known, tmp_path):
    loss = losses(known)
    table = learned(known, label_file(tmp_path / "labels.csv", known, loss < np.median(loss)))
    note = table.note.learned
    assert note is not None
    assert (note.num_right, note.num_wrong, note.num_questions) == (NUM // 2, NUM // 2, NUM)
    assert note.area.low > 0.8
    assert note.single_area.low > 0.8
    assert np.corrcoef(table.value, -loss)[0, 1] > 0.8
    assert table.method == "learned from --right \"good = 'yes'\""
    assert not table.has_step_scores
    assert max(note.weights, key=lambda name: note.weights[name]) in ("loss:lowest", "later_loss:lowest", "rsr:lowest")


def test_random_labels_are_not_found_and_the_sentence_says_so(known, tmp_path):
    drawn = np.random.default_rng(4).random(NUM) < 0.5
    note = learned(known, label_file(tmp_path / "labels.csv", known, drawn)).note.learned
    assert note is not None
    assert note.area.low < 0.5
    assert re.search(r"not shown to be better than chance\. About \d+ labels would narrow", note.in_words)


def test_some_labels_teach_and_all_samples_get_a_value(known, tmp_path):
    loss = losses(known)
    table = learned(known, label_file(tmp_path / "labels.csv", known, loss < np.median(loss), num=70))
    assert np.isfinite(table.value).all()
    assert np.corrcoef(table.value[70:], -loss[70:])[0, 1] > 0.7


def test_of_many_labels_some_questions_are_judged_and_all_teach(known, tmp_path, monkeypatch):
    loss = losses(known)
    labels = label_file(tmp_path / "labels.csv", known, loss < np.median(loss))
    whole = learned(known, labels)
    monkeypatch.setattr(learning, "MAX_JUDGED", NUM // 2)
    assert learned(known, labels).note.learned == whole.note.learned  # of few questions, all are judged
    monkeypatch.setattr(learning, "ENOUGH_QUESTIONS", NUM // 2)
    some = learned(known, labels)
    assert some.value.tolist() == whole.value.tolist()
    assert 0 < some.note.learned.area.num < whole.note.learned.area.num / 2
    assert some.note.learned.area.low > 0.5


def test_only_the_named_measures_are_learned_from(known, tmp_path):
    loss = losses(known)
    labels = label_file(tmp_path / "labels.csv", known, loss < np.median(loss))
    spec = ScoreSpec(learn=True, measure=("grace", "tokens"))
    note = gs.score(known.store, gs.ScoreRequest(spec=spec, labels=labels, learn_from=RIGHT)).note.learned
    assert note is not None
    assert {name.partition(" of ")[2] or name for name in note.weights} >= {"grace", "tokens:highest"}
    assert not any("loss" in name for name in note.weights)


def test_too_few_labels_are_refused_with_a_number(known, tmp_path):
    labels = label_file(tmp_path / "labels.csv", known, np.arange(NUM) % 4 == 0, num=40)
    with pytest.raises(DataError, match=rf"10 right and 30 wrong .* at least {FEWEST_LABELS} right.* About 200 labels"):
        learned(known, labels)


def test_a_samples_own_label_does_not_change_its_value(known, tmp_path):
    loss = losses(known)
    right = loss < np.median(loss)
    table = learned(known, label_file(tmp_path / "labels.csv", known, right))
    right[7] = not right[7]
    other = learned(known, label_file(tmp_path / "other.csv", known, right))
    assert other.value[7] == table.value[7]
    assert (other.value != table.value).sum() > NUM // 2


@pytest.mark.parametrize("drawn", [False, True])
def test_the_fewest_questions_are_enough_for_a_sentence(drawn, tmp_path):
    number = np.repeat(np.arange(FEWEST_QUESTIONS), 4)
    known = known_store(tmp_path, num_steps=[3] * len(number))
    rng = np.random.default_rng(1)
    right = rng.random(len(number)) < 0.5 if drawn else losses(known) < np.median(losses(known))
    ids = known.store.column("sample_id").tolist()
    rows = [f"{name},{'yes' if good else 'no'},{each}" for name, good, each in zip(ids, right, number, strict=True)]
    (tmp_path / "labels.csv").write_text("\n".join(["id,good,asked", *rows]))
    note = learned(known, tmp_path / "labels.csv", group_by="asked").note.learned
    assert note is not None
    assert note.num_questions == FEWEST_QUESTIONS
    assert ("not shown" in note.in_words) == (note.area.low <= 0.5)
    with pytest.raises(DataError, match=f"of {FEWEST_QUESTIONS} questions are needed"):
        learned(known, tmp_path / "labels.csv", group_by="asked", where=f"asked < {FEWEST_QUESTIONS - 1}")


def test_enough_labels_without_a_finding_are_not_asked_for_again(known, tmp_path):
    drawn = np.random.default_rng(4).random(NUM) < 0.5
    note = learned(known, label_file(tmp_path / "labels.csv", known, drawn)).note.learned
    assert note is not None
    narrow = note.model_copy(update={"area": Estimate(value=0.5, low=0.49, high=0.51, num=9)})
    assert narrow.in_words.endswith("not shown to be better than chance. More labels would hardly change this.")
    unknown = note.model_copy(update={"area": Estimate(value=0.5)})
    assert unknown.in_words.endswith("too few questions for an interval.")


def test_labels_without_learning_are_refused(known):
    with pytest.raises(SettingError, match="only for a learned value: give --learn"):
        gs.score(known.store, gs.ScoreRequest(learn_from=RIGHT))


def test_the_command_learns_replays_and_refuses_other_labels(known, tmp_path):
    loss = losses(known)
    labels = label_file(tmp_path / "labels.csv", known, loss < np.median(loss))
    store, out = known.store.location, tmp_path / "scores.parquet"
    words = ("score", store, "--learn", "--right", "good = 'yes'", "--labels", labels, "--out", out)
    told = run(*words)
    shown = told.stdout
    assert f"Right: 'yes' ({NUM // 2}). Wrong: 'no' ({NUM // 2})." in told.stderr
    assert shown.startswith(f"Learned from {NUM // 2} right and {NUM // 2} wrong traces of {NUM} questions:")
    run("score", "--replay", out, "--out", tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == out.read_bytes()
    label_file(labels, known, loss > np.median(loss))
    assert "labels.csv" in run("score", "--replay", out, "--out", tmp_path / "other.parquet", code=1).stderr
    run("select", out, "--ratio", "0.2", "--as", "ids", "--out", tmp_path / "subset.txt")


def test_a_sample_that_lacks_a_signal_has_no_value(tmp_path):
    known = known_store(
        tmp_path, ("early", "late"), set_aside={"late": range(5)}, num_steps=[2 + i % 3 for i in range(NUM)]
    )
    right = np.random.default_rng(2).random(NUM) < 0.5
    table = learned(known, label_file(tmp_path / "labels.csv", known, right), signals=["early", "late"])
    assert np.isnan(table.value).tolist() == [i < 5 for i in range(NUM)]
    assert table.flag_counts["missing_signal"] == 5


def test_flags_of_grams_are_those_of_grace(tmp_path):
    known = known_store(tmp_path, num_steps=[2 + i % 3 for i in range(NUM)], huge=range(3, 7))
    right = np.random.default_rng(2).random(NUM) < 0.5
    labels = label_file(tmp_path / "labels.csv", known, right)
    table = learned(known, labels)
    assert table.table["flags"].to_pylist() == gs.score(known.store).table["flags"].to_pylist()
    assert np.isnan(table.value).tolist() == [3 <= i < 7 for i in range(NUM)]
    assert table.flag_counts["not_finite"] == 4
    assert "same_direction" in table.known_flags
    request = gs.ScoreRequest(spec=ScoreSpec(learn=True, measure=("loss", "steps")), labels=labels, learn_from=RIGHT)
    without_grams = gs.score(known.store, request)
    assert np.isfinite(without_grams.value).all()
    assert "same_direction" not in without_grams.known_flags


def test_a_sample_without_any_of_the_measures_has_no_value_and_lacks_no_signal(tmp_path):
    known = known_store(tmp_path, num_steps=[1 + i % 3 for i in range(NUM)])
    right = np.random.default_rng(2).random(NUM) < 0.5
    labels = label_file(tmp_path / "labels.csv", known, right)
    spec = ScoreSpec(learn=True, measure=("history_alignment",))  # a first step has none
    table = gs.score(known.store, gs.ScoreRequest(spec=spec, labels=labels, learn_from=RIGHT))
    assert (table.flag_counts["no_value"], "missing_signal" in table.flag_counts) == (NUM // 3, False)
    assert np.isnan(table.value).tolist() == [i % 3 == 0 for i in range(NUM)]
    rows = [{"id": name, "wrong": [1 + i % 2]} for i, name in enumerate(table.sample_id) if i % 3]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_steps = LabelsNote(field="wrong", says="wrong_steps")
    request = gs.ScoreRequest(spec=spec, labels=tmp_path / "steps.jsonl", learn_from=of_steps)
    counts = gs.score(known.store, request).flag_counts
    assert (counts["no_value"], "missing_signal" in counts) == (NUM // 3, False)


def test_the_field_of_questions_is_kept_for_replays_and_choices(known, tmp_path):
    loss = losses(known)
    labels = label_file(tmp_path / "labels.csv", known, loss < np.median(loss))
    out, again = tmp_path / "scores.parquet", tmp_path / "again.parquet"
    ids = known.store.column("sample_id").tolist()
    rows = [f"{name},{'yes' if loss[i] < np.median(loss) else 'no'},{i // 4}" for i, name in enumerate(ids)]
    labels.write_text("\n".join(["id,good,asked", *rows]))
    words = ("--learn", "--right", "good = 'yes'", "--labels", labels, "--group-by", "asked", "--out", out)
    assert f"of {NUM // 4} questions" in run("score", known.store.location, *words).stdout
    run("score", "--replay", out, "--out", again)
    assert again.read_bytes() == out.read_bytes()
    subset = gs.select(out, gs.Selection(per_group=1))
    assert len(subset.row) == NUM // 4
    assert subset.spec.group_by == "asked"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"measure": ("loss=2", "grace")},
            "a learned value finds the weights of measures: leave that of loss:lowest=2",
        ),
    ],
)
def test_weights_of_measures_have_no_meaning_for_a_learned_value(spec, message):
    with pytest.raises(SettingError, match=message):
        ScoreSpec.parse(learn=True, **spec)


def test_weights_of_signals_and_measures_of_traces_are_refused_where_they_mean_nothing(known, tmp_path):
    labels = label_file(tmp_path / "labels.csv", known, losses(known) < 0.5)
    with pytest.raises(SettingError, match="leave the weights of --signal out"):
        learned(known, labels, signals={"base": 2.0})
    of_steps = LabelsNote(field="good", says="wrong_steps")
    request = gs.ScoreRequest(spec=ScoreSpec(learn=True, measure=("steps",)), labels=labels, learn_from=of_steps)
    with pytest.raises(SettingError, match="steps:highest has no number of each step"):
        gs.score(known.store, request)


def test_grace_alone_can_be_learned_from(known, tmp_path):
    labels = label_file(tmp_path / "labels.csv", known, losses(known) < np.median(losses(known)))
    spec = ScoreSpec(learn=True, measure=("grace",))
    note = gs.score(known.store, gs.ScoreRequest(spec=spec, labels=labels, learn_from=RIGHT)).note.learned
    assert note is not None
    assert not any("loss" in name for name in note.weights)


def test_labels_of_steps_teach_steps_and_a_trace_has_their_mean(known, tmp_path):
    step_loss = [loss[:-1] for loss in known.loss["base"]]
    ids = known.store.column("sample_id").tolist()
    rows = [
        {"id": name, "wrong": [k + 1 for k, each in enumerate(loss) if each > 0.5]}
        for name, loss in zip(ids, step_loss, strict=True)
    ]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_steps = LabelsNote(field="wrong", says="wrong_steps")
    request = gs.ScoreRequest(spec=ScoreSpec(learn=True), labels=tmp_path / "steps.jsonl", learn_from=of_steps)
    table = gs.score(known.store, request)
    note = table.note.learned
    assert note is not None
    assert note.of == "steps"
    assert note.num_wrong == sum(len(row["wrong"]) for row in rows)
    assert note.area.low > 0.8
    steps = np.split(table.flat("step_score"), table.offsets[1:-1])
    np.testing.assert_allclose(table.value, [each.mean() for each in steps])
    assert np.corrcoef(table.flat("step_score"), -np.concatenate(step_loss))[0, 1] > 0.8
