"""Does `grace-store trial` keep its stated error rates? Many whole trials of a tiny model, counted.

    python -m jobs.study.trial_rates --out jobs/study/results

Three questions, each asked of as many pools of trainings as there are repetitions: a subset drawn at random (a
difference should be claimed in 5 % of trials at most), one of clean traces only, and one of spoilt ones only (planted
differences, to be found with their sign in 80 % at least). Each repetition is a trial with a seed of its own: other
subsets, other random subsets, other trainings. Run again, it does what is missing.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch

from grace_store.base.files import write_text
from grace_store.base.finding import Estimate, Finding
from grace_store.base.settings import DataSpec
from grace_store.base.text import percent_between
from grace_store.base.training_settings import TrainingSpec, WarmupOptions
from grace_store.run.plan import plan
from grace_store.study.trial import trial
from grace_store.study.trial_documents import TrialRequest, TrialSpec
from grace_store.values.intervals import ERROR, share_interval
from grace_store.values.subset_trial import POWER
from jobs.study.ending import end
from jobs.study.environment import describe_environment
from jobs.study.learner import Model, new_model, save_model
from jobs.study.runs import append_line, whole_lines
from jobs.study.settings import DataSettings, ModelSettings
from jobs.study.tables import Table
from jobs.study.traces import FILLERS, Record, make_data, write_records
from jobs.study.vocabulary import make_tokenizer

log = logging.getLogger("trial_rates")

DATA = DataSettings(
    seed=0,
    num_lessons=1,
    most_lesson_steps=1,
    num_pool=400,
    num_targets=1,
    num_heldout=10,
    fewest_steps=2,
    most_steps=3,
    copies=1,
    shares={"clean": 0.5, "wrong_step": 0.0, "wrong_answer": 0.0, "filler": 0.5, "long": 0.0, "duplicated": 0.0},
)
MODEL = ModelSettings(hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2, max_length=256)
TRAINING = {"learning_rate": 1e-2, "batch_size": 16, "rank": 4}
SPENT = {"num_updates": 8, "num_random": 5, "num_seeds": 3}
SUBSET_SIZE = 100
QUESTIONS = ("random", "clean", "spoilt")
SEED_STEP = 1000
"""Between repetitions, so that no two share a seed of training or of draws."""
LINES = "trial-rates.jsonl"
RESULT = "trial-rates.md"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one trial said."""

    question: str
    repetition: int
    difference: float
    low: float
    high: float
    num_rounds: int
    num_runs: int

    @property
    def said(self) -> str:
        """Which of the two the trial called better."""
        return "random" if self.low > 0 else "subset" if self.high < 0 else "neither"


def make_pool(work: Path) -> list[Record]:
    """Write the pool, clean held-out traces and a model that knows nothing, unless they are there; return the pool.

    The steps of a spoilt trace have nothing to do with its problem.
    """
    data = make_data(DATA)
    for record in data.pool:
        if record["quality"] != "clean":
            record["steps"] = Random(record["id"]).sample(FILLERS, 3)
    if not (work / "model").exists():
        write_records(work / "pool.jsonl", data.pool)
        write_records(work / "heldout.jsonl", [record for some in data.heldout.values() for record in some])
        plan([work / "pool.jsonl"], work / "pool.zarr", DataSpec(min_steps=1))
        plan([work / "heldout.jsonl"], work / "heldout.zarr", DataSpec(min_steps=1))
        tokenizer = make_tokenizer()
        save_model(_loud(new_model(MODEL, tokenizer, seed=0)), tokenizer, work / "model")
    return data.pool


def _loud(model: Model) -> Model:
    """Give a model weights that are large enough for a few updates of an adapter to change what it says."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.5 / parameter.shape[-1] ** 0.5, generator=generator)
    return model


def choose(pool: Sequence[Record], question: str, repetition: int) -> list[str]:
    """Return the ids of a subset: random ones, or random ones of the clean or the spoilt."""
    meant = {"random": (True, False), "clean": (True,), "spoilt": (False,)}[question]
    ids = [record["id"] for record in pool if (record["quality"] == "clean") in meant]
    return Random(f"{question} {repetition}").sample(ids, SUBSET_SIZE)


def repeat(work: Path, pool: Sequence[Record], question: str, repetition: int) -> Outcome:
    """Run one trial, as a user would, and forget its files."""
    out = work / f"{question}-{repetition}"
    shutil.rmtree(out, ignore_errors=True)
    subset = work / f"{question}-{repetition}.txt"
    subset.write_text("\n".join(choose(pool, question, repetition)) + "\n")
    seed = SEED_STEP * (len(QUESTIONS) * repetition + QUESTIONS.index(question))
    request = TrialRequest(
        subsets=[subset],
        store=str(work / "pool.zarr"),
        model=str(work / "model"),
        spec=TrialSpec(
            # Between random subsets the pool's own questions are asked; planted differences are seen on clean ones.
            held_out="40" if question == "random" else str(work / "heldout.zarr"),
            training=TrainingSpec(seed=seed, **TRAINING),
            **SPENT,
        ),
        options=WarmupOptions(device="cpu", threads=1, loader_threads=1, gradient_checkpointing=False),
    )
    found = _outcome(trial(out, request), question, repetition)
    shutil.rmtree(out)
    subset.unlink()
    return found


def _outcome(found: Finding, question: str, repetition: int) -> Outcome:
    (tried,) = found.tables["subsets"]
    each, counts = tried["difference"], (tried["num_rounds"], found.numbers["num_runs"])
    assert isinstance(each, Estimate)
    return Outcome(question, repetition, each.value, each.low, each.high, *(int(str(count)) for count in counts))


def read_outcomes(path: Path) -> list[Outcome]:
    """Return what was found so far."""
    return [Outcome(**json.loads(line)) for line in whole_lines(path)]


def run(out: Path, work: Path, repetitions: int) -> list[Outcome]:
    """Do the trials that are missing, and return all."""
    out.mkdir(parents=True, exist_ok=True)
    done = read_outcomes(out / LINES)
    known = {(each.question, each.repetition) for each in done}
    pool = make_pool(work)
    for repetition in range(repetitions):
        for question in QUESTIONS:
            if (question, repetition) not in known:
                done.append(repeat(work, pool, question, repetition))
                append_line(out / LINES, asdict(done[-1]))
        log.info("%d of %d repetitions", repetition + 1, repetitions)
    return done


# ---------------------------------------------------------------- the table


def _row(name: str, right: str, stated: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return how often each was called better, and the rate that the statement is about with its interval."""
    counts = {said: sum(each.said == said for each in outcomes) for said in ("subset", "random", "neither")}
    meant = len(outcomes) - counts["neither"] if right == "any" else counts[right]
    low, high = share_interval(meant, len(outcomes))
    early = sum(each.num_rounds < SPENT["num_seeds"] for each in outcomes)
    rate = f"{100 * meant / len(outcomes):.1f} % ({percent_between(low, high)})"
    spent = f"{sum(each.num_runs for each in outcomes) / len(outcomes):.1f}"
    return (name, str(len(outcomes)), *map(str, counts.values()), rate, stated, str(early), spent)


def rates_table(outcomes: Sequence[Outcome]) -> Table:
    """Return all rates beside those that are stated."""
    by = {question: [each for each in outcomes if each.question == question] for question in QUESTIONS}
    most, least = f"at most {ERROR:.0%}", f"at least {POWER:.0%}"
    rows = (
        _row("drawn at random", "any", most, by["random"]),
        _row("clean traces only", "subset", least, by["clean"]),
        _row("spoilt traces only", "random", least, by["spoilt"]),
    )
    columns = ("subset", "trials", "subset better", "random better", "neither", "rate", "stated", "ended early", "runs")
    note = (
        f"Whole trials of a Llama of one layer, {MODEL.hidden_size} wide, that was taught nothing: {SUBSET_SIZE} of "
        f"{DATA.num_pool} traces, half of them clean, against {SPENT['num_random']} random subsets, up to "
        f"{SPENT['num_seeds']} seeds, {SPENT['num_updates']} updates a training. Rate: differences claimed where there "
        "is none, and planted ones found with their sign; 95 % intervals over trials. Runs: trainings of a trial, in "
        f"the mean; {(SPENT['num_random'] + 1) * SPENT['num_seeds']} without an early end."
    )
    return Table("Error rates of a trial", columns, rows, note)


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, write and show the table."""
    parser = argparse.ArgumentParser(prog="python -m jobs.study.trial_rates", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of results")
    parser.add_argument("--work", type=Path, default=Path("trial-rates"), help="folder for the pool and the trials")
    parser.add_argument("--repetitions", type=int, default=110, help="trials of each question (default: 110)")
    chosen = parser.parse_args(arguments)
    return end(log, lambda: _measure(chosen.out, chosen.work, chosen.repetitions))


def _measure(out: Path, work: Path, repetitions: int) -> str:
    """Do the trials that are missing, and return the table as it is written."""
    outcomes = run(out, work, repetitions)
    software = ", ".join(f"{name} {version}" for name, version in describe_environment().items())
    made_by = f"Made by `python -m jobs.study.trial_rates`; every trial is in `{LINES}`. {software}."
    text = "\n".join([rates_table(outcomes).markdown(), made_by, ""])
    write_text(out / RESULT, text)
    return text


if __name__ == "__main__":
    sys.exit(main())
