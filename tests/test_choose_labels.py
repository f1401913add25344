"""--labels and --right in every command that has them: a label is worth the same as a field of the record."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grace_store as gs
from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, ResumeMismatch, SettingError
from grace_store.base.events import Event, Note
from grace_store.base.files import file_sha256, sidecar_of
from grace_store.base.finding import Estimate, Finding, LabelsNote, LabelsOf
from grace_store.choose.select import read_subset, replay_subset
from grace_store.choose.selection import SubsetNote
from grace_store.pages.report_inputs import ReportRequest
from grace_store.pool.label_columns import join_labels
from grace_store.scoring.notes import LearnedNote
from grace_store.scoring.score import replay
from grace_store.scoring.score_table import read_scores
from grace_store.store.opened import Store
from tests.commands import run, run_json
from tests.field_stores import RECORDS, make_field_store
from tests.grouped_stores import grouped_job, grouped_records, grouped_store


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store, its scores, and a file of labels that repeats fields under other names."""
    folder = tmp_path_factory.mktemp("labels")
    gs.score(make_field_store(folder), out=folder / "scores.parquet")
    names = {"origin": "source", "truth": "is_correct"}
    rows = [{"id": each["id"], **{name: each[field] for name, field in names.items()}} for each in RECORDS]
    rows = [row | {"level": each["meta"]["level"]} for row, each in zip(rows, RECORDS, strict=True)]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    return folder


BY_FIELD = {"origin": "source", "truth": "is_correct", "level": '"meta.level"'}
COMMANDS = {
    "score": "score {store} --out {out}/a.parquet --where CONDITION",
    "score-within": "score {store} --out {out}/a.parquet --within FIELD",
    "sweep": "sweep {store} --out {out}/sweep --alpha 0.3,0.7 --where CONDITION",
    "weights": "weights {store} --out {out}/weights.parquet --where CONDITION",
    "duplicates": "duplicates {store} --out {out}/duplicates.parquet --where CONDITION",
    "duplicates-scored": "duplicates {store} --scores {scores} --out {out}/d.parquet --where CONDITION",
    "diversity": "diversity {store} --scores {scores} --random 5 --where CONDITION",
    "stability": "stability {store} --draws 5 --where CONDITION",
    "audit": "audit {scores} --where CONDITION --by FIELD",
    "select": "select {scores} --out {out}/a.jsonl --where CONDITION --by FIELD",
    "select-groups": "select {scores} --out {out}/a.jsonl --per-group 2 --group-by FIELD",
    "inspect": "inspect {store} t5 --neighbours 4 --where CONDITION",
    "judge": "judge {store} --right RIGHT --question FIELD",
    "report": "report {store} --out {out}/a.html --by FIELD --where CONDITION",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_label_is_worth_the_same_as_a_field(home: Path, tmp_path: Path, name: str) -> None:
    places = {"store": home / "traces.zarr", "scores": home / "scores.parquet", "out": tmp_path}

    def found(words: dict[str, str], *more: object) -> Any:
        shutil.rmtree(tmp_path / "sweep", ignore_errors=True)  # a second one would say that it replaces the first
        given = [word.format(**places) for word in COMMANDS[name].split()]
        told = run_json(*(words.get(word, word) for word in given), *more)
        text = json.dumps(told)
        for label, field in BY_FIELD.items():
            text = text.replace(label, field.strip('"'))
        return json.loads(text)

    fields = {"CONDITION": "source <> 'math' and \"meta.level\" > 0", "FIELD": "source", "RIGHT": "is_correct"}
    labels = {"CONDITION": "origin <> 'math' and level > 0", "FIELD": "origin", "RIGHT": "truth"}
    plain, labelled = found(fields), found(labels, "--labels", home / "labels.jsonl")
    text = json.dumps(labelled)
    assert name == "report" or file_sha256(home / "labels.jsonl") in text

    def bare(value: Any) -> Any:
        """Return a result without what names the filter or the file."""
        if isinstance(value, dict):
            return {
                key: bare(each) for key, each in value.items() if key not in ("labels", "sql", "command", "num_bytes")
            }
        return [bare(each) for each in value] if isinstance(value, list) else value

    assert bare(labelled) == bare(plain)


def test_the_terminal_counts_what_has_no_match(home: Path, tmp_path: Path) -> None:
    rows = (home / "labels.jsonl").read_text().splitlines()[:40]
    some = tmp_path / "some.jsonl"
    some.write_text("\n".join([*rows, '{"id": "stranger", "origin": "math"}']))
    store, scores = home / "traces.zarr", home / "scores.parquet"
    for words in (
        ("score", store, "--out", tmp_path / "a.parquet", "--where", "level >= 0"),
        ("select", scores, "--out", tmp_path / "a.jsonl", "--where", "level >= 0"),
        ("audit", scores),
        ("judge", store, "--right", "truth"),
    ):
        told = " ".join(run(*words, "--labels", some).stdout.split())
        assert "some.jsonl: 40 of 41 rows matched to a sample (no sample has the id 'stranger', for example)" in told
        assert "; 8 of 48 samples without a row ('t0', for example)" in told
    for words in (("score", store, "--out", tmp_path / "b.parquet"), ("select", scores, "--out", tmp_path / "b.jsonl")):
        assert "--labels adds fields that nothing here reads" in run(*words, "--labels", some, code=1).stderr


def test_the_page_shows_labels_with_the_traces(home: Path, tmp_path: Path) -> None:
    request = ReportRequest(labels=home / "labels.jsonl")
    gs.report(home / "traces.zarr", tmp_path / "page.html", request)
    page = (tmp_path / "page.html").read_text()
    assert '"name":"truth"' in page.replace(" ", "")
    assert "48 of 48 rows matched to a sample" in page
    shown = run_json("inspect", home / "traces.zarr", "t5", "--labels", home / "labels.jsonl")
    assert shown["labels"] == {"origin": RECORDS[5]["source"], "truth": RECORDS[5]["is_correct"], "level": 0}


def test_an_output_never_replaces_the_labels(home: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    labels.write_text((home / "labels.jsonl").read_text())
    words = ("select", home / "scores.parquet", "--labels", labels, "--where", "level >= 0")
    said = run(*words, "--out", labels, code=1).stderr
    assert "labels.jsonl, the labels; choose another --out" in " ".join(said.split())
    with pytest.raises(SettingError, match="the labels; choose another --out"):
        gs.report(home / "traces.zarr", labels.with_suffix(".html"), ReportRequest(labels=labels.with_suffix(".html")))


# ---------------------------------------------------------------- replays


def test_a_table_is_scored_again_only_with_the_same_labels(home: Path, tmp_path: Path) -> None:
    labels, first, again = tmp_path / "labels.jsonl", tmp_path / "a.parquet", tmp_path / "b.parquet"
    labels.write_text((home / "labels.jsonl").read_text())
    request = gs.ScoreRequest(where="origin = 'math'", within="centred", group_by="truth", labels=labels)
    gs.score(home / "traces.zarr", request, out=first)
    replay(first, again)
    assert again.read_bytes() == first.read_bytes()
    moved = labels.rename(tmp_path / "moved.jsonl")
    run("score", "--replay", first, "--labels", moved, "--out", again)
    assert read_scores(again).value.tolist() == read_scores(first).value.tolist()
    moved.write_text(moved.read_text().replace("math", "code"))
    with pytest.raises(ResumeMismatch, match="is not the file of labels that was used"):
        replay(first, again, labels=moved)
    with pytest.raises(SettingError, match=r"scores.parquet was made without a file of labels: leave --labels out"):
        replay(home / "scores.parquet", again, labels=moved)


def test_a_subset_is_chosen_again_only_with_the_same_labels(home: Path, tmp_path: Path) -> None:
    labels, out = tmp_path / "labels.jsonl", tmp_path / "subset.jsonl"
    labels.write_text((home / "labels.jsonl").read_text())
    found = run_json("select", home / "scores.parquet", "--labels", labels, "--by", "origin", "--out", out)
    note = read_document(sidecar_of(out), SubsetNote)
    assert note.spec.labels is not None
    assert found["labels"]["sha256"] == note.spec.labels.sha256 == file_sha256(labels)
    moved = labels.rename(tmp_path / "moved.jsonl")
    with pytest.raises(SettingError, match="There is no file of labels"):
        replay_subset(read_subset(out))
    assert replay_subset(read_subset(out), labels=moved).rank().take().row.tolist() == list(note.rows)
    moved.write_text(moved.read_text().replace("math", "code"))
    with pytest.raises(ResumeMismatch, match="is not the file of labels that was used"):
        replay_subset(read_subset(out), labels=moved)


# ---------------------------------------------------------------- pairs of a right and a wrong trace


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with several traces of each question, their scores, and verdicts in words."""
    folder = tmp_path_factory.mktemp("pairs")
    gs.score(grouped_store(folder), out=folder / "scores.parquet")
    rows = [f"{record['id']},{verdict(place)}" for place, record in enumerate(grouped_records())]
    (folder / "verdicts.csv").write_text("\n".join(["id,verdict", *rows]) + "\n")
    return folder


def verdict(place: int) -> str:
    return ["good", "bad", "bad", "", "good"][place % 5]


def pairs_by_hand(value: np.ndarray, margin: float | None) -> dict[int, int]:
    """Return the worst wrong trace of each question by its best right trace."""
    questions: dict[str, dict[str, list[int]]] = {}
    for place, record in enumerate(grouped_records()):
        questions.setdefault(record["prompt"], {"good": [], "bad": [], "": []})[verdict(place)].append(place)
    found = {}
    for traces in questions.values():
        if traces["good"] and traces["bad"]:
            best = max(traces["good"], key=lambda place: (value[place], -place))
            worst = min(traces["bad"], key=lambda place: (value[place], -place))
            if margin is None or value[best] - value[worst] >= margin:
                found[best] = worst
    return found


@pytest.mark.parametrize("margin", [None, 0.05])
def test_pairs_have_a_right_and_a_wrong_trace_of_one_question(grouped: Path, margin: float | None) -> None:
    table = read_scores(grouped / "scores.parquet")
    wanted = pairs_by_hand(table.value, margin)
    chosen = gs.select(table, labels=grouped / "verdicts.csv", right="verdict = 'good'", margin=margin)
    assert chosen.rejected_row is not None
    assert dict(zip(chosen.row.tolist(), chosen.rejected_row.tolist(), strict=True)) == wanted
    assert len(wanted) > 1
    if margin is None:
        assert min(table.value[best] - table.value[worst] for best, worst in wanted.items()) < 0
        num_without = sum(verdict(place) == "" for place in range(len(table)))
        assert f"; {num_without} traces without a label left out" in chosen.notes[-1]
        assert "of them without both a right and a wrong trace" in chosen.notes[-1]


@pytest.mark.parametrize("name", ["trl-pairs", "ms-swift-pairs", "llama-factory-pairs"])
def test_every_export_of_pairs_takes_the_condition(grouped: Path, tmp_path: Path, name: str) -> None:
    words = ("select", grouped / "scores.parquet", "--as", name, "--labels", grouped / "verdicts.csv")
    told = run(*words, "--right", "verdict = 'good'", "--out", tmp_path / "pairs.jsonl").stderr
    assert told.count("Right: 'good' (11). Wrong: 'bad' (12).") == 1
    wanted = pairs_by_hand(read_scores(grouped / "scores.parquet").value, None)
    ids = [record["id"] for record in grouped_records()]
    lines = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert [(line["id"], line["rejected_id"]) for line in lines] == [
        (ids[a], ids[b]) for a, b in sorted(wanted.items())
    ]
    run(*words, "--right", "verdict = 'good'", "--margin", "0", "--out", tmp_path / "pairs.jsonl")
    value = read_scores(grouped / "scores.parquet").value
    assert len((tmp_path / "pairs.jsonl").read_text().splitlines()) == len(pairs_by_hand(value, 1e-9)) < len(wanted)


def test_what_makes_no_pairs_is_refused(grouped: Path, tmp_path: Path) -> None:
    scores, labels = grouped / "scores.parquet", grouped / "verdicts.csv"
    with pytest.raises(
        DataError,
        match=r"finds 0 right and 23 wrong among 28 samples.*verdict is 'good', 'bad', for example. Give another",
    ):
        gs.select(scores, labels=labels, right="verdict")
    with pytest.raises(DataError, match="no question has both a right and a wrong trace, so there are no pairs"):
        gs.select(scores, right="half = 1")
    with pytest.raises(SettingError, match="every question gives one pair: leave --per-group out"):
        gs.select(scores, right="half = 1", per_group="1")
    said = run("select", scores, "--right", "half = 1", "--out", tmp_path / "a.jsonl", code=1).stderr
    assert "--right needs a format for pairs: give --as with one of" in " ".join(said.split())


def test_a_wrong_trace_with_the_text_of_the_right_one_is_not_rejected(tmp_path: Path) -> None:
    """Copies have the opposite verdict of their originals, so that some question has only copies to reject."""
    from grace_store.run.extract import extract

    store = extract(grouped_job(tmp_path, copies=18)).store
    records = grouped_records()
    good = [*(True for _ in records), *(False for _ in records[:18])]
    ids = store.column("sample_id").tolist()
    (tmp_path / "labels.csv").write_text("id,ok\n" + "".join(f"{a},{b}\n" for a, b in zip(ids, good, strict=True)))
    found = gs.select(gs.score(store), labels=tmp_path / "labels.csv", right="ok")
    texts = [record["steps"] for record in (*records, *records[:18])]
    assert found.rejected_row is not None
    assert len(found) > 0
    for best, worst in zip(found.row.tolist(), found.rejected_row.tolist(), strict=True):
        assert good[best]
        assert not good[worst]
        assert texts[best] != texts[worst]


def test_pairs_against_known_labels_are_warned_of(grouped: Path, tmp_path: Path) -> None:
    table = read_scores(grouped / "scores.parquet")
    plain = gs.select(table, margin=0)
    assert plain.rejected_row is not None
    pairs = list(zip(plain.row.tolist(), plain.rejected_row.tolist(), strict=True))
    ids = [record["id"] for record in grouped_records()]
    worse = {pairs[0][1], pairs[2][1]}
    for name, wrong in (("is_correct", "0"), ("correct", "false"), ("correct", "B"), ("grade", "B")):
        right = {"0": "1", "false": "true", "B": "A"}[wrong]
        rows = "".join(f"{each},{right if place in worse else wrong}\n" for place, each in enumerate(ids))
        (tmp_path / "labels.csv").write_text(f"id,{name}\n{rows}")
        labels = gs.Selection(margin=0, labels=str(tmp_path / "labels.csv"))
        told = gs.select(table, labels, listener=list[Event]().append).notes[-1]
        varied = gs.select(table, labels, diversity="dedup", duplicates=None, listener=list[Event]().append)
        assert told in varied.notes
        assert told == (
            "--labels was given without --right, so no pair was compared with the labels."
            if wrong == "B"  # letters are answers, and no labels
            else f"In 2 of {len(pairs)} pairs the chosen trace is wrong and the rejected one right, by {name}. "
            f"To choose only right traces, give --right {name}."
        )


@pytest.mark.parametrize(
    ("field", "says", "right"),
    [
        ("mark = 'good'", "traces", "mark = 'good'"),
        ("first", "first_wrong", '"first" = -1'),
        ("wrong", "wrong_steps", 'json_array_length("wrong") = 0'),
    ],
)
def test_pairs_by_a_learned_value_are_compared_with_its_labels(
    grouped: Path, tmp_path: Path, field: str, says: LabelsOf, right: str
) -> None:
    table = read_scores(grouped / "scores.parquet")
    plain = gs.select(table, margin=0)
    assert plain.rejected_row is not None
    worse = {*plain.rejected_row[[0, 2]].tolist()}
    marks = ["good,-1,[]" if place in worse else "bad,1,[2]" for place in range(len(table))]
    path = tmp_path / "my marks.csv"
    path.write_text("id,mark,first,wrong\n" + "".join(map("{},{}\n".format, table.sample_id, marks)))
    area = Estimate(value=0.7, low=0.6, high=0.8, num=100)
    counts, areas = (
        dict.fromkeys(("num_right", "num_wrong", "num_questions"), 9),
        ("area", "area_within", "single_area"),
    )
    labels = LabelsNote(field=field, says=says)
    learned = LearnedNote(labels=labels, of="traces", weights={}, **counts, **dict.fromkeys(areas, area))
    more = {"learned": learned, "labels": join_labels(path, table.table["sample_id"]).note}
    table = replace(table, note=table.note.model_copy(update=more))

    def told(**labels: str) -> str:
        return gs.select(table, gs.Selection(margin=0, **labels), listener=list[Event]().append).notes[-1]

    of = f"In 2 of {len(plain.row)} pairs the chosen trace is wrong and the rejected one right, by {right}. "
    give = f"--right {shlex.quote(right)}."
    assert told() == f"{of}To choose only right traces, give --labels {shlex.quote(str(path))} {give}"
    assert told(labels=str(path)) == f"{of}To choose only right traces, give {give}"
    path.write_text("id,mark\n")
    changed = told()
    assert changed.startswith("No pair was compared with the labels that the values were learned from: ")
    assert "its content differs" in changed


@pytest.mark.parametrize(
    ("column", "condition", "told"),
    [
        ("mark", "mark = 'good'", ["Right: 'good' (10). Wrong: 'unknown' (9), 'Good' (9)."]),
        ("mark", "mark = 'good' or num_steps > 2", []),  # two names
        ("grade", "grade >= 5", ["Right: 5 (4), 6 (4). Wrong: 0 (4), 1 (4), 2 (4), 3 (4), 4 (4)."]),
        ("turn", "turn >= 5", []),  # many values
    ],
)
def test_values_that_count_as_right_and_wrong_are_told(
    grouped: Path, tmp_path: Path, column: str, condition: str, told: list[str]
) -> None:
    values = {"mark": ["good", "unknown", "Good"], "grade": range(7), "turn": range(28)}[column]
    lines = [f"{record['id']},{values[i % len(values)]}\n" for i, record in enumerate(grouped_records())]
    (tmp_path / "labels.csv").write_text(f"id,{column}\n" + "".join(lines))
    events: list[Event] = []
    fields = gs.Pool.of(Store.open(grouped / "store.zarr"), labels=tmp_path / "labels.csv").fields()
    fields.right(condition, events.append)
    assert [event.text for event in events if isinstance(event, Note)] == told


def test_a_field_that_only_a_file_of_labels_has_is_asked_for_with_the_file(grouped: Path) -> None:
    run("audit", grouped / "scores.parquet", "--by", "verdict", "--labels", grouped / "verdicts.csv")
    said = run("audit", grouped / "scores.parquet", "--by", "verdict", code=1).stderr
    assert "has a field 'verdict'." in said
    assert "A column of a file of labels needs --labels" in " ".join(said.split())


# ---------------------------------------------------------------- judge


def test_judge_counts_the_traces_without_a_label(grouped: Path, tmp_path: Path) -> None:
    words = ("judge", grouped / "store.zarr", "--labels", grouped / "verdicts.csv")
    told = run(*words, "--right", "verdict = 'good'", "--out", tmp_path / "judgement.json")
    found = read_document(tmp_path / "judgement.json", Finding)
    counts = {name: sum(verdict(place) == name for place in range(28)) for name in ("good", "bad", "")}
    numbers = [found.numbers[name] for name in ("num_right_traces", "num_wrong_traces", "num_left_out")]
    assert numbers == list(counts.values())
    assert f"{counts['']} samples without a usable label in --right" in told.stderr
    assert told.stderr.count(f"Right: 'good' ({counts['good']}). Wrong: 'bad' ({counts['bad']}).") == 1
    assert found.pool is not None
    assert found.pool.labels is not None
    assert found.pool.labels.sha256 == file_sha256(grouped / "verdicts.csv")


def test_labels_of_steps_may_come_from_the_file(grouped: Path, tmp_path: Path) -> None:
    ids, first = [record["id"] for record in grouped_records()], [place % 3 - 1 for place in range(28)]
    (tmp_path / "steps.csv").write_text("id,first\n" + "".join(f"{a},{b}\n" for a, b in zip(ids, first, strict=True)))
    pool = gs.Pool.of(Store.open(grouped / "store.zarr"), labels=tmp_path / "steps.csv")
    found = gs.judge(pool, gs.JudgeSettings(first_wrong="first"))
    assert found.numbers["num_wrong_steps"] == sum(each >= 0 for each in first)
