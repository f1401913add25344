"""Judging: planted labels are recovered, chance stays chance, and labels that say nothing are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import grace_store as gs
from grace_store.artifacts.judgement import JudgedItems, JudgedMeasure, Judgement
from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.settings import DataRequest
from grace_store.cli import main
from grace_store.curate.verdict import conclude
from grace_store.run.extract import ExtractJob, extract
from grace_store.store.opened import Store
from tests.example_notes import JUDGEMENT
from tests.fake_model import make_fake_model

NUM_QUESTIONS = 60
NUM_TRACES = 3
"""Of each question."""
KINDS = ("slip", "leap")


def traces() -> list[dict[str, Any]]:
    """Return three traces a question, of 3 to 6 steps; the fake model makes a step's loss follow its length."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(NUM_QUESTIONS * NUM_TRACES):
        lengths = rng.integers(2, 12, rng.integers(3, 7)).tolist()
        steps = [" ".join([f"{number}.{k}", *["so"] * length]) for k, length in enumerate(lengths)]
        question, kind = number // NUM_TRACES, KINDS[number % 2]
        record = {"id": f"t{number}", "prompt": f"What of {question}?", "steps": steps, "answer": f"it is {number}"}
        found.append({**record, "kind": kind, "about": {"question": question}})
    return found


def labelled_store(folder: Path, labels: Sequence[dict[str, Any]]) -> Store:
    """Extract the traces, with these labels, with the fake model, which looks at texts alone."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [{**trace, **label} for trace, label in zip(traces(), labels, strict=True)]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    job = ExtractJob(
        store=str(folder / "store.zarr"),
        model=make_fake_model(folder / "model"),
        data=(str(data),),
        data_request=DataRequest(format="explicit", min_steps=1),
        samples_per_unit=64,
        door="tests.fake_model",
    )
    return extract(job).store


def labels_by(step_scores: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Call the worst step of every second trace wrong, and the trace with it."""
    found: list[dict[str, Any]] = []
    for number, scores in enumerate(step_scores):
        wrong = int(np.argmin(scores)) if number % 2 else -1
        steps = [wrong + 1] if wrong >= 0 else []
        found.append({"first": wrong, "wrong": steps, "ok": wrong < 0, "marks": number % 5, "sign": "x", "same": True})
        found[-1]["far"] = 99
    return found


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """Stores whose wrong steps are those of the least GRACE score, those of the largest loss, and any."""
    folder = tmp_path_factory.mktemp("judge")
    table = gs.score(labelled_store(folder / "bare", [{}] * (NUM_QUESTIONS * NUM_TRACES)))
    rng = np.random.default_rng(1)
    steps = np.split(table.flat("step_score"), table.offsets[1:-1])
    lengths = np.split(table.flat("step_num_tokens"), table.offsets[1:-1])
    planted = {"grace": steps, "loss": [-each for each in lengths], "none": [rng.random(len(each)) for each in steps]}
    return {name: labelled_store(folder / name, labels_by(scores)) for name, scores in planted.items()}


def of(found: Judgement, items: str = "steps") -> JudgedItems:
    return next(each for each in found.judged if each.of == items)


def measure(items: JudgedItems, name: str) -> JudgedMeasure:
    return next(each for each in items.measures if each.measure == name)


def test_planted_scores_are_recovered_also_with_position_and_length_held_fixed(planted: dict[str, Store]) -> None:
    found = gs.judge(planted["grace"], gs.JudgeRequest(first_wrong="first", kind="kind", draws=100))
    steps, traces = of(found), of(found, "traces")
    grace = measure(steps, "grace")
    assert grace.across.area > 0.85
    assert grace.across_fixed.low > 0.8
    assert grace.within.low > 0.8
    assert set(grace.kinds) == set(KINDS) - {"slip"}  # every second trace is wrong: they are all of one kind
    assert grace.first_errors is not None
    assert steps.chance_of_first_errors is not None
    assert grace.first_errors.low > steps.chance_of_first_errors
    assert "GRACE of base tells wrong steps from right ones better than chance" in steps.conclusion
    assert (steps.num_wrong, traces.num_right, traces.num_wrong) == (90, 90, 90)
    assert steps.num_questions == NUM_QUESTIONS


def test_a_signal_that_follows_length_sees_nothing_when_length_is_held_fixed(planted: dict[str, Store]) -> None:
    steps = of(gs.judge(planted["loss"], gs.JudgeRequest(wrong_steps="wrong", draws=100)))
    loss = measure(steps, "loss")
    assert loss.across.low > 0.75
    assert abs(loss.across_fixed.area - 0.5) < abs(loss.across.area - 0.5) / 2
    assert measure(steps, "longest").across.area == pytest.approx(1 - loss.across.area)
    assert measure(steps, "grace").across.low < 0.5 < measure(steps, "grace").across.high


def test_random_labels_are_at_chance(planted: dict[str, Store]) -> None:
    found = gs.judge(planted["none"], gs.JudgeRequest(first_wrong="first", draws=100))
    for items in found.judged:
        assert "better than chance (0.50)" in items.conclusion or "Too few labels" in items.conclusion
        for name in ("grace", "loss", "random"):
            area = measure(items, name).across_fixed
            assert area.low - 0.05 < 0.5 < area.high + 0.05
    assert "No stored signal" in of(found).conclusion


def test_steps_and_their_labels_stand_beside_each_other(planted: dict[str, Store]) -> None:
    store = planted["none"]
    labels = [json.loads(line) for line in Path(store.plan.files[0].path).read_text().splitlines()]
    right, wrong, means = [], [], {True: [], False: []}
    for sample in gs.iter_samples(store):
        first, entropy = labels[sample.row]["first"], sample.entropy.tolist()
        right += entropy[: sample.num_steps if first < 0 else first]
        wrong += [entropy[first]] if first >= 0 else []
        means[first < 0].append(float(np.average(sample.entropy, weights=sample.num_tokens)))
    found = gs.judge(store, gs.JudgeRequest(first_wrong="first", draws=5))
    for items, better, worse in ((of(found), right, wrong), (of(found, "traces"), means[True], means[False])):
        # A lower entropy is taken for right.
        pairs = [1.0 if a < b else 0.5 if a == b else 0.0 for a in better for b in worse]
        assert measure(items, "entropy").across.area == pytest.approx(np.mean(pairs), abs=1e-4)
        assert measure(items, "entropy").across.num_pairs == len(pairs)


def test_labels_of_traces_by_truth_or_number(planted: dict[str, Store]) -> None:
    store = planted["grace"]
    truth = gs.judge(store, gs.JudgeRequest(label="ok", draws=20, question="about.question"))
    assert [each.of for each in truth.judged] == ["traces"]
    assert truth.judged[0].num_questions == NUM_QUESTIONS
    assert truth.judged[0].chance_of_first_errors is None
    marks = gs.judge(store, gs.JudgeRequest(label="marks", threshold=3, draws=20))
    assert marks.judged[0].num_right == sum(number % 5 >= 3 for number in range(180))
    again = gs.judge(store, gs.JudgeRequest(label="ok", draws=20, question="about.question"))
    assert again == truth
    fewer = gs.judge(store, gs.JudgeRequest(label="ok", draws=20, max_samples=100))
    assert fewer.num_samples == 100
    some = gs.judge(store, gs.JudgeRequest(label="marks", threshold=3, draws=20, where="kind = 'slip'"))
    assert some.num_samples == some.where.num_kept == 90
    assert some.judged[0].num_right == sum(number % 5 >= 3 for number in range(0, 180, 2))


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        ({}, SettingError, "--label FIELD .*They have: id, prompt, steps"),
        ({"label": "colour"}, SettingError, "No record of .* has a field 'colour'. There are: id, prompt"),
        ({"label": "marks"}, SettingError, "5 different numbers, from 0 to 4: say from which one on"),
        ({"label": "sign"}, DataError, "it holds 'x', and true, false or a number is wanted"),
        ({"label": "same"}, DataError, "All 180 traces are right by 'same': there is nothing to tell apart"),
        ({"label": "marks", "threshold": 99}, DataError, "All 180 traces are wrong"),
        ({"first_wrong": "sign"}, DataError, "it holds 'x', and the number of a step from 0, or -1, is wanted"),
        ({"first_wrong": "far"}, DataError, "it holds '99', and a trace of . steps has no such step"),
        ({"wrong_steps": "far"}, DataError, "a list of the wrong steps' numbers, from 1, is wanted"),
        ({"label": "ok", "first_wrong": "first"}, SettingError, "Give one of --label"),
        ({"first_wrong": "first", "threshold": 1}, SettingError, "--threshold is for the numbers of --label"),
        ({"label": "ok", "draws": 0}, SettingError, "--draws 0: at least 1 is wanted"),
        ({"label": "ok", "max_samples": 6}, DataError, "of either, at least 5 are needed"),
    ],
)
def test_what_says_nothing_is_refused(
    planted: dict[str, Store], wanted: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gs.judge(planted["grace"], gs.JudgeRequest(**wanted))


def test_few_labels_say_how_many_would_do(planted: dict[str, Store]) -> None:
    found = gs.judge(planted["none"], gs.JudgeRequest(label="ok", draws=50, max_samples=24))
    assert "Too few labels to say" in found.conclusion
    assert "questions like these would narrow them to 0.05" in found.conclusion


@pytest.mark.parametrize(("low", "is_told"), [(0.51, True), (0.49, False)])
def test_an_interval_above_chance_that_is_no_answer_is_explained(low: float, is_told: bool) -> None:
    """The best of several measures may lie above chance by chance, which a reader of the table cannot see."""
    items = JUDGEMENT.judged[0]
    unsure = replace(items.measures[0].across, area=0.65, low=low, high=0.8, p_value=0.04, num_pairs=90)
    areas = {"across": unsure, "across_fixed": unsure}
    measures = tuple(items.measures[0].model_copy(update=areas | {"signal": name}) for name in ("base", "late"))
    counts = {"num_right": 30, "num_wrong": 30, "num_questions": 30}
    told = conclude(items.model_copy(update=counts | {"measures": measures}))
    assert told.startswith("Too few labels to say")
    assert (
        "lies above 0.50 in the table, but with so few labels the best of 2 may do so by chance." in told
    ) == is_told


def test_the_number_told_is_that_of_the_measure_named() -> None:
    """The largest area may be no better than chance; what is named is better, and has its own number."""
    items = JUDGEMENT.judged[0]
    known = items.measures[0].across
    sure = replace(known, area=0.62, low=0.57, high=0.67, p_value=1e-6, num_pairs=900)
    unsure = replace(known, area=0.71, low=0.45, high=0.97, p_value=0.2, num_pairs=900)
    areas = {"base": unsure, "late": sure}
    measures = tuple(
        items.measures[0].model_copy(update={"signal": name, "across": area, "across_fixed": area})
        for name, area in areas.items()
    )
    counts = {"num_right": 300, "num_wrong": 300, "num_questions": 300}
    told = conclude(items.model_copy(update=counts | {"measures": measures}))
    assert told == (
        "GRACE of late tells wrong traces from right ones better than chance (0.50), with number of steps and length "
        "held fixed: 0.62 (0.57 to 0.67)."
    )


def test_the_command_concludes_first_and_writes_what_can_be_read_back(
    planted: dict[str, Store], tmp_path: Path
) -> None:
    out, store = tmp_path / "judgement.json", planted["grace"].location
    run: Callable[..., Any] = CliRunner().invoke
    arguments = ["judge", store, "--first-wrong", "first", "--kind", "kind", "--draws", "20"]
    shown = run(main, [*arguments, "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("GRACE of base tells wrong steps")
    for words in ("held fixed", "By kind of error", "leap (90)", "chance", "F1", f"written: {out}"):
        assert words in shown.stdout
    document = read_document(out, Judgement)
    machine = json.loads(run(main, [*arguments, "--json"]).stdout)
    assert machine == document.to_json()
    refused = run(main, ["judge", store, "--label", "colour"])
    assert refused.exit_code == 1
    assert "has a field 'colour'" in " ".join(refused.stderr.split())
