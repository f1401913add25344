"""Judging: planted labels are recovered, chance stays chance, and labels that say nothing are refused."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import grace_store as gs
from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Event, Warned
from grace_store.base.finding import Cell, Estimate, Finding
from grace_store.base.settings import DataSpec
from grace_store.cli import main
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.store.opened import Store
from grace_store.study.judge_conclusion import JudgedItems, best_measure, conclude_judged
from tests.commands import run as run_command
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
        data_request=DataSpec(format="explicit", min_steps=1),
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


def measure(found: Finding, name: str, items: str = "steps") -> Mapping[str, Cell]:
    way = {"loss": "loss:lowest", "entropy": "entropy:lowest", "longest": "tokens:highest"}
    return found.tables[items].row(of=way.get(name, name))


def test_planted_scores_are_recovered_also_with_position_and_length_held_fixed(planted: dict[str, Store]) -> None:
    found = gs.judge(planted["grace"], gs.JudgeSettings(first_wrong="first", kind="kind"))
    grace = measure(found, "grace")
    assert grace["all_pairs"].value > 0.85
    assert grace["held_fixed"].low > 0.8
    assert grace["same_question"].low > 0.8
    by_kind = found.tables["steps_by_kind"]
    assert set(by_kind.columns) - {"measure"} == set(KINDS) - {"slip"}  # every second trace is wrong: all of one kind
    assert by_kind.row(measure="wrong ones")["leap"] == 90
    assert grace["first_errors"].low > found.tables["steps"].row(measure="chance")["first_errors"]
    assert "GRACE of base tells wrong steps from right ones better than chance" in found.conclusion
    counts = [found.numbers[name] for name in ("num_wrong_steps", "num_right_traces", "num_wrong_traces")]
    assert (*counts, found.numbers["num_questions"]) == (90, 90, 90, NUM_QUESTIONS)


def test_a_signal_that_follows_length_sees_nothing_when_length_is_held_fixed(planted: dict[str, Store]) -> None:
    found = gs.judge(planted["loss"], gs.JudgeSettings(wrong_steps="wrong"))
    loss, longest, grace = (measure(found, name) for name in ("loss", "longest", "grace"))
    assert loss["all_pairs"].low > 0.75
    assert abs(loss["held_fixed"].value - 0.5) < abs(loss["all_pairs"].value - 0.5) / 2
    assert longest["all_pairs"].value == pytest.approx(1 - loss["all_pairs"].value)
    assert grace["all_pairs"].low < 0.5 < grace["all_pairs"].high


def test_random_labels_are_at_chance(planted: dict[str, Store]) -> None:
    found = gs.judge(planted["none"], gs.JudgeSettings(first_wrong="first"))
    for items in ("steps", "traces"):
        for name in ("grace", "loss", "random"):
            area = measure(found, name, items)["held_fixed"]
            assert area.low - 0.05 < 0.5 < area.high + 0.05
    assert "No stored signal tells wrong steps" in found.conclusion


def test_steps_and_their_labels_stand_beside_each_other(planted: dict[str, Store]) -> None:
    store = planted["none"]
    labels = [json.loads(line) for line in Path(store.plan.files[0].path).read_text().splitlines()]
    right, wrong, means = [], [], {True: [], False: []}
    for sample in gs.iter_samples(store):
        first, entropy = labels[sample.row]["first"], sample.entropy.tolist()
        right += entropy[: sample.num_steps if first < 0 else first]
        wrong += [entropy[first]] if first >= 0 else []
        means[first < 0].append(float(np.average(sample.entropy, weights=sample.num_tokens)))
    found = gs.judge(store, gs.JudgeSettings(first_wrong="first"))
    for items, better, worse in (("steps", right, wrong), ("traces", means[True], means[False])):
        # A lower entropy is taken for right.
        pairs = [1.0 if a < b else 0.5 if a == b else 0.0 for a in better for b in worse]
        entropy = measure(found, "entropy", items)["all_pairs"]
        assert entropy.value == pytest.approx(np.mean(pairs), abs=5e-4)
        assert entropy.num == len(pairs)


def test_labels_of_traces_by_truth_or_number(planted: dict[str, Store]) -> None:
    store = planted["grace"]
    truth = gs.judge(store, gs.JudgeSettings(right="ok", question="about.question"))
    assert list(truth.tables) == ["traces"]
    assert truth.numbers["num_questions"] == NUM_QUESTIONS
    assert "first_errors" not in truth.tables["traces"].columns
    marks = gs.judge(store, gs.JudgeSettings(right="marks >= 3"))
    assert marks.numbers["num_right_traces"] == sum(number % 5 >= 3 for number in range(180))
    assert gs.judge(store, gs.JudgeSettings(right="ok", question="about.question")) == truth
    fewer = gs.judge(store, gs.JudgeSettings(right="ok", samples=100))
    assert fewer.numbers["num_samples"] == 100
    pool = gs.Pool.of(store, where="kind = 'slip'")
    some = gs.judge(pool, gs.JudgeSettings(right="marks >= 3"))
    assert some.numbers["num_samples"] == some.pool.where.num_kept == 90
    assert some.numbers["num_right_traces"] == sum(number % 5 >= 3 for number in range(0, 180, 2))


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        ({}, SettingError, "--right CONDITION.*The records have the fields id, prompt, steps"),
        (
            {"right": "colour"},
            SettingError,
            "No record of .* has a field 'colour'. There are: id, row, num_steps, prompt",
        ),
        ({"right": "sign"}, DataError, "finds 0 right and 180 wrong among 180 samples.*sign is 'x', for example"),
        ({"right": "same"}, DataError, "--right 'same' finds 180 right and 0 wrong among 180 samples"),
        ({"right": "marks >= 99"}, DataError, "finds 0 right and 180 wrong.*marks is 0, 1, 2, for example"),
        ({"right": "marks >="}, SettingError, "--right 'marks >=': this is not a condition in SQL"),
        ({"first_wrong": "sign"}, DataError, "it holds 'x', and the number of a step from 0, or -1, is wanted"),
        ({"first_wrong": "far"}, DataError, "it holds '99', and a trace of . steps has no such step"),
        ({"wrong_steps": "far"}, DataError, "a list of the wrong steps' numbers, from 1, is wanted"),
        ({"right": "ok", "first_wrong": "first"}, SettingError, "Give one of --right"),
        ({"right": "ok", "samples": 0}, SettingError, "samples 0: input should be greater than or equal to 1"),
        ({"right": "ok", "samples": 6}, DataError, "of either, at least 5 are needed"),
    ],
)
def test_what_says_nothing_is_refused(
    planted: dict[str, Store], wanted: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gs.judge(planted["grace"], gs.JudgeSettings.parse(**wanted))


def test_few_labels_say_how_many_would_do(planted: dict[str, Store]) -> None:
    found = gs.judge(planted["none"], gs.JudgeSettings(right="ok", samples=48))
    assert "Too few labels to say" in found.conclusion
    assert "questions like these would narrow them to 0.05" in found.conclusion
    fewer = gs.judge(planted["none"], gs.JudgeSettings(right="ok", samples=24))
    assert fewer.conclusion.endswith("of 8 questions have no intervals. At least 20 questions are wanted.")


@pytest.mark.parametrize(("low", "is_told"), [(0.51, True), (0.49, False)])
def test_an_interval_above_chance_that_is_no_answer_is_explained(low: float, is_told: bool) -> None:
    """The best of several measures may lie above chance by chance, which a reader of the table cannot see."""
    unsure = Estimate(value=0.65, low=low, high=0.8, p_value=0.04, num=90)
    areas = {"all_pairs": unsure, "held_fixed": unsure}
    rows = tuple({"measure": f"loss of {name}", "of": "loss", "signal": name, **areas} for name in ("base", "late"))
    told = conclude_judged(JudgedItems("traces", 30, 30, 30, rows, {}, ()))
    assert told.startswith("Too few labels to say")
    assert (
        "lies above 0.50 in the table, but with so few labels the best of 2 may do so by chance." in told
    ) == is_told


def test_the_command_concludes_first_and_writes_what_can_be_read_back(
    planted: dict[str, Store], tmp_path: Path
) -> None:
    out, store = tmp_path / "judgement.json", planted["grace"].location
    run: Callable[..., Any] = CliRunner().invoke
    arguments = ["judge", store, "--first-wrong", "first", "--kind", "kind"]
    shown = run(main, [*arguments, "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("GRACE of base tells wrong steps")
    for words in ("held fixed", "by kind of error", "leap", "chance", "F1", f"{out}: the finding was written."):
        assert words in shown.stdout
    document = read_document(out, Finding)
    machine = json.loads(run(main, [*arguments, "--json"]).stdout)
    assert machine == document.to_json()
    refused = run(main, ["judge", store, "--right", "colour"])
    assert refused.exit_code == 1
    assert "has a field 'colour'" in " ".join(refused.stderr.split())


def concluded(areas: dict[str, Estimate]) -> str:
    """Return what is concluded from the areas of some measures of traces."""
    rows = tuple(
        {"measure": f"{name} of base", "of": name, "signal": "base", "all_pairs": area, "held_fixed": area}
        for name, area in areas.items()
    )
    return conclude_judged(JudgedItems("traces", 90, 90, 90, rows, {}, ()))


def test_the_area_that_is_printed_is_that_of_the_measure_that_is_named() -> None:
    """A measure of fewer pairs may have the larger area and yet not be surely above chance."""
    wide = Estimate(value=0.8, low=0.4, high=1.0, p_value=0.2, num=200)
    sure = Estimate(value=0.7, low=0.65, high=0.75, p_value=0.0001, num=2000)
    told = concluded({"entropy": wide, "loss": sure})
    assert told.startswith("Loss of base tells wrong traces from right ones better than chance (0.50)")
    assert "held fixed: 0.70 (0.65 to 0.75)." in told


def test_of_many_samples_those_with_a_row_of_labels_are_drawn(planted: dict[str, Store], tmp_path: Path) -> None:
    ids = planted["grace"].column("sample_id").tolist()
    rows = "".join(f"{name},{number % 2}\n" for number, name in enumerate(ids[100:160]))
    (tmp_path / "few.csv").write_text(f"id,fine\n{rows}")
    pool = gs.Pool.of(planted["grace"], labels=tmp_path / "few.csv")
    found = gs.judge(pool, gs.JudgeSettings(right="fine = 1", samples=70))
    assert (found.numbers["num_samples"], found.numbers["num_left_out"]) == (60, 0)
    assert gs.judge(pool, gs.JudgeSettings(right="fine = 1", samples=40)).numbers["num_samples"] == 40
    every = gs.judge(pool, gs.JudgeSettings(right="fine = 1"))
    assert (every.numbers["num_samples"], every.numbers["num_left_out"]) == (60, 120)


def test_a_measure_whose_opposite_tells_right_from_wrong_is_named_with_its_opposite() -> None:
    below = Estimate(value=0.2, low=0.15, high=0.25, p_value=0.0001, num=2000)
    chance = Estimate(value=0.51, low=0.46, high=0.56, p_value=0.7, num=2000)
    told = concluded({"entropy:lowest": below, "loss:lowest": chance})
    assert told.startswith("Entropy:lowest of base puts wrong traces above right ones, with number of steps and")
    assert told.endswith(": 0.20 (0.15 to 0.25). Judge entropy:highest instead (--measure entropy:highest).")


def test_the_last_line_is_the_command_that_chooses_by_what_was_found(planted: dict[str, Store]) -> None:
    pool = gs.Pool.of(planted["grace"], where="num_steps > 1")
    settings = gs.JudgeSettings(wrong_steps="wrong", score=gs.ScoreSpec(alpha=0.6))
    found = gs.judge(pool, settings)
    assert found.numbers["choose_by"] == "grace"
    assert "--where 'num_steps > 1' --measure grace --alpha 0.6 --out scores.parquet`" in found.notes[-1]
    assert "--exclude-flagged" in found.notes[-1]
    nothing = gs.judge(planted["none"], gs.JudgeSettings(right="ok", samples=48))
    assert nothing.numbers["choose_by"] is None
    assert nothing.notes[-1].startswith("No way of choosing follows from this")


def test_the_labels_of_a_filter_stay_in_the_command(moved: Path) -> None:
    pool = gs.Pool.of(str(moved / "store.zarr"), signals="base", labels=moved / "labels.csv", where='"ALONE" < 40')
    pool = gs.Pool.of(pool, data=[moved / "elsewhere.jsonl"])
    told = gs.judge(pool, gs.JudgeSettings(right="ok")).notes[-1]
    assert f"""--where '"ALONE" < 40' --labels {moved / "labels.csv"} --data""" in told


def test_random_numbers_follow_the_seed(planted: dict[str, Store]) -> None:
    def areas(seed: int) -> list[Cell]:
        score = gs.ScoreSpec(measure=("random",))
        found = gs.judge(planted["none"], gs.JudgeSettings(right="ok", seed=seed, score=score))
        return [found.tables["traces"].row(measure=name)["all_pairs"] for name in ("random of base", "random")]

    assert areas(1)[0] == areas(1)[1] == areas(1)[0]
    assert areas(1)[0] != areas(2)[0]


def test_any_measure_can_be_judged_by_name(planted: dict[str, Store]) -> None:
    found = gs.judge(
        planted["none"], gs.JudgeSettings(right="ok", score=gs.ScoreSpec(measure=("characters", "grace:min")))
    )
    names = [row.get("of") for row in found.tables["traces"]]
    assert names[:2] == ["characters:highest", "grace:min"]


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store of two signals, labels that follow GRACE, and the dataset at another place."""
    folder = tmp_path_factory.mktemp("moved")
    store = labelled_store(folder, [{}] * (NUM_QUESTIONS * NUM_TRACES))
    extract(ExtractJob(store=store.location, model=str(folder / "model"), signal="late", door="tests.fake_model"))
    value = gs.score(store, gs.ScoreRequest(signals="base")).value
    rows = [f"t{i},{value[i] > np.median(value):d},g{i // 6},{i // 3 if i >= 150 else -i - 1}" for i in range(180)]
    (folder / "labels.csv").write_text("\n".join(["id,ok,group,alone", *rows]) + "\n")
    (folder / "data.jsonl").rename(folder / "elsewhere.jsonl")
    return folder


@pytest.mark.parametrize(("question", "num_kept"), [(None, NUM_QUESTIONS), ("group", 30), ("alone", 36)])
def test_the_commands_that_are_told_can_be_pasted(
    moved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str | None, num_kept: int
) -> None:
    """30 of 180 traces share a value of alone with another trace, so there the best fifth of all traces is kept."""
    monkeypatch.chdir(moved)
    labels, data = str(moved / "labels.csv"), [str(moved / "elsewhere.jsonl")]
    pool = gs.Pool.of(str(moved / "store.zarr"), signals="base", labels=labels, data=["elsewhere.jsonl"])
    found = gs.judge(pool, gs.JudgeSettings(right="ok", question=question))
    monkeypatch.chdir(tmp_path)
    assert ("--labels" in found.notes[-1]) == (question == "group")
    assert found.notes[-1].count(f"--data {data[0]}") == 2
    for told in re.findall("`(grace-store [^`]*--out [^`]*)`", found.notes[-1]):
        run_command(*shlex.split(told)[1:])
    kept = [int(json.loads(line)["id"][1:]) for line in Path("subset.jsonl").read_text().splitlines()]
    assert len(kept) == num_kept
    if question != "alone":
        assert len({number // (6 if question else NUM_TRACES) for number in kept}) == num_kept


def test_a_column_is_judged_like_the_others_before_it_decides() -> None:
    """Of twenty measures, one is above chance within questions at p = 0.04 by chance alone."""
    sure = Estimate(value=0.7, low=0.65, high=0.75, p_value=0.0001, num=2000)
    for p_value, is_within in ((0.04, False), (0.002, True)):
        unsure = Estimate(value=0.6, low=0.51, high=0.7, p_value=p_value, num=2000)
        areas = {"all_pairs": sure, "held_fixed": sure, "same_question": unsure}
        rows = tuple({"measure": f"m{i}", "of": f"m{i}", "signal": "base", **areas} for i in range(20))
        items = JudgedItems("traces", 90, 90, 90, rows, {}, ())
        assert best_measure([items], has_groups=True)[1] == is_within
        assert not best_measure([items], has_groups=False)[1]


def test_a_first_wrong_step_may_be_a_whole_number_with_a_point(planted: dict[str, Store], tmp_path: Path) -> None:
    """pandas writes whole numbers with a point if some are missing; a part of a step is no label."""
    wrong = [json.loads(line)["first"] for line in Path(planted["grace"].plan.files[0].path).read_text().splitlines()]
    cells = [("", "1.5")[i // 10] if i < 20 else float(each) for i, each in enumerate(wrong)]
    (tmp_path / "labels.csv").write_text("id,step\n" + "".join(f"t{i},{each}\n" for i, each in enumerate(cells)))
    pool = gs.Pool.of(planted["grace"], labels=tmp_path / "labels.csv")
    events: list[Event] = []
    numbers = gs.judge(pool, gs.JudgeSettings(first_wrong="step"), listener=events.append).numbers
    assert [event.text for event in events if isinstance(event, Warned)] == [
        "10 labels in field 'step' cannot be used. The first: it holds '1.5', and the number of a step from 0, or -1, "
        "is wanted.",
        "20 samples without a usable label in field 'step' left out.",
    ]
    assert (numbers["num_left_out"], numbers["num_wrong_traces"]) == (20, sum(each >= 0 for each in wrong[20:]))


def test_weights_of_measures_are_refused(planted: dict[str, Store]) -> None:
    score = gs.ScoreSpec(measure=("grace=0.5", "loss:lowest=0.5"))
    with pytest.raises(SettingError, match=r"judged apart: leave the weight of grace=0.5 out"):
        gs.judge(planted["grace"], gs.JudgeSettings(right="ok", score=score))
