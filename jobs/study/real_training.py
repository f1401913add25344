"""Do subsets of real traces train better models? SmolLM2-135M on clean and spoilt GSM8K solutions, by `trial`.

    python -m jobs.study.real_training DATA --out jobs/study/results/real-training --processes 2

DATA holds gsm8k/train.jsonl and gsm8k/test.jsonl. Every problem stands in the pool as it is and once with each flaw;
the held-out loss is that of untouched test solutions. Run again, it does what is missing: subsets and trainings that
are in the folder are kept, all else can be made again. Results of other settings are refused, never mixed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from grace_store.base.events import Event, Note, Warned
from grace_store.base.files import whole_file
from grace_store.base.finding import Cell, Estimate, Finding
from grace_store.base.settings import Frozen
from grace_store.base.training_settings import TrainingDtype, TrainingSpec, WarmupOptions
from grace_store.example import demo_model
from grace_store.study.trial import trial
from grace_store.study.trial_documents import TrialRequest, TrialSpec
from jobs.study.corruptions import CLEAN, CORRUPTIONS
from jobs.study.ending import end
from jobs.study.environment import claim
from jobs.study.real_pool import CHOICES, PoolSettings, RealCuration, SubsetSettings, WarmupSettings, write_data
from jobs.study.tables import Table
from jobs.study.tuning import read_records

SETTINGS = Path(__file__).with_name("real_training.toml")
BATCH_TOKENS = 1024

log = logging.getLogger("real_training")


class TrialSettings(Frozen):
    """The trainings that all subsets get."""

    num_updates: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    num_seeds: int = Field(ge=1)
    num_random: int = Field(ge=2)
    dtype: TrainingDtype


class Settings(Frozen):
    """All that decides the numbers."""

    seed: int = Field(ge=0)
    data: PoolSettings
    warmup: WarmupSettings
    subsets: SubsetSettings
    trial: TrialSettings


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

    def subset(self, method: str) -> Path:
        return self.out / "subsets" / f"{method}.txt"

    @property
    def weights(self) -> Path:
        """The table of step weights; kept, as it decides numbers."""
        return self.out / "subsets" / "weights.parquet"

    def curation(self) -> RealCuration:
        settings = self.settings
        return RealCuration(self.work, self.model, settings.warmup, settings.subsets, self.num_processes, tell)


def tell(event: Event) -> None:
    if isinstance(event, Note | Warned):
        log.info(event.text)


def run(study: Study) -> str:
    """Do what is missing, write the tables, and return them as Markdown."""
    claim(study.settings, study.out / "settings.json")
    write_data(study.data, study.work, study.settings.data, study.settings.seed)
    choose(study)
    found = train(study)
    tables = (results_table(study.settings, found), pairs_table(study, found), composition_table(study, found))
    text = "\n".join(["# Do subsets of real traces train better models?\n", *(table.markdown() for table in tables)])
    with whole_file(study.out / "tables.md") as partial:
        partial.write_text(text, encoding="utf-8")
    return text


def choose(study: Study) -> None:
    """Write the ids of every subset that is not there."""
    curation = study.curation()
    curation.plan()
    missing = [method for method in study.settings.subsets.methods if not study.subset(method).is_file()]
    if missing or not study.weights.is_file():
        curation.extract()
        curation.weigh(study.weights)
    for method in missing:
        with whole_file(study.subset(method)) as partial:
            partial.write_text("".join(f"{each}\n" for each in curation.choose(method)), encoding="utf-8")


def train(study: Study) -> Finding:
    """Do the trainings that are missing, and return what they come to."""
    chosen = study.settings.trial
    methods = study.settings.subsets.methods
    curation = study.curation()
    weights = curation.adopt(study.weights)
    request = TrialRequest(
        subsets=[study.subset(method) for method in methods if not CHOICES[method].has_weights],
        weighted=[(study.subset(method), weights) for method in methods if CHOICES[method].has_weights],
        store=str(curation.pool_store),
        model=str(study.model),
        spec=TrialSpec(
            held_out=str(study.work / "heldout.jsonl"),
            num_updates=chosen.num_updates,
            num_random=chosen.num_random,
            num_seeds=chosen.num_seeds,
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
    return trial(study.out / "trial", request, listener=tell)


def results_table(settings: Settings, found: Finding) -> Table:
    """Return what each subset's models reach against those of random subsets."""
    rows = []
    for row in found.tables["subsets"]:
        losses = [float(str(arm["heldout_loss"])) for arm in found.tables["arms"] if arm["subset"] == row["subset"]]
        cells = (f"{losses[0]:.4f}", f"{sum(losses[1:]) / len(losses[1:]):.4f}")
        rows.append((_label(str(row["subset"])), *cells, _interval(row["difference"]), str(row["num_rounds"])))
    spec = settings.trial
    return Table(
        "Subsets against random ones",
        ("Subset", "held-out loss", "of random ones", "difference (95 %)", "seeds"),
        tuple(rows),
        f"{found.conclusion}\n\nLoss per token of {found.numbers['num_items']} untouched test solutions, lower is "
        f"better, after {spec.num_updates} updates of {spec.batch_size} traces; {spec.num_random} random subsets of "
        f"the same size; {found.numbers['num_runs']} trainings.",
    )


def pairs_table(study: Study, found: Finding) -> Table:
    """Return what the models of each other subset reach against those of GRACE's."""
    grace = study.subset("grace").name
    rows = [
        (_label(str(row["second"])), _interval(row["difference"]), str(row["num_rounds"]))
        for row in found.tables["pairs"]
        if row["first"] == grace
    ]
    note = (
        "GRACE's held-out loss less that of the other: below 0, GRACE trains better models. Over the seeds that both "
        "have; intervals hold 95 % for all pairs of subsets together."
    )
    return Table(
        "GRACE against the other subsets", ("Against", "difference (95 %)", "seeds of both"), tuple(rows), note
    )


def _label(name: str) -> str:
    """Return what a subset's way of choosing is called, by the name that the trial gives the subset."""
    return CHOICES[name.partition(".")[0]].label


def _interval(found: Cell) -> str:
    assert isinstance(found, Estimate)
    return f"{found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def composition_table(study: Study, found: Finding) -> Table:
    """Return what subsets are made of, in percent."""
    label = {record["id"]: record["label"] for record in read_records(study.work / "pool.jsonl")}
    names = (CLEAN, *CORRUPTIONS)

    def shares(ids: list[str]) -> Iterator[str]:
        counts = Counter(label[each] for each in ids)
        yield from (f"{100 * counts[name] / len(ids):.1f}" for name in names)
        yield str(len({each.partition("-")[0] for each in ids}))

    rows = [("Pool", *shares(list(label)))]
    for method in study.settings.subsets.methods:
        rows.append((CHOICES[method].label, *shares(study.subset(method).read_text(encoding="utf-8").split())))
    arms = [row for row in found.tables["arms"] if str(row["arm"]).startswith("random")]
    random = [int(str(row["num_questions"])) for row in arms]
    note = (
        "In percent, by what was done to the traces; then of how many problems they are, random subsets of "
        f"{min(random)} to {max(random)}. No method saw the labels."
    )
    return Table("What the subsets are made of", ("Subset", *names, "problems"), tuple(rows), note)


def read_settings(path: Path = SETTINGS) -> Settings:
    return Settings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m jobs.study.real_training", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with gsm8k/train.jsonl and gsm8k/test.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results, and of work/ beside them")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="the settings (default: real_training.toml)")
    parser.add_argument("--model", type=Path, help="another model (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--processes", type=int, default=2, help="trainings at a time, one thread each (default: 2)")
    chosen = parser.parse_args(arguments)
    model = chosen.model or demo_model()
    study = Study(read_settings(chosen.settings), chosen.data, chosen.out, model, chosen.processes)
    return end(log, lambda: run(study))


if __name__ == "__main__":
    sys.exit(main())
