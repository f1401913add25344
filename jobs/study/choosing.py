"""Does choosing by what sees quality train better models? With controls, on problems that nobody has chosen by.

    python -m jobs.study.choosing DATA --out jobs/study/results/choosing --processes 2

DATA holds gsm8k/train.jsonl and gsm8k/test.jsonl. Each of 200 problems stands in the pool as it is and once with each
flaw, and every way of choosing takes one trace of each problem. The clean traces are the positive control. Random
subsets are drawn by the rules of the subset that they are compared with: one trace of each problem, or one unflagged
trace of each. Subsets without flagged traces have a trial of their own, because their random subsets differ. Run again,
the command does what is missing.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from pydantic import Field

from grace_store.base.documents import read_document
from grace_store.base.files import whole_file
from grace_store.base.finding import Estimate, Finding, LabelsNote
from grace_store.base.settings import DataSpec, ExtractSpec, Frozen, RunOptions
from grace_store.base.states import TEXT_FLAGS
from grace_store.base.training_settings import TrainingSpec, WarmupOptions
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.example import demo_model
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.scoring.parquet_columns import arrow_floats
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.score_table import read_scores, write_scores
from grace_store.study.trial import trial
from grace_store.study.trial_documents import FOUND, TrialRequest, TrialRun, TrialSpec
from grace_store.values.intervals import t_quantile
from grace_store.values.methods.method import ScoreSpec
from jobs.study.corruptions import CLEAN, CORRUPTIONS, FEWEST_STEPS, versions_of
from jobs.study.ending import end
from jobs.study.environment import claim
from jobs.study.real_pool import UNIT_SAMPLES, short_records
from jobs.study.real_training import BATCH_TOKENS, TrialSettings, tell
from jobs.study.tables import Table
from jobs.study.traces import write_records
from jobs.study.tuning import read_records

SETTINGS = Path(__file__).with_name("choosing.toml")
EARLIER = Path(__file__).with_name("results") / "real-training"
POOL, TEACHER = "pool", "teacher"

log = logging.getLogger("choosing")


class DataSettings(Frozen):
    """Which problems, and how many."""

    num_problems: int = Field(ge=1)
    num_teaching: int = Field(ge=1)
    most_characters: int = Field(ge=1)
    num_heldout: int = Field(ge=1)
    other_than: int = Field(ge=0)
    """Seed of an earlier pool, whose problems are left out."""


class AnsweredTrial(TrialSettings):
    """The trainings, and the answers of their models."""

    max_new_tokens: int = Field(ge=1)


class Settings(Frozen):
    """All that decides the numbers."""

    seed: int = Field(ge=0)
    data: DataSettings
    trial: AnsweredTrial


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to choose a trace of each problem."""

    label: str
    spec: ScoreSpec
    is_unflagged: bool

    @property
    def selection(self) -> Selection:
        return Selection(per_group=1, where=f"role = '{POOL}'", exclude_flagged=TEXT_FLAGS if self.is_unflagged else ())


CONTROL = "clean"
ARMS = {
    CONTROL: Arm("Clean traces (positive control)", ScoreSpec(measure=("random",)), is_unflagged=False),
    "learned": Arm("Learned value", ScoreSpec(learn=True), is_unflagged=False),
    "loss": Arm("Lowest loss, unflagged", ScoreSpec(measure=("loss:lowest",)), is_unflagged=True),
    "rsr": Arm("Lowest rank-surprisal ratio, unflagged", ScoreSpec(measure=("rsr:lowest",)), is_unflagged=True),
    "grace": Arm("GRACE, unflagged", ScoreSpec(), is_unflagged=True),
}
TRIALS = {"any": "one random trace of each problem", "unflagged": "one random unflagged trace of each problem"}


@dataclass(frozen=True, slots=True)
class Study:
    """What is asked for, and where."""

    settings: Settings
    data: Path
    out: Path
    model: Path
    num_processes: int

    @property
    def work(self) -> Path:
        """Folder of what can be made again."""
        return self.out / "work"

    @property
    def store(self) -> Path:
        return self.work / "pool.zarr"

    def subset(self, arm: str) -> Path:
        return self.work / "subsets" / f"{arm}.txt"

    def ids(self, arm: str) -> Path:
        """The list of a subset's ids; kept, because it decides numbers."""
        return self.out / "subsets" / f"{arm}.txt"


def write_data(study: Study) -> None:
    """Write the pool with the teaching problems, their labels, and the held-out problems."""
    settings, rng = study.settings.data, Random(study.settings.seed)
    train = list(short_records(study.data / "gsm8k" / "train.jsonl", settings.most_characters))
    earlier = list(train)
    Random(settings.other_than).shuffle(earlier)
    known = {row for row, _ in earlier[: settings.num_problems]}
    fresh = [each for each in train if each[0] not in known]
    rng.shuffle(fresh)
    chosen = sorted(fresh[: settings.num_problems], key=lambda each: each[0])
    taught = sorted(fresh[settings.num_problems :][: settings.num_teaching], key=lambda each: each[0])
    records = []
    for role, problems in ((POOL, chosen), (TEACHER, taught)):
        records += [each | {"role": role} for row, problem in problems for each in versions_of(row, problem, rng)]
    write_records(study.work / "pool.jsonl", records)
    with whole_file(study.work / "labels.csv") as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "verdict"])
        writer.writerows([each["id"], each["label"]] for each in records if each["role"] == TEACHER)
    test = [record for _, record in short_records(study.data / "gsm8k" / "test.jsonl", settings.most_characters)]
    write_records(study.work / "heldout.jsonl", rng.sample(test, settings.num_heldout))


def choose(study: Study) -> None:
    """Plan, extract, score and select: one subset for each arm."""
    request = DataSpec(format="gsm8k", min_steps=FEWEST_STEPS)
    plan([study.work / "pool.jsonl"], study.store, request, samples_per_unit=UNIT_SAMPLES, listener=tell)
    options = RunOptions(threads=study.num_processes)
    job = ExtractJob(store=str(study.store), model=str(study.model), request=ExtractSpec(), options=options)
    extract(job, tell)
    label = {record["id"]: record["label"] for record in read_records(study.work / "pool.jsonl")}
    for name, arm in ARMS.items():
        table = study.work / "scores" / f"{name}.parquet"
        table.parent.mkdir(parents=True, exist_ok=True)
        learns = {
            "labels": study.work / "labels.csv",
            "learn_from": LabelsNote(field="verdict = 'clean'", says="traces"),
        }
        score(study.store, ScoreRequest(spec=arm.spec, **(learns if arm.spec.learn else {})), out=table)
        if name == CONTROL:
            _prefer(table, [label[each] == CLEAN for each in read_scores(table).sample_id])
        subset = study.subset(name)
        subset.parent.mkdir(parents=True, exist_ok=True)
        export(select(table, arm.selection), subset, as_format="ids")
        _write(study.ids(name), subset.read_text(encoding="utf-8"))


def _prefer(path: Path, is_better: Sequence[bool]) -> None:
    """Add 1 to the values of some rows of a table of scores."""
    table = read_scores(path)
    value = table.value + np.array(is_better)
    changed = table.table.set_column(
        table.table.column_names.index("value"), "value", arrow_floats(value, table.table["value"].type)
    )
    with write_scores(path, table.note) as writer:
        writer.write_table(changed)


def train(study: Study) -> dict[str, Finding]:
    """Do the trainings that are missing, and return what each trial comes to."""
    found = {}
    chosen = study.settings.trial
    for name in TRIALS:
        arms = [arm for arm, each in ARMS.items() if each.is_unflagged == (name == "unflagged")]
        request = TrialRequest(
            subsets=[study.subset(arm) for arm in arms],
            store=str(study.store),
            model=str(study.model),
            spec=TrialSpec(
                held_out=str(study.work / "heldout.jsonl"),
                num_updates=chosen.num_updates,
                num_random=chosen.num_random,
                num_seeds=chosen.num_seeds,
                generate=True,
                max_new_tokens=chosen.max_new_tokens,
                training=TrainingSpec(
                    seed=study.settings.seed,
                    batch_size=chosen.batch_size,
                    learning_rate=chosen.learning_rate,
                    dtype=chosen.dtype,
                ),
            ),
            options=WarmupOptions(threads=1, batch_tokens=BATCH_TOKENS, gradient_checkpointing=False),
            devices=("cpu",) * study.num_processes if study.num_processes > 1 else (),
        )
        found[name] = trial(study.out / name, request, listener=tell)
    return found


def run(study: Study) -> str:
    """Do what is missing, write the tables, and return them as Markdown."""
    claim(study.settings, study.out / "settings.json")
    _write(study.out / "power.md", power_table(study.settings).markdown())
    write_data(study)
    kept = {name: study.out / name / FOUND for name in TRIALS}
    if all(path.is_file() for path in kept.values()):
        found = {name: read_document(path, Finding) for name, path in kept.items()}
    else:
        choose(study)
        found = train(study)
    tables = [power_table(study.settings)]
    tables += [results_table(study.settings, name, each) for name, each in found.items()]
    tables.append(composition_table(study))
    text = "\n".join(
        ["# Does choosing by what sees quality train better models?\n", *(each.markdown() for each in tables)]
    )
    _write(study.out / "tables.md", text)
    return text


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def power_table(settings: Settings, earlier: Path = EARLIER) -> Table:
    """Return which differences the study could find, from the spread of random subsets in the earlier study.

    A subset is compared with the random ones like it by Student's t over random subsets; a trial also shares its error
    rate among its subsets. The earlier random subsets had not one trace of each problem, which may spread them more.
    """
    runs = [read_document(path, TrialRun) for path in sorted((earlier / "trial" / "runs").glob("*random*.json"))]
    losses: dict[str, list[float]] = {}
    for run in runs:
        losses.setdefault(run.arm, []).append(run.heldout_loss)
    spread = float(np.std([np.mean(each) for each in losses.values()], ddof=1))
    num = settings.trial.num_random
    rows = []
    for name, told in TRIALS.items():
        subsets = sum(arm.is_unflagged == (name == "unflagged") for arm in ARMS.values())
        error = 1 - (1 - 0.05) ** (1 / subsets)
        scale = spread * math.sqrt(1 + 1 / num)
        half_width = t_quantile(error, num - 1) * scale
        rows.append((told, str(subsets), f"{half_width:.4f}", f"{half_width + t_quantile(0.4, num - 1) * scale:.4f}"))
    return Table(
        "What the study could find",
        ("Against", "subsets", "half-width of the intervals", "difference found in 4 of 5 studies"),
        tuple(rows),
        f"Held-out loss. In the earlier study, {len(losses)} random subsets had means with a standard deviation of "
        f"{spread:.4f}; {num} random subsets are trained here. Written before any training.",
    )


def results_table(settings: Settings, name: str, found: Finding) -> Table:
    """Return what the models of each subset reach against those of random subsets like it."""
    answers = {row["subset"]: row for row in found.tables["answers"].rows} if "answers" in found.tables else {}
    rows = []
    for row in found.tables["subsets"].rows:
        difference = row["difference"]
        assert isinstance(difference, Estimate)
        losses = [
            float(str(arm["heldout_loss"])) for arm in found.tables["arms"].rows if arm["subset"] == row["subset"]
        ]
        cells = [f"{losses[0]:.4f}", f"{sum(losses[1:]) / len(losses[1:]):.4f}"]
        cells.append(f"{difference.value:+.4f} ({difference.low:+.4f} to {difference.high:+.4f})")
        said = answers.get(row["subset"], {})
        cells += [str(said.get("share_right", "-")), str(said.get("random_shares", "-")), str(row["num_rounds"])]
        rows.append((ARMS[str(row["subset"]).partition(".")[0]].label, *cells))
    spec = settings.trial
    headings = (
        "Subset",
        "held-out loss",
        "of random ones",
        "difference (95 %)",
        "right answers",
        "of random ones",
        "seeds",
    )
    return Table(
        f"Against {TRIALS[name]}",
        headings,
        tuple(rows),
        f"{found.conclusion}\n\nLoss per token of {found.numbers['num_items']} untouched test solutions, lower is "
        f"better, after {spec.num_updates} updates of {spec.batch_size} traces; {spec.num_random} random subsets; "
        f"{found.numbers['num_runs']} trainings.",
    )


def composition_table(study: Study) -> Table:
    """Return what subsets are made of, in percent."""
    records = [record for record in read_records(study.work / "pool.jsonl") if record["role"] == POOL]
    label = {record["id"]: record["label"] for record in records}
    names = (CLEAN, *CORRUPTIONS)
    rows = []
    for name, ids in [("Pool", list(label))] + [
        (arm.label, study.ids(key).read_text(encoding="utf-8").split()) for key, arm in ARMS.items()
    ]:
        counts = Counter(label[each] for each in ids)
        rows.append((name, *(f"{100 * counts[each] / len(ids):.1f}" for each in names)))
    note = "In percent, by what was done. The control saw these labels, the learned value those of other problems."
    return Table("What the subsets are made of", ("Subset", *names), tuple(rows), note)


def read_settings(path: Path = SETTINGS) -> Settings:
    return Settings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m jobs.study.choosing", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with gsm8k/train.jsonl and gsm8k/test.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results, and of work/ beside them")
    parser.add_argument("--processes", type=int, default=2, help="trainings at a time, one thread each (default: 2)")
    chosen = parser.parse_args(arguments)
    study = Study(read_settings(), chosen.data, chosen.out, demo_model(), chosen.processes)
    return end(log, lambda: run(study))


if __name__ == "__main__":
    sys.exit(main())
