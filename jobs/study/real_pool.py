"""From GSM8K to subsets of clean and spoilt traces, by grace-store's own jobs. Each resumes itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pydantic import Field

from grace_store.base.errors import ResumeMismatch
from grace_store.base.events import Listener
from grace_store.base.settings import DataSpec, ExtractSpec, Frozen, GradientSpec, RunOptions
from grace_store.base.training_settings import WarmupOptions, WarmupSpec
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.pool.pool import Pool
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.scoring.parquet_columns import write_blocks
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.targets import Targets
from grace_store.scoring.weigh_steps import weights
from grace_store.scoring.weight_table import WeightTable, read_weights, weights_schema
from grace_store.store.opened import Store
from grace_store.train.warmup import WarmupJob, warmup
from grace_store.values.methods.method import InfluenceSpec, MethodSpec, ScoreSpec
from grace_store.values.ranking import budget
from jobs.study.corruptions import FEWEST_STEPS, split, usable, versions_of
from jobs.study.traces import Record, write_records

UNIT_SAMPLES = 16
MOST_STEPS = 5
"""Targets of more steps count with those of this number."""
PROXY, ADAM, PLAIN = "proxy", "adam", "plain"


class PoolSettings(Frozen):
    """Which problems, and how many."""

    num_problems: int = Field(ge=1)
    most_characters: int = Field(ge=1)
    num_targets: int = Field(ge=1)
    """Of each number of steps."""
    num_heldout: int = Field(ge=1)


class WarmupSettings(Frozen):
    """The LoRA warm-up of the model whose signals choose."""

    ratio: str
    num_epochs: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)


class SubsetSettings(Frozen):
    """What subsets are chosen, and how large they are."""

    ratio: str
    dimension: int = Field(ge=4)
    """Of projected gradients."""
    methods: tuple[str, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to choose a subset: scores by a method on a signal, then how samples are ranked by them."""

    label: str
    spec: MethodSpec
    signal: str = PROXY
    request: Selection = field(default_factory=Selection)
    has_weights: bool = False
    """Whether its steps are trained with weights."""


CHOICES: dict[str, Choice] = {
    "grace": Choice("GRACE", ScoreSpec()),
    "grace-questions": Choice("GRACE, best of each question", ScoreSpec(), request=Selection(per_group=1)),
    "grace-unflagged": Choice("GRACE, none flagged", ScoreSpec(), request=Selection(exclude_flagged=("hygiene",))),
    "grace-weights": Choice("GRACE with step weights", ScoreSpec(), has_weights=True),
    "longest": Choice("Longest", ScoreSpec(measure=("tokens",))),
    "loss": Choice("Loss", ScoreSpec(measure=("loss:highest",))),
    "less": Choice("LESS", InfluenceSpec(method="less"), ADAM),
    "icons": Choice("ICONS", InfluenceSpec(method="icons"), PLAIN),
}


# ---------------------------------------------------------------- data


def short_records(path: Path, most_characters: int) -> Iterator[tuple[int, Record]]:
    """Yield (row, record) of a GSM8K file whose question and solution are short and can be spoilt in every way."""
    for row, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        record = json.loads(line)
        if len(record["question"]) + len(record["answer"]) <= most_characters and usable(record):
            yield row, record


def write_data(data: Path, folder: Path, settings: PoolSettings, seed: int) -> None:
    """Write the pool, the targets (a file for each number of steps, which makes it a subtask) and the held-out part."""
    rng = Random(seed)
    train = list(short_records(data / "gsm8k" / "train.jsonl", settings.most_characters))
    rng.shuffle(train)
    chosen, others = sorted(train[: settings.num_problems], key=lambda each: each[0]), train[settings.num_problems :]
    write_records(folder / "pool.jsonl", [each for row, record in chosen for each in versions_of(row, record, rng)])
    for num_steps in range(FEWEST_STEPS, MOST_STEPS + 1):
        alike = [record for _, record in others if min(len(split(record["answer"])[0]), MOST_STEPS) == num_steps]
        write_records(folder / "targets" / f"{num_steps}-steps.jsonl", alike[: settings.num_targets])
    test = [record for _, record in short_records(data / "gsm8k" / "test.jsonl", settings.most_characters)]
    write_records(folder / "heldout.jsonl", rng.sample(test, settings.num_heldout))


# ---------------------------------------------------------------- signals and subsets


@dataclass(frozen=True, slots=True)
class RealCuration:
    """The pipeline over one work folder. Calling it again does what is missing."""

    work: Path
    model: Path
    warmup: WarmupSettings
    subsets: SubsetSettings
    threads: int | None
    listener: Listener

    @property
    def pool_store(self) -> Path:
        return self.work / "pool.zarr"

    @property
    def target_store(self) -> Path:
        return self.work / "targets.zarr"

    def plan(self) -> None:
        """Plan the pool and the targets; needs no model."""
        request = DataSpec(format="gsm8k", min_steps=FEWEST_STEPS)
        targets = sorted((self.work / "targets").glob("*.jsonl"))
        for data, store in (([self.work / "pool.jsonl"], self.pool_store), (targets, self.target_store)):
            plan(data, store, request, samples_per_unit=UNIT_SAMPLES, listener=self.listener)

    def extract(self) -> None:
        """Write every signal that some method needs."""
        adapter = self._warm_up()
        proxy = ExtractSpec()
        self._extract(self.pool_store, PROXY, adapter, proxy)
        self._extract(self.target_store, PLAIN, adapter, self._gradient("none"))
        self._extract(self.pool_store, ADAM, adapter, self._gradient("adam"))
        self._extract(self.pool_store, PLAIN, adapter, self._gradient("none"))

    def _gradient(self, preconditioner: str) -> ExtractSpec:
        wishes = {"preconditioner": preconditioner, "projection": "sparse", "dimension": self.subsets.dimension}
        return ExtractSpec(kind="gradient", gradient=GradientSpec.model_validate(wishes))

    def _warm_up(self) -> Path:
        """Train the adapter, if it is not there, and return its folder."""
        chosen = self.warmup
        job = WarmupJob(
            out=self.work / "warmup",
            model=str(self.model),
            store=str(self.pool_store),
            request=WarmupSpec(
                ratio=chosen.ratio,
                checkpoints=("1",),
                batch_size=chosen.batch_size,
                num_epochs=chosen.num_epochs,
                learning_rate=chosen.learning_rate,
            ),
            options=WarmupOptions(threads=self.threads, batch_tokens=1024, gradient_checkpointing=False),
        )
        return job.out / warmup(job, self.listener).checkpoints[-1]

    def _extract(self, store: Path, signal: str, adapter: Path, request: ExtractSpec) -> None:
        job = ExtractJob(
            store=str(store),
            model=str(self.model),
            signal=signal,
            adapter=str(adapter),
            request=request,
            options=RunOptions(threads=self.threads),
        )
        extract(job, self.listener)

    def weigh(self, out: Path) -> None:
        """Write the step weights of the pool."""
        # Without places: `adopt` says where the pool is.
        content = Store.open(self.pool_store).plan.content_digest()
        table = weights(Pool.of(self.pool_store, signals=PROXY))
        _write(table, out, store=self.pool_store.name, plan_sha256=content)

    def adopt(self, kept: Path) -> Path:
        """Return a table of weights that was kept, as one of the pool where it is planned now."""
        table, plan = read_weights(kept), Store.open(self.pool_store).plan
        if table.note.plan_sha256 != plan.content_digest():
            raise ResumeMismatch(f"{kept} has the weights of another pool. Move it away, and it is made again.")
        _write(table, self.work / kept.name, store=str(self.pool_store), plan_sha256=plan.digest())
        return self.work / kept.name

    def choose(self, method: str) -> list[str]:
        """Return the ids of a method's subset, in the order of the records."""
        choice = CHOICES[method]
        targets = Targets(self.target_store, (PLAIN,)) if isinstance(choice.spec, InfluenceSpec) else None
        scores = score(self.pool_store, ScoreRequest(spec=choice.spec, signals=choice.signal, targets=targets))
        # Of the whole pool, so that all subsets are of one size, whatever is left out before.
        return select(scores, choice.request, count=budget(self.subsets.ratio, len(scores))).sample_id


def _write(table: WeightTable, out: Path, **changes: str) -> None:
    note = table.note.model_copy(update=changes)
    out.parent.mkdir(parents=True, exist_ok=True)
    with write_blocks(out, weights_schema(note), note) as writer:
        writer.write_table(table.table.cast(weights_schema(note)))
