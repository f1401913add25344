"""Trials of tiny models: who is trained on what, that a kill changes nothing, and that several processes share."""

from __future__ import annotations

import hashlib
import json
import queue
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import grace_store.study.trial as trial_module
import grace_store.study.trial as trial_workers
import grace_store.study.trial_documents as trial_documents
import grace_store.study.trial_plan as trial_plan
import grace_store.study.trial_runs as trial_runs
from grace_store.base.documents import claim_document, read_document, write_document
from grace_store.base.errors import DataError, Interrupted, ResumeMismatch, SettingError, WorkerDied
from grace_store.base.events import Note, StepTaken, Warned, ignore
from grace_store.base.files import sidecar_of
from grace_store.base.finding import Estimate, Finding
from grace_store.base.settings import DataSpec, RunOptions
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.choose.selection import Selection, SubsetNote
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.scoring.score import score
from grace_store.scoring.weigh_steps import weights
from grace_store.store.opened import Store
from grace_store.study.contamination import contamination
from grace_store.study.trial import estimate_trial, prepare_trial, run_rounds, trial
from grace_store.study.trial_conclusion import conclude_questions, say_held_out
from grace_store.study.trial_documents import FOUND, PLAN, RUNS, TrialPlan, TrialRequest, TrialRun
from grace_store.study.trial_samples import gather_samples
from grace_store.train.recipe import order_updates
from grace_store.train.training import Training, weigh
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.weightings import WeightsSpec
from jobs.schemas import note_schema
from tests.conversations import write_conversations
from tests.tiny_vision_models import picture, tiny_vision_model
from tests.trials import NUM_SAMPLES, OPTIONS, TRAINING, make_pool, make_request, write_ids

BLIND = TRAINING.model_copy(update={"text_only": True})


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = make_pool(tmp_path_factory.mktemp("trial"))
    write_ids(folder / "clean.txt", range(0, 40, 2))
    write_ids(folder / "spoilt.txt", range(1, 41, 2))
    return folder


@pytest.fixture(scope="module")
def finished(home) -> Path:
    """A trial that nothing interrupted."""
    trial(home / "finished", make_request(home, home / "clean.txt"))
    return home / "finished"


def score_at_random(store: Path, model: Path, out: Path) -> Path:
    """Write a table of random scores of a store, which gets a signal unless it has one."""
    extract(ExtractJob(store=str(store), model=str(model), options=RunOptions(device="cpu")))
    score(str(store), ScoreSpec(measure=("random",), seed=3), out=out)
    return out


def changed(run: TrialRun, **fields: Any) -> TrialRun:
    """Return a training's result with other fields, and the digest of those."""
    return TrialRun.sealed(**(dict(run) | fields))


def losses_of(found: Finding, subset: str) -> list[float]:
    """Return the held-out loss of a subset, and then those of its random ones."""
    return [row["heldout_loss"] for row in found.tables["arms"] if row["subset"] == subset]


def content(out: Path) -> dict[str, str]:
    """Everything that a trial left behind, by file."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_it_leaves_a_plan_a_document_for_each_training_and_the_result(home, finished):
    arms = ("subset-1", "random-1-1", "random-1-2")
    runs = [f"{RUNS}/{round}-{arm}.json" for round in (1, 2) for arm in arms]
    assert set(content(finished)) == {PLAN, FOUND, *runs}
    for path, kind in [(PLAN, TrialPlan), (FOUND, Finding), *((run, TrialRun) for run in runs)]:
        jsonschema.validate(json.loads((finished / path).read_text()), json.loads(note_schema(kind)))
    found = read_document(finished / FOUND, Finding)
    counts = {"num_pool": 60, "num_held_out_samples": 10, "num_items": 10, "num_runs": 6, "num_most_runs": 6}
    assert found.numbers == counts
    assert found.conclusion == found.tables["subsets"].row(subset="clean.txt")["conclusion"]
    assert set(found.tables) == {"subsets", "arms"}


def test_numbers_are_those_of_the_runs(finished):
    """The mean over all tokens of all items, over both seeds, by hand."""
    found = read_document(finished / FOUND, Finding)
    (row,) = found.tables["subsets"]

    def loss(arm: str) -> float:
        runs = [read_document(finished / RUNS / f"{round}-{arm}.json", TrialRun) for round in (1, 2)]
        sums = [sum(item.loss * item.num_tokens for item in run.items) for run in runs]
        return float(np.mean(sums)) / sum(item.num_tokens for item in runs[0].items)

    randoms = [loss("random-1-1"), loss("random-1-2")]
    assert row["heldout_loss"] == pytest.approx(loss("subset-1"))
    assert losses_of(found, "clean.txt") == pytest.approx([loss("subset-1"), *randoms])
    assert row["difference"].value == pytest.approx(loss("subset-1") - np.mean(randoms))


def test_trainings_differ_by_seed_and_by_subset_and_lower_the_loss(home, finished):
    runs = {path.stem: read_document(path, TrialRun) for path in (finished / RUNS).iterdir()}
    runner = trial_runs.TrialRunner(prepare_trial(finished, make_request(home)), ignore, threading.Event())
    training = runner.training()
    untrained = training.losses(runner._items).sum() / sum(len(item.learnt) for item in runner._items)
    assert max(run.heldout_loss for run in runs.values()) < untrained
    assert len({run.heldout_loss for run in runs.values()}) == len(runs)
    assert {run.seed for run in runs.values()} == {0, 1}


# ---------------------------------------------------------------- who is trained on what


def test_no_model_sees_a_held_out_question_and_random_subsets_are_as_large(home):
    job = prepare_trial(home / "unused", make_request(home, home / "clean.txt", num_random=3))
    held = set(job.samples.held_out.tolist())
    assert len(held) == 10
    whole = {key: set(arm.positions.tolist()) for key, arm in job.samples.arms.items()}
    assert all(not held & positions for positions in whole.values())
    chosen = set(range(0, 40, 2))
    assert whole["subset-1"] == chosen - held
    assert job.plan.subsets[0].num_samples == 20
    assert job.plan.subsets[0].num_trained == len(chosen - held)
    assert len({frozenset(each) for each in whole.values()}) == 4
    # A random subset is 20 of the pool before the held-out ones are taken out of it.
    assert all(20 - len(held) <= len(each) <= 20 for each in whole.values())
    assert any(len(each) < 20 for each in whole.values())


def test_held_out_questions_are_drawn_from_chosen_and_others_alike(home):
    subset = set(range(0, 40, 2))
    job = prepare_trial(home / "unused", make_request(home, home / "clean.txt"))
    spec, files = job.plan.spec, [(home / "clean.txt", None)]
    shares = []
    for seed in range(30):
        seeded = spec.model_copy(update={"training": spec.training.model_copy(update={"seed": seed})})
        held = gather_samples(job.samples.store, files, seeded, None, None).held_out.tolist()
        shares.append(len(subset & set(held)) / len(held))
    assert np.mean(shares) == pytest.approx(len(subset) / NUM_SAMPLES, abs=0.08)


def test_subsets_of_one_size_share_their_random_ones(home):
    job = prepare_trial(home / "unused", make_request(home, home / "clean.txt", home / "spoilt.txt"))
    assert sorted(job.samples.arms) == ["random-1-1", "random-1-2", "subset-1", "subset-2"]
    assert job.num_most_runs == 8


def test_held_out_traces_of_a_file_keep_their_questions_out_of_the_training(home, tmp_path):
    lines = (home / "traces.jsonl").read_text().splitlines()
    (tmp_path / "target.jsonl").write_text("\n".join(lines[:12]) + "\n")
    request = make_request(home, home / "clean.txt", held_out=str(tmp_path / "target.jsonl"))
    job = prepare_trial(tmp_path / "out", request)
    assert len(job.plan.held_out) == 12
    assert all(arm.positions.min() >= 12 for arm in job.samples.arms.values())
    assert job.plan.spec.held_out == "target.jsonl"
    assert job.plan.num_held_out_samples == 12


def test_a_held_out_question_that_is_written_otherwise_is_not_trained_on_either(home, tmp_path):
    records = [json.loads(line) for line in (home / "traces.jsonl").read_text().splitlines()[:12]]
    others = [{**each, "prompt": each["prompt"].replace(". How", " -\n how") + " "} for each in records]
    (tmp_path / "target.jsonl").write_text("".join(json.dumps(each) + "\n" for each in others))
    request = make_request(home, home / "clean.txt", held_out=str(tmp_path / "target.jsonl"))
    job = prepare_trial(tmp_path / "out", request)
    assert job.plan.num_held_out_samples == 12
    assert say_held_out(job.plan) == (
        "12 of the 60 samples of the pool ask held-out questions (12); no model is trained on them."
    )
    nothing = job.plan.model_copy(update={"num_held_out_samples": 0})
    assert say_held_out(nothing).startswith("None of the 60 samples of the pool asks one of the 12 held-out questions")


def test_what_a_subset_could_not_hold_is_in_no_random_subset(home, tmp_path):
    """Some traces repeat themselves, and the questions of some others are a benchmark's."""
    words = ["amber", "birch", "cedar", "delta", "ember", "flint", "grove", "heron", "inlet", "jetty", "knoll", "larch"]
    records = []
    for i in range(40):
        asked = (
            " ".join(words[i:] + words[:i]) + f" river stone {words[i]} path?" if i < 8 else f"Count to {i}, slowly."
        )
        steps = ["He buys some apples again."] * 6 if i % 5 == 4 else ["He buys some.", f"Now he has {i} of them."]
        records.append({"id": f"case-{i}", "prompt": asked, "steps": steps, "answer": f"The answer is {i}."})
    for name, some in [("traces.jsonl", records), ("bench.jsonl", records[:8])]:
        (tmp_path / name).write_text("".join(json.dumps(each) + "\n" for each in some))
    store = plan([tmp_path / "traces.jsonl"], tmp_path / "pool.zarr", DataSpec(min_steps=2))
    score_at_random(tmp_path / "pool.zarr", home / "model", tmp_path / "scores.parquet")
    found = contamination(store, [tmp_path / "bench.jsonl"])
    assert found.contaminated.tolist() == list(range(8))
    request = Selection(exclude_flagged=["repeated_steps"], exclude_contaminated=found)
    export(select(tmp_path / "scores.parquet", request, ratio="0.4"), tmp_path / "subset.jsonl")
    spec = prepare_trial(home / "unused", make_request(home, home / "clean.txt")).plan.spec
    many = spec.model_copy(update={"num_random": 20, "held_out": "8"})
    samples = gather_samples(store, [(tmp_path / "subset.jsonl", None)], many, None, None)
    possible = {i for i in range(8, 40) if i % 5 != 4}
    assert samples.num_pool == len(possible)
    trained = {int(place) for arm in samples.arms.values() for place in arm.positions}
    assert trained | set(samples.held_out.tolist()) == possible
    write_ids(tmp_path / "others.txt", range(6, 20))
    both = [(tmp_path / "subset.jsonl", None), (tmp_path / "others.txt", None)]
    with pytest.raises(
        SettingError, match=r"others\.txt has 5 samples that the filters or exclusions of another subset"
    ):
        gather_samples(store, both, many, None, None)
    note = json.loads((tmp_path / "subset.jsonl.spec.json").read_text())
    assert note.pop("contaminated_rows") == list(range(8))
    (tmp_path / "subset.jsonl.spec.json").write_text(json.dumps(note))
    with pytest.raises(DataError, match="does not list the samples that were left out as contaminated"):
        gather_samples(store, [(tmp_path / "subset.jsonl", None)], many, None, None)


def test_one_item_stands_for_all_traces_of_a_question(tmp_path):
    make_pool(tmp_path, 24)
    lines = [json.loads(line) for line in (tmp_path / "traces.jsonl").read_text().splitlines()]
    lines = [line for line in lines if len(line["steps"]) > 1]
    again = [{**line, "id": f"again-{line['id']}", "steps": [*line["steps"], "So it is."]} for line in lines]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines + again))
    shutil.rmtree(tmp_path / "pool.zarr")
    plan([tmp_path / "traces.jsonl"], tmp_path / "pool.zarr", DataSpec(min_steps=2))
    write_ids(tmp_path / "subset.txt", range(12))
    job = prepare_trial(tmp_path / "out", make_request(tmp_path, tmp_path / "subset.txt"))
    questions = {int(place) % 24 for place in job.samples.held_out}
    assert len(questions) == len(job.samples.held_out) == 10
    assert job.plan.num_held_out_samples == 20
    assert all(questions.isdisjoint(arm.positions % 24) for arm in job.samples.arms.values())
    assert job.samples.num_questions["subset-1"] == 12
    kept = {key: len(set((arm.positions % 24).tolist())) for key, arm in job.samples.arms.items()}
    assert all(kept[key] <= number <= 12 for key, number in job.samples.num_questions.items())
    assert min(job.samples.num_questions.values()) < 12


def tried(name: str, num_questions: int, random: tuple[int, ...], difference: float = 0.01) -> tuple[Any, list[Any]]:
    """Return the row of a subset, and those of its arms."""
    found = Estimate(value=difference, low=difference - 1, high=difference + 1)
    arms = [{"subset": name, "num_questions": number} for number in (num_questions, *random)]
    return {"subset": name, "difference": found}, arms


WITHIN = ": to choose within questions, select with --per-group."


@pytest.mark.parametrize(
    ("subsets", "told"),
    [
        ([tried("a", 88, (138, 131))], "Random subsets have traces of 131 to 138 questions, a of 88" + WITHIN),
        ([tried("a", 1, (20, 20), 0.0)], "Random subsets have traces of 20 questions, a of 1" + WITHIN),
        ([tried("a", 118, (131, 138))], None),  # hardly fewer
        ([tried("a", 88, (131, 138), -0.01)], None),  # and yet it trains better models
        ([tried("a", 150, (131, 138))], None),
        (
            [tried("a", 88, (138, 131)), tried("b", 90, (138, 131)), tried("c", 10, (20, 22))],
            "Random subsets have traces of 131 to 138 questions, a of 88, b of 90; random subsets have traces of 20 to "
            "22 questions, c of 10" + WITHIN,
        ),
    ],
)
def test_subsets_of_few_questions_are_told_unless_they_are_better(subsets, told):
    assert conclude_questions([row for row, _ in subsets], [arm for _, arms in subsets for arm in arms]) == told


# ---------------------------------------------------------------- kills, resuming, sharing


class Killed(Exception):
    pass


def test_killed_at_a_step_it_goes_on_from_there_and_ends_with_the_same_bytes(home, finished, tmp_path):
    taken = []

    def listen(event):
        if isinstance(event, StepTaken):
            taken.append(event)
            if len(taken) == 8:
                raise Killed

    often = make_request(home, home / "clean.txt", options=OPTIONS.model_copy(update={"save_seconds": 0}))
    with pytest.raises(Killed):
        trial(tmp_path / "out", often, listener=listen)
    trial(tmp_path / "out", replace(often, subsets=(), store=None, model=None), listener=listen)
    assert content(tmp_path / "out") == content(finished)
    assert len(taken) in (18, 19), "of 3 updates of 6 trainings, at most the one that was killed is taken twice"


@pytest.mark.parametrize("is_written", [False, True])
def test_killed_at_the_end_of_a_training_it_ends_with_the_same_bytes(home, finished, tmp_path, monkeypatch, is_written):
    written = []

    def killed(path, document):
        written.append(path)
        if len(written) != 2 or is_written:
            write_document(path, document)
        if len(written) == 2:
            raise Killed

    request = make_request(home, home / "clean.txt")
    monkeypatch.setattr(trial_documents, "write_document", killed)
    with pytest.raises(Killed):
        trial(tmp_path / "out", request)
    monkeypatch.setattr(trial_documents, "write_document", write_document)
    trial(tmp_path / "out", request)
    assert content(tmp_path / "out") == content(finished)
    assert not (tmp_path / "out" / trial_documents.UNDER_WAY).exists()


def test_of_two_that_begin_at_once_with_other_settings_one_is_refused(home, tmp_path, monkeypatch):
    theirs = prepare_trial(tmp_path / "out", make_request(home, home / "clean.txt", num_updates=4)).plan

    def late(path, document):
        write_document(path, theirs)
        return claim_document(path, document)

    monkeypatch.setattr(trial_module, "claim_document", late)
    with pytest.raises(ResumeMismatch, match="updates: begun with 4, now 3"):
        trial(tmp_path / "out", make_request(home, home / "clean.txt"))
    assert read_document(tmp_path / "out" / PLAN, TrialPlan) == theirs
    assert not (tmp_path / "out" / RUNS).exists()


def test_runs_that_were_measured_on_other_items_are_refused(home, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    path = tmp_path / "out" / RUNS / "2-random-1-1.json"
    run = read_document(path, TrialRun)
    write_document(path, changed(run, items=run.items[1:]))
    with pytest.raises(DataError, match=r"2-random-1-1\.json was measured on other held-out items \(9\) than 1-subset"):
        trial(tmp_path / "out", make_request(home, home / "clean.txt"))


@pytest.mark.parametrize("is_over", [False, True])
def test_a_lost_worker_fails_only_a_trial_that_is_not_over(tmp_path, monkeypatch, is_over):
    class Lost:
        exitcode = -9

        def start(self):
            pass

        def is_alive(self):
            return False

    class Context:
        Queue, Event = queue.Queue, threading.Event

        def Process(self, **_):  # noqa: N802
            return Lost()

    monkeypatch.setattr(trial_workers.multiprocessing, "get_context", lambda _: Context())
    told = []
    arguments = (tmp_path, TrialRequest(devices=("cpu",)), told.append, threading.Event(), lambda: is_over)
    if not is_over:
        with pytest.raises(WorkerDied, match=r"Exit codes: -9\. Finished trainings are kept"):
            trial_workers.run_workers(*arguments)
        return
    trial_workers.run_workers(*arguments)
    assert [event.text for event in told if isinstance(event, Warned)] == [
        "Exit codes: -9. The other workers did all trainings."
    ]


def test_asked_to_stop_it_says_where_it_is_and_goes_on_from_there(home, finished, tmp_path):
    stop, told = threading.Event(), []

    def listen(event):
        told.append(event)
        if isinstance(event, StepTaken) and event.step == 2:
            stop.set()

    request = make_request(home, home / "clean.txt")
    with pytest.raises(Interrupted, match="run the same command again"):
        trial(tmp_path / "out", request, listener=listen, stop=stop)
    trial(tmp_path / "out", request)
    assert content(tmp_path / "out") == content(finished)


def test_a_finished_trial_needs_no_model(home, finished, monkeypatch):
    before = content(finished)

    def refuse(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(Training, "__init__", refuse)
    found = trial(finished, make_request(home, home / "clean.txt"))
    assert content(finished) == before
    assert found == read_document(finished / FOUND, Finding)


def test_several_threads_of_work_share_the_trainings(home, finished, tmp_path):
    """As several processes would: each takes what nobody has taken, and all end with the same result."""
    told: list[list[str]] = [[], []]
    found: list[Finding] = []

    def work(number: int) -> None:
        def listen(event):
            if isinstance(event, Note) and event.text.startswith("Seed"):
                told[number].append(event.text)

        found.append(trial(tmp_path / "out", make_request(home, home / "clean.txt"), listener=listen))

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert content(tmp_path / "out") == content(finished)
    assert len(told[0]) + len(told[1]) == 6
    assert found[0] == found[1]


def test_worker_processes_end_with_the_same_bytes(home, finished, tmp_path):
    told = []
    request = make_request(home, home / "clean.txt", devices=("cpu", "cpu"))
    trial(tmp_path / "out", request, listener=told.append)
    assert content(tmp_path / "out") == content(finished)
    assert any("Starting 2 workers" in event.text for event in told if isinstance(event, Note))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_updates": 4}, "\n  updates: begun with 3, now 4"),
        ({"num_seeds": 3}, "\n  seeds: begun with 2, now 3"),
        ({"num_seeds": 3}, "would break it. For another number, begin a trial of its own with a new --out, and with"),
        ({"num_random": 3}, "\n  random: begun with 2, now 3\nLeave those options out .* Nothing was written.$"),
        ({"training": TRAINING.model_copy(update={"rank": 2})}, "rank: begun with 4, now 2"),
        ({"held_out": "12"}, "held-out: begun with 10, now 12"),
    ],
)
def test_other_settings_are_refused_with_what_differs(home, finished, changes, told):
    before = content(finished)
    with pytest.raises(ResumeMismatch, match=told):
        trial(finished, make_request(home, home / "clean.txt", **changes))
    assert content(finished) == before


def test_another_subset_is_refused(home, finished, tmp_path):
    with pytest.raises(ResumeMismatch, match=r"subsets: begun with clean\.txt, now spoilt\.txt"):
        trial(finished, make_request(home, home / "spoilt.txt"))
    other = write_ids(tmp_path / "clean.txt", range(20))
    with pytest.raises(ResumeMismatch, match=rf"\n  {other}: other samples than then\nPut the files back"):
        trial(finished, make_request(home, other))


def test_a_run_of_another_trial_is_refused(home, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    path = tmp_path / "out" / RUNS / "1-subset-1.json"
    write_document(path, changed(read_document(path, TrialRun), plan_sha256="0" * 64))
    with pytest.raises(ResumeMismatch, match="belongs to another trial"):
        trial(tmp_path / "out", make_request(home, home / "clean.txt"))


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ("1-random-1-1", "on random 1 in round 1 with seed 0; that on clean.txt in round 1 with seed 0 was expected"),
        ("2-subset-1", "on clean.txt in round 2 with seed 1; that on clean.txt in round 1 with seed 0 was expected"),
    ],
    ids=["arm", "round"],
)
def test_the_result_of_another_training_under_a_wrong_name_is_refused(home, finished, tmp_path, held, told):
    shutil.copytree(finished, tmp_path / "out")
    runs = tmp_path / "out" / RUNS
    shutil.copy(runs / f"{held}.json", runs / "1-subset-1.json")
    told = re.escape(f"1-subset-1.json holds another training, {told}") + ".*delete it and run the same command again"
    with pytest.raises(DataError, match=told):
        trial(tmp_path / "out", make_request(home, home / "clean.txt"))


def test_the_result_of_another_seed_is_refused(home, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    path = tmp_path / "out" / RUNS / "2-random-1-2.json"
    write_document(path, changed(read_document(path, TrialRun), seed=7))
    with pytest.raises(DataError, match=r"2-random-1-2\.json holds another training, .* seed 7; that .* seed 1 was"):
        trial(tmp_path / "out", make_request(home, home / "clean.txt"))


def test_one_changed_digit_of_a_result_is_noticed_wherever_it_is(home, finished, tmp_path):
    """And the training is repeated, to the same bytes, if the file is deleted as the message says."""
    shutil.copytree(finished, tmp_path / "out")
    path, request = tmp_path / "out" / RUNS / "2-subset-1.json", make_request(home, home / "clean.txt")
    whole = path.read_text()
    digits = [match.start() for match in re.finditer(r'"(?:loss|num_tokens|num_samples|num_left_out)": [0-9]', whole)]
    assert len(digits) > 20
    job = prepare_trial(tmp_path / "out", request)
    (run,) = job.planned([job.samples.arms["subset-1"]], 2)
    assert job.read(run) is not None
    for start in digits:
        place = whole.index(": ", start) + 2
        digit = int(whole[place])
        path.write_text(f"{whole[:place]}{digit + 1 if digit < 9 else 8}{whole[place + 1 :]}")
        with pytest.raises(DataError, match=r"2-subset-1\.json does not match its own digest: it was damaged"):
            job.read(run)
    with pytest.raises(DataError, match="or delete it and run the same command again: only this training is repeated"):
        trial(tmp_path / "out", request)
    path.unlink()
    trial(tmp_path / "out", request)
    assert content(tmp_path / "out") == content(finished)


def test_a_result_without_a_digest_is_refused(home, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    path = tmp_path / "out" / RUNS / "1-subset-1.json"
    note = json.loads(path.read_text())
    del note["sha256"]
    path.write_text(json.dumps(note))
    with pytest.raises(DataError, match=r"1-subset-1\.json .*sha256 is missing\. Delete it and run `grace-store"):
        trial(tmp_path / "out", make_request(home, home / "clean.txt"))


@pytest.mark.parametrize("name", [PLAN, f"{RUNS}/1-subset-1.json"])
def test_a_draft_is_refused_and_left_as_it_is(home, finished, tmp_path, name):
    shutil.copytree(finished, tmp_path / "out")
    path = tmp_path / "out" / name
    path.write_text(path.read_text().replace('"version": "2.1"', '"version": "1.3"'))
    before = content(tmp_path / "out")
    with pytest.raises(DataError, match=rf"{name} has version 1\.3 of the format, .* reads only version 2\.1"):
        trial(tmp_path / "out", make_request(home, home / "clean.txt"))
    assert content(tmp_path / "out") == before


def test_weights_of_segments_reach_the_training_loop(home, tmp_path):
    """Weights of 1 change nothing, and of 2 neither, as a mean is taken; without the answer, training differs."""
    endless = TRAINING.model_copy(update={"train_eos": False})  # the end of a turn always counts 1
    losses = {}
    for name, steps, answer in [("none", 1.0, 1.0), ("one", 1.0, 1.0), ("two", 2.0, 2.0), ("steps alone", 1.0, 0.0)]:
        job = prepare_trial(tmp_path / name, make_request(home, home / "clean.txt", training=endless, num_seeds=1))
        arm = job.samples.arms["subset-1"]
        num_steps, row = (job.samples.store.column(name) for name in ("sample_num_steps", "sample_row"))
        counts = {int(row[i]): np.array([steps] * int(num_steps[i]) + [answer]) for i in arm.positions}
        counts = {} if name == "none" else counts
        job.samples.arms["subset-1"] = replace(arm, weights=counts)
        found = run_rounds(job, lambda event: None, threading.Event())
        losses[name] = losses_of(found, "clean.txt")[0]
    plain = losses["none"]
    assert losses["one"] == pytest.approx(plain, rel=1e-5)
    assert losses["two"] == pytest.approx(plain, rel=1e-5)
    assert abs(losses["steps alone"] - plain) > 1e-3


def test_the_end_of_the_turn_counts_once_whatever_the_answer_does(home, finished):
    runner = trial_runs.TrialRunner(prepare_trial(finished, make_request(home)), ignore, threading.Event())
    runner.training()
    item = runner._items[0]
    num_segments = int(item.segment[-1])
    assert weigh(item, np.zeros(num_segments)).total_weight == 1.0
    assert weigh(item, np.full(num_segments, 3.0)).weight.tolist() == [3.0] * (len(item.learnt) - 1) + [1.0]


def test_only_what_is_trained_on_is_read_and_it_is_what_all_of_it_would_give(home, finished):
    job = prepare_trial(finished, make_request(home))
    runner = trial_runs.TrialRunner(job, ignore, threading.Event())
    run = job.planned([job.samples.arms["subset-1"]], 2)[0]
    used, num_left_out = runner._used(run)
    rows = job.samples.store.column("sample_row")[run.arm.positions].tolist()
    assert len(rows) > 12
    wanted = [rows[i] for step in order_updates(rows, run.seed, 4, 3) for i in step]
    assert ([row for _, row in used], num_left_out) == (wanted, 0)
    assert len(runner._encoded) == 12


def test_a_subset_is_tried_with_its_step_weights_and_without(home, tmp_path):
    extract(ExtractJob(store=str(home / "pool.zarr"), model=str(home / "model"), options=RunOptions(device="cpu")))
    weights(home / "pool.zarr", WeightsSpec(method="drop"), out=tmp_path / "weights.parquet")
    clean = home / "clean.txt"
    request = make_request(home, clean, weighted=[(clean, tmp_path / "weights.parquet")], num_seeds=1)
    found = trial(tmp_path / "trial", request)
    names = ["clean.txt", "clean.txt with weights.parquet"]
    assert found.tables["subsets"].column("subset") == names
    (equal, *random), (weighted, *others) = (losses_of(found, name) for name in names)
    assert weighted != equal
    assert random == others
    (pair,) = found.tables["pairs"]
    assert [pair["first"], pair["second"]] == names
    assert pair["difference"].value == pytest.approx(equal - weighted)
    assert trial(tmp_path / "trial", TrialRequest(options=OPTIONS)) == found, "where the weights are is known"
    weights(home / "pool.zarr", WeightsSpec(method="fit"), out=tmp_path / "weights.parquet")
    with pytest.raises(ResumeMismatch, match=r"clean\.txt or .*weights\.parquet: other samples or weights than then"):
        trial(tmp_path / "trial", TrialRequest(options=OPTIONS))
    other = make_request(home, clean, weighted=[(home / "spoilt.txt", tmp_path / "weights.parquet")], num_seeds=1)
    with pytest.raises(ResumeMismatch, match=r"now clean\.txt, spoilt\.txt with weights\.parquet"):
        trial(tmp_path / "trial", other)


def test_a_subset_that_was_written_with_weights_or_changed_since_is_told_of(home, tmp_path):
    scores = score_at_random(home / "pool.zarr", home / "model", tmp_path / "scores.parquet")
    table, subset = tmp_path / "weights.parquet", tmp_path / "subset.jsonl"
    weights(home / "pool.zarr", WeightsSpec(method="fit"), out=table)
    export(select(scores, ratio="0.4"), subset, as_format="ms-swift", weights=table)
    request = make_request(home, subset)
    (remark,) = prepare_trial(tmp_path / "out", request).remarks
    assert remark.startswith("subset.jsonl was written with step weights, and is tried without them.")
    told = []
    estimate_trial(tmp_path / "out", request, listener=told.append)
    assert [event.text for event in told if isinstance(event, Warned)] == [remark]
    notes = [event.text for event in told if isinstance(event, Note)]
    assert notes[0] == "Reading the subsets and the held-out traces."
    assert notes[-2:] == ["Loading model.", "Timing one update and the measurement of a few held-out traces."]
    assert not prepare_trial(tmp_path / "out", replace(request, weighted=[(subset, table)])).remarks
    subset.write_text("".join(subset.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(
        DataError, match=r"subset\.jsonl was changed since `grace-store select` wrote it: subset\.jsonl\."
    ):
        prepare_trial(tmp_path / "out", request)


# ---------------------------------------------------------------- answers


def test_models_answer_and_their_right_answers_are_compared(home, tmp_path, monkeypatch):
    """What is written is made up: the right answer to every other item of one subset, and nonsense elsewhere."""

    def answers(self, items, max_new_tokens):
        assert max_new_tokens == 7
        right = [f"So.\nThe answer is {number + 1}." for number in held]
        return [text if place % 2 else None for place, text in enumerate(right)]

    request = make_request(home, home / "clean.txt", generate=True, max_new_tokens=7, num_updates=1)
    held = prepare_trial(tmp_path / "out", request).samples.held_out.tolist()
    monkeypatch.setattr(Training, "answers", answers)
    found = trial(tmp_path / "out", request)
    assert found.tables["arms"].column("share_right") == [0.5, 0.5, 0.5]
    (row,) = found.tables["answers"]
    assert (row["share_right"], row["random_shares"], row["difference"].value) == (0.5, "0.500 to 0.500", 0.0)
    assert row["conclusion"] in found.conclusion
    assert row["conclusion"] == (
        "No difference was found in how many questions models trained on clean.txt answer right: 0.500 of them, of "
        "random subsets 0.500 (difference +0.000, 0.000 to 0.000)."
    )
    run = read_document(tmp_path / "out" / RUNS / "1-subset-1.json", TrialRun)
    assert [item.is_right for item in run.items] == [bool(place % 2) for place in range(10)]


def write_illustrated(path: Path, records: list[dict[str, object]], name: str) -> None:
    """Write records with an image each, which lie beside their file."""
    path.parent.mkdir(exist_ok=True)
    for i, record in enumerate(records):
        picture(24 + 4 * (i % 3), 24, seed=i).save(path.parent / f"{name}-{i}.png")
        record["images"] = [f"{name}-{i}.png"]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_vision_language_model_is_tried_on_its_images(tmp_path):
    make_pool(tmp_path, 20)
    records = [json.loads(line) for line in (tmp_path / "traces.jsonl").read_text().splitlines()]
    write_illustrated(tmp_path / "traces.jsonl", records, "pool")
    shutil.rmtree(tmp_path / "pool.zarr")
    plan([tmp_path / "traces.jsonl"], tmp_path / "pool.zarr", DataSpec(min_steps=2))
    subset = write_ids(tmp_path / "subset.txt", range(12))
    model = tiny_vision_model("qwen3_vl", tmp_path / "vision")
    small = {"num_updates": 1, "num_seeds": 1, "held_out": "8", "generate": True, "max_new_tokens": 3}
    found = trial(tmp_path / "out", make_request(tmp_path, subset, model=str(model), **small))
    assert (found.numbers["num_items"], found.numbers["num_runs"]) == (8, 3)
    assert found.tables["answers"].column("share_right") != [None]
    run = read_document(tmp_path / "out" / RUNS / "1-subset-1.json", TrialRun)
    other = trial(tmp_path / "blind", make_request(tmp_path, subset, model=str(model), **small, training=BLIND))
    assert losses_of(other, "subset.txt")[0] != pytest.approx(run.heldout_loss, rel=1e-6)
    write_illustrated(tmp_path / "other" / "test.jsonl", records[:9], "test")
    small["held_out"] = str(tmp_path / "other" / "test.jsonl")
    job = prepare_trial(tmp_path / "beside", make_request(tmp_path, subset, model=str(model), **small))
    runner = trial_runs.TrialRunner(job, ignore, threading.Event())
    runner.cost(job.samples.arms["subset-1"])
    assert [item.images is not None for item in runner._items] == [True] * 9, "images of a file lie beside it"


# ---------------------------------------------------------------- what it says, and what it refuses


def test_a_clear_answer_ends_it_and_closes_only_that_subset(home, tmp_path, monkeypatch):
    """One subset is amidst its random ones and the other far away: nothing more is trained for that one then."""
    real = trial_runs.TrialRunner._train
    losses = {"subset-1": 2.0, "subset-2": 1e6, "random-1-1": 1.0, "random-1-2": 2.0, "random-1-3": 3.0}

    def moved(self, run):
        found = real(self, run)
        items = [item.model_copy(update={"loss": losses[run.arm.key]}) for item in found.items]
        return changed(found, items=tuple(items))

    monkeypatch.setattr(trial_runs.TrialRunner, "_train", moved)
    request = make_request(home, home / "clean.txt", home / "spoilt.txt", num_updates=1, num_random=3, num_seeds=3)
    found = trial(tmp_path / "out", request)
    assert found.tables["subsets"].column("num_rounds") == [3, 2]
    assert (found.numbers["num_runs"], found.numbers["num_most_runs"]) == (14, 15)
    assert "Random subsets train better models than spoilt.txt" in found.conclusion
    assert "clear after 2 of 3 seeds" in found.conclusion
    (pair,) = found.tables["pairs"]
    assert (pair["first"], pair["second"], pair["num_rounds"]) == ("clean.txt", "spoilt.txt", 2), "the seeds of both"
    assert pair["difference"].value == pytest.approx(2.0 - 1e6)
    told = "clean.txt trains better models than spoilt.txt: held-out loss lower by 999998."
    assert pair["conclusion"].startswith(told)
    assert found.conclusion.endswith(pair["conclusion"])

    def refuse(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(Training, "__init__", refuse)
    assert trial(tmp_path / "out", request) == found


def test_too_few_updates_are_refused_before_anything_is_written(home, tmp_path, monkeypatch):
    monkeypatch.setattr(trial_plan, "FEWEST_UPDATES", 8)
    with pytest.raises(SettingError, match=r"2 updates of a model are too few .* at least 8 with --updates"):
        trial(tmp_path / "out", make_request(home, home / "clean.txt", num_updates=2))
    assert not (tmp_path / "out").exists()


def test_long_samples_are_warned_of_in_words_of_training(home, finished, caplog):
    job = prepare_trial(finished, make_request(home))
    runner = trial_runs.TrialRunner(job, ignore, threading.Event())
    for encoder in runner.training()._encoders.values():
        encoder._reader._context = 5  # as if the model were made for shorter samples
    runner._usable(job.samples.arms["subset-1"].positions[:2])
    assert "context of 5 (max_position_embeddings): the model may learn little" in caplog.text
    assert "--max-length 5 leaves these samples out" in caplog.text
    assert "--signal" not in caplog.text


def test_the_cost_is_told_before_anything_is_trained(home, tmp_path):
    cost = estimate_trial(tmp_path / "out", make_request(home, home / "clean.txt"))
    numbers = cost.numbers
    assert (numbers["num_runs"], numbers["num_done"], numbers["num_devices"]) == (6, 0, 1)
    assert numbers["seconds"] > 0
    assert "6 trainings of 3 updates to do" in cost.conclusion
    assert not (tmp_path / "out").exists()


def test_the_cost_of_answers_is_part_of_it(home, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Training, "answers", lambda self, items, most: asked.append((len(items), most)))
    estimate_trial(tmp_path / "out", make_request(home, home / "clean.txt", generate=True, max_new_tokens=5))
    assert asked == [(8, 5)]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"held_out": "3"}, "holds 3 questions out; at least 8"),
        ({"held_out": "60"}, "nor a whole number below 60"),
        ({"held_out": "1.5"}, "nor a whole number below 60"),
        ({"store": None}, "does not name its store"),
        ({"model": None}, "name the model to train with --model"),
    ],
)
def test_what_has_no_meaning_is_said(home, tmp_path, changes, told):
    with pytest.raises(SettingError, match=told):
        prepare_trial(tmp_path / "out", make_request(home, home / "clean.txt", **changes))


def test_a_subset_of_everything_has_no_random_ones_to_compare_with(home, tmp_path):
    write_ids(tmp_path / "all.txt", range(NUM_SAMPLES))
    with pytest.raises(SettingError, match="random subsets of its size would be the same"):
        prepare_trial(tmp_path / "out", make_request(home, tmp_path / "all.txt"))


def test_a_subset_that_is_not_there_is_said(home, tmp_path):
    with pytest.raises(DataError, match=r"There is no .*none\.txt"):
        prepare_trial(tmp_path / "out", make_request(home, tmp_path / "none.txt"))


def test_a_table_or_pairs_given_for_a_subset_are_said(home, tmp_path):
    table = score_at_random(home / "pool.zarr", home / "model", tmp_path / "scores.parquet")
    with pytest.raises(DataError, match=r"scores\.parquet is a table, not a subset\. Run `grace-store select`"):
        prepare_trial(tmp_path / "out", make_request(home, table))
    pairs = tmp_path / "pairs.jsonl"
    export(select(table, ratio="0.4"), pairs)
    note = read_document(sidecar_of(pairs), SubsetNote)
    write_document(sidecar_of(pairs), note.model_copy(update={"rejected_rows": note.rows}))
    with pytest.raises(DataError, match=r"pairs\.jsonl holds pairs of traces"):
        prepare_trial(tmp_path / "out", make_request(home, pairs))


@pytest.mark.parametrize("held_out", ["inf", "nan", "-3"])
def test_what_is_no_amount_is_a_file_that_is_not_there(home, tmp_path, held_out):
    with pytest.raises(DataError, match=f"No such file or folder: .*{held_out}"):
        prepare_trial(tmp_path / "out", make_request(home, home / "clean.txt", held_out=held_out))


def test_an_odd_held_out_file_is_read_as_it_is_mapped(home, tmp_path):
    """Also after another try at its fields, and when the trial goes on without saying them again."""
    records = [{"q": f"How many is {i}?", "why": "One.\nTwo.\nThree.", "n": f"The answer is {i}."} for i in range(9)]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    request = make_request(home, home / "clean.txt", held_out=str(tmp_path / "odd.jsonl"))
    with pytest.raises(DataError, match="--map prompt=FIELD") as refused:
        prepare_trial(tmp_path / "out", request)
    assert "This error is about the file of --held-out" in refused.value.__notes__[-1]
    prepare_trial(tmp_path / "out", replace(request, map={"prompt": "n", "response": "why", "answer": "q"}))
    parts = {"prompt": "q", "response": "why", "answer": "n"}
    job = prepare_trial(tmp_path / "out", replace(request, map=parts))
    assert job.samples.held_out_store.plan.spec.map == parts
    write_document(tmp_path / "out" / PLAN, job.plan)
    again = prepare_trial(tmp_path / "out", TrialRequest(options=OPTIONS))
    assert again.plan.fingerprint() == job.plan.fingerprint()
    for held_out in ("10", str(home / "pool.zarr")):
        with pytest.raises(SettingError, match="--format and --map are only for a file"):
            prepare_trial(tmp_path / "new", make_request(home, home / "clean.txt", held_out=held_out, map=parts))


def test_held_out_conversations_are_read_without_the_keys_that_the_pool_ignores(home, tmp_path):
    held_out = str(write_conversations(tmp_path / "chats.jsonl"))
    small = make_request(home, home / "clean.txt", held_out=held_out)
    with pytest.raises(SettingError, match="holds 4 questions out"):
        prepare_trial(tmp_path / "out", small)
    pool = plan([home / "traces.jsonl"], tmp_path / "pool.zarr", DataSpec(min_steps=2, ignore_key=("tools",)))
    request = replace(small, store=pool.location)
    with pytest.raises(SettingError, match="holds 6 questions out"):
        prepare_trial(tmp_path / "out", request)
    lines = (tmp_path / "chats.jsonl").read_text()
    (tmp_path / "chats.jsonl").write_text(lines + lines.replace("case", "more").replace("+ 90?", "+ 90 again?"))
    job = prepare_trial(tmp_path / "out", request)
    assert job.samples.held_out_store.plan.spec.ignore_key == ("tools",)
    assert len(job.plan.held_out) == 12
    assert job.remarks == (
        "chats.jsonl: 6 of 18 records are set aside, and no model is measured on them (6 unread_reasoning_content).",
    )


def held_out_file(home: Path, path: Path, num_traces: int) -> str:
    """Write the first traces of a pool to a file of their own."""
    lines = (home / "traces.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:num_traces]))
    return str(path)


def test_of_two_trials_that_begin_at_once_the_refused_one_leaves_the_other_alone(home, tmp_path, monkeypatch):
    """The second has seen no trial yet, and reads its own held-out file before the first is there."""
    out = tmp_path / "out"
    files = [held_out_file(home, tmp_path / f"{number}.jsonl", number) for number in (12, 14)]
    requests = [make_request(home, home / "clean.txt", held_out=file) for file in files]
    first, second = (prepare_trial(out, request) for request in requests)
    assert claim_document(out / PLAN, first.plan)
    monkeypatch.setattr(trial_module, "prepare_trial", lambda *given: second)
    with pytest.raises(ResumeMismatch, match=r"held-out: begun with '?12\.jsonl'?, now '?14\.jsonl"):
        trial(out, requests[1])
    again = prepare_trial(out, TrialRequest(options=OPTIONS))
    assert again.is_begun
    assert again.plan.fingerprint() == first.plan.fingerprint()
    assert again.samples.held_out_store.location == first.samples.held_out_store.location


def test_other_held_out_traces_than_a_trial_was_begun_with_are_refused(home, tmp_path):
    file = held_out_file(home, tmp_path / "target.jsonl", 12)
    request = make_request(home, home / "clean.txt", held_out=file)
    write_document(tmp_path / "out" / PLAN, prepare_trial(tmp_path / "out", request).plan)
    mapped = replace(request, map={"prompt": "question"})
    with pytest.raises(ResumeMismatch, match=r"target\.jsonl was read with another --format or --map then\.\nLeave"):
        prepare_trial(tmp_path / "out", mapped)
    held_out_file(home, tmp_path / "target.jsonl", 13)
    with pytest.raises(ResumeMismatch, match=r"had other records then\.\nPut the file back .* a new --out\.") as no:
        prepare_trial(tmp_path / "out", request)
    assert "--store" not in str(no.value)


def test_held_out_traces_in_a_bucket_are_looked_for_there(home, tmp_path, monkeypatch):
    asked = []

    def opened(place):
        asked.append(place)
        return Store.open(str(home / "pool.zarr"))

    monkeypatch.setattr(trial_plan, "as_store", opened)
    request = make_request(home, home / "clean.txt", held_out="s3://bucket/test.zarr")
    with pytest.raises(DataError, match=r"0 samples of clean\.txt would be left"):
        prepare_trial(tmp_path / "out", request)
    assert asked == ["s3://bucket/test.zarr"]


def test_it_goes_on_from_another_folder_than_it_was_begun_in(home, tmp_path, monkeypatch):
    monkeypatch.chdir(home)
    job = prepare_trial(tmp_path / "out", make_request(home, Path("clean.txt")))
    write_document(tmp_path / "out" / PLAN, job.plan)
    monkeypatch.chdir(tmp_path)
    assert prepare_trial(Path("out"), TrialRequest(options=OPTIONS)).plan.fingerprint() == job.plan.fingerprint()


def test_it_goes_on_where_its_pool_is_planned_in_another_place(home, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "train", lambda *_, **__: pytest.fail("trained again"))
    shutil.copy(home / "traces.jsonl", tmp_path)
    plan([tmp_path / "traces.jsonl"], tmp_path / "moved.zarr", DataSpec(min_steps=2))
    shutil.copytree(finished, tmp_path / "out")
    (tmp_path / "out" / FOUND).unlink()
    found = trial(tmp_path / "out", TrialRequest(store=str(tmp_path / "moved.zarr"), options=OPTIONS))
    assert found.pool.plan_sha256 == Store.open(tmp_path / "moved.zarr").plan.digest()
    before = read_document(finished / FOUND, Finding)
    assert (found.tables, found.conclusion) == (before.tables, before.conclusion)


def test_a_subset_that_is_held_out_is_said(home, tmp_path):
    write_ids(tmp_path / "two.txt", range(2))
    lines = (home / "traces.jsonl").read_text().splitlines()
    (tmp_path / "target.jsonl").write_text("\n".join(lines[:12]) + "\n")
    request = make_request(home, tmp_path / "two.txt", held_out=str(tmp_path / "target.jsonl"))
    with pytest.raises(DataError, match=r"0 samples of two.txt would be left to train on"):
        prepare_trial(tmp_path / "out", request)


def test_without_subsets_there_is_nothing_to_go_on_with(home, tmp_path):
    with pytest.raises(SettingError, match="has no trial yet"):
        trial(tmp_path / "out", make_request(home))
