"""Do subsets of real traces train better models? SmolLM2-135M on clean and spoilt GSM8K solutions, by `trial`.

    python -m jobs.study.real_training DATA --out jobs/study/results/real-training --processes 2

DATA holds gsm8k/train.jsonl and gsm8k/test.jsonl. Every problem stands in the pool as it is and once with each flaw;
the held-out loss is that of untouched test solutions. Run again, it does what is missing: subsets and trainings that
are in the folder are kept, all else can be made again. Results of other settings are refused, never mixed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grace_store.base.finding import Finding
from jobs.study import training
from jobs.study.environment import claim
from jobs.study.real_pool import CHOICES, PoolSettings, RealCuration, SubsetSettings, WarmupSettings, write_data
from jobs.study.tables import Table
from jobs.study.training import QUALITIES, Study, against_random, how_trained, interval, shares, tell, write_text
from jobs.study.tuning import read_records

SETTINGS = Path(__file__).with_name("real_training.toml")


class Settings(training.Settings):
    """All that decides the numbers."""

    data: PoolSettings
    warmup: WarmupSettings
    subsets: SubsetSettings


def curation_of(study: Study[Settings]) -> RealCuration:
    settings = study.settings
    return RealCuration(study.work, study.model, settings.warmup, settings.subsets, study.num_processes, tell)


def kept_weights(study: Study[Settings]) -> Path:
    """The table of step weights; kept, as it decides numbers."""
    return study.out / "subsets" / "weights.parquet"


def run(study: Study[Settings]) -> str:
    """Do what is missing, write the tables, and return them as Markdown."""
    claim(study.settings, study.out / "settings.json")
    write_data(study.data, study.work, study.settings.data, study.settings.seed)
    choose(study)
    found = train(study)
    tables = (results_table(study.settings, found), pairs_table(study, found), composition_table(study, found))
    text = "\n".join(["# Do subsets of real traces train better models?\n", *(table.markdown() for table in tables)])
    write_text(study.out / "tables.md", text)
    return text


def choose(study: Study[Settings]) -> None:
    """Write the ids of every subset that is not there."""
    curation = curation_of(study)
    curation.plan()
    missing = [method for method in study.settings.subsets.methods if not study.ids(method).is_file()]
    if missing or not kept_weights(study).is_file():
        curation.extract()
        curation.weigh(kept_weights(study))
    for method in missing:
        write_text(study.ids(method), "".join(f"{each}\n" for each in curation.choose(method)))


def train(study: Study[Settings]) -> Finding:
    """Do the trainings that are missing, and return what they come to."""
    weights = curation_of(study).adopt(kept_weights(study))
    methods = study.settings.subsets.methods
    plain = [study.ids(method) for method in methods if not CHOICES[method].has_weights]
    weighted = [(study.ids(method), weights) for method in methods if CHOICES[method].has_weights]
    return study.train("trial", plain, weighted=weighted)


def results_table(settings: Settings, found: Finding) -> Table:
    """Return what each subset's models reach against those of random subsets."""
    rows = [(_label(str(row["subset"])), *cells, str(row["num_rounds"])) for row, cells in against_random(found)]
    return Table(
        "Subsets against random ones",
        ("Subset", "held-out loss", "of random ones", "difference (95 %)", "seeds"),
        tuple(rows),
        how_trained(settings.trial, found, "random subsets of the same size"),
    )


def pairs_table(study: Study[Settings], found: Finding) -> Table:
    """Return what the models of each other subset reach against those of GRACE's."""
    grace = study.ids("grace").name
    rows = [
        (_label(str(row["second"])), interval(row["difference"]), str(row["num_rounds"]))
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


def composition_table(study: Study[Settings], found: Finding) -> Table:
    """Return what subsets are made of, in percent."""
    quality = {record["id"]: record["label"] for record in read_records(study.work / "pool.jsonl")}
    chosen = {
        CHOICES[name].label: study.ids(name).read_text("utf-8").split() for name in study.settings.subsets.methods
    }
    rows = [
        (name, *shares(ids, quality), str(len({each.partition("-")[0] for each in ids})))
        for name, ids in ({"Pool": list(quality)} | chosen).items()
    ]
    arms = [row for row in found.tables["arms"] if str(row["arm"]).startswith("random")]
    random = [int(str(row["num_questions"])) for row in arms]
    note = (
        "In percent, by what was done to the traces; then of how many problems they are, random subsets of "
        f"{min(random)} to {max(random)}. No method saw the labels."
    )
    return Table("What the subsets are made of", ("Subset", *QUALITIES, "problems"), tuple(rows), note)


if __name__ == "__main__":
    sys.exit(training.main(None, Settings, SETTINGS, __doc__, run))
