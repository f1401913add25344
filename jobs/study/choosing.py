"""Does choosing by what sees quality train better models? With controls, on problems that nobody has chosen by.

    python -m jobs.study.choosing DATA --out jobs/study/results/choosing --processes 2

DATA holds gsm8k/train.jsonl and gsm8k/test.jsonl. Each of 200 problems stands in the pool as it is and once with each
flaw, and every way of choosing takes one trace of each problem. The clean traces are the positive control. Random
subsets are drawn by the rules of the subset that they are compared with: one trace of each problem, or one unflagged
trace of each. Subsets without flagged traces have a trial of their own, because their random subsets differ. Run again,
the command does what is missing.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from pydantic import Field

from grace_store.base.documents import read_document
from grace_store.base.files import whole_file
from grace_store.base.finding import Finding, LabelsNote
from grace_store.base.settings import DataSpec, ExtractSpec, Frozen, RunOptions
from grace_store.base.states import TEXT_FLAGS
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.pool.arrow_arrays import arrow_floats
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.score_table import read_scores, write_scores
from grace_store.study.trial_documents import FOUND, TrialRun
from grace_store.values.intervals import t_quantile
from grace_store.values.methods.method import ScoreSpec
from jobs.study import training
from jobs.study.corruptions import CLEAN, FEWEST_STEPS, versions_of
from jobs.study.environment import claim
from jobs.study.real_pool import UNIT_SAMPLES, short_records
from jobs.study.tables import Table
from jobs.study.traces import write_records
from jobs.study.training import QUALITIES, Study, against_random, how_trained, shares, tell, write_text
from jobs.study.tuning import read_records

SETTINGS = Path(__file__).with_name("choosing.toml")
EARLIER = Path(__file__).with_name("results") / "real-training"
POOL, TEACHER = "pool", "teacher"


class DataSettings(Frozen):
    """Which problems, and how many."""

    num_problems: int = Field(ge=1)
    num_teaching: int = Field(ge=1)
    most_characters: int = Field(ge=1)
    num_heldout: int = Field(ge=1)
    other_than: int = Field(ge=0)
    """Seed of an earlier pool, whose problems are left out."""


class TrialSettings(training.TrialSettings):
    """The trainings, and the answers of their models."""

    max_new_tokens: int = Field(ge=1)


class Settings(training.Settings):
    """All that decides the numbers."""

    data: DataSettings
    trial: TrialSettings


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


def chosen_by(study: Study[Settings], arm: str) -> Path:
    """The list of a subset as `select` wrote it: random subsets follow the rules that it carries."""
    return study.work / "subsets" / f"{arm}.txt"


def write_data(study: Study[Settings]) -> None:
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


def choose(study: Study[Settings]) -> None:
    """Write the subset of each arm with its rules; extract and score only for the arms whose list is not kept."""
    request = DataSpec(format="gsm8k", min_steps=FEWEST_STEPS)
    plan([study.work / "pool.jsonl"], study.store, request, samples_per_unit=UNIT_SAMPLES, listener=tell)
    missing = [name for name in ARMS if not study.ids(name).is_file()]
    if missing:
        options = RunOptions(threads=study.num_processes)
        job = ExtractJob(store=str(study.store), model=str(study.model), request=ExtractSpec(), options=options)
        extract(job, tell)
    label = {record["id"]: record["label"] for record in read_records(study.work / "pool.jsonl")}
    for name, arm in ARMS.items():
        table, subset = study.work / "scores" / f"{name}.parquet", chosen_by(study, name)
        for each in (table, subset):
            each.parent.mkdir(parents=True, exist_ok=True)
        if name not in missing:
            _score_by(study, table, study.ids(name).read_text(encoding="utf-8").split())
        elif name == CONTROL:
            _score_by(study, table, [each for each, quality in label.items() if quality == CLEAN])
        else:
            learned = {
                "labels": study.work / "labels.csv",
                "learn_from": LabelsNote(field="verdict = 'clean'", says="traces"),
            }
            score(study.store, ScoreRequest(spec=arm.spec, **(learned if arm.spec.learn else {})), out=table)
        export(select(table, arm.selection), subset, as_format="ids")
        chosen = subset.read_text(encoding="utf-8")
        if name not in missing and chosen != study.ids(name).read_text(encoding="utf-8"):
            raise SystemExit(f"{study.ids(name)} does not follow the rules of its arm. Remove it to choose again.")
        write_text(study.ids(name), chosen)


def _score_by(study: Study[Settings], path: Path, preferred: Sequence[str]) -> None:
    """Write a table of random values in which these samples come first."""
    score(study.store, ScoreRequest(spec=ScoreSpec(measure=("random",)), signals={}), out=path)
    table, better = read_scores(path), set(preferred)
    value = table.value + np.array([each in better for each in table.sample_id])
    changed = table.table.set_column(
        table.table.column_names.index("value"), "value", arrow_floats(value, table.table["value"].type)
    )
    with write_scores(path, table.note) as writer:
        writer.write_table(changed)


def train(study: Study[Settings]) -> dict[str, Finding]:
    """Do the trainings that are missing, and return what each trial comes to."""
    found = {}
    for name in TRIALS:
        subsets = [chosen_by(study, arm) for arm, each in ARMS.items() if each.is_unflagged == (name == "unflagged")]
        found[name] = study.train(name, subsets, max_new_tokens=study.settings.trial.max_new_tokens)
    return found


def run(study: Study[Settings]) -> str:
    """Do what is missing, write the tables, and return them as Markdown."""
    claim(study.settings, study.out / "settings.json")
    write_text(study.out / "power.md", power_table(study.settings).markdown())
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
    write_text(study.out / "tables.md", text)
    return text


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
        f"{spread:.4f}; {num} random subsets are trained here.",
    )


def results_table(settings: Settings, name: str, found: Finding) -> Table:
    """Return what the models of each subset reach against those of random subsets like it."""
    answers = {row["subset"]: row for row in found.tables["answers"].rows} if "answers" in found.tables else {}
    rows = []
    for row, cells in against_random(found):
        said = answers.get(row["subset"], {"share_right": math.nan, "random_shares": "-"})
        right = (f"{float(str(said['share_right'])):.3f}", str(said["random_shares"]))
        rows.append((ARMS[str(row["subset"]).partition(".")[0]].label, *cells, *right, str(row["num_rounds"])))
    headings = (
        "Subset",
        "held-out loss",
        "of random ones",
        "difference (95 %)",
        "share of right answers",
        "of random ones",
        "seeds",
    )
    return Table(
        f"Against {TRIALS[name]}",
        headings,
        tuple(rows),
        how_trained(settings.trial, found, "random subsets"),
    )


def composition_table(study: Study[Settings]) -> Table:
    """Return what subsets are made of, in percent."""
    records = [record for record in read_records(study.work / "pool.jsonl") if record["role"] == POOL]
    quality = {record["id"]: record["label"] for record in records}
    chosen = {arm.label: study.ids(key).read_text("utf-8").split() for key, arm in ARMS.items()}
    rows = [(name, *shares(ids, quality)) for name, ids in ({"Pool": list(quality)} | chosen).items()]
    note = "In percent, by what was done. The control saw these labels, the learned value those of other problems."
    return Table("What the subsets are made of", ("Subset", *QUALITIES), tuple(rows), note)


if __name__ == "__main__":
    sys.exit(training.main(None, Settings, SETTINGS, __doc__, run))
