"""A trial as documents: what was frozen before it began, each of its trainings, and what ``grace-store trial`` found.

OUT/plan.json                  TrialPlan, written first; compared on resuming
OUT/runs/ROUND-ARM.json        TrialRun, one for each training, written when it is over
OUT/trial.json                 Finding, written last
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.documents import Count, Document, SampleRef, read_document, write_document
from grace_store.base.errors import DataError, ResumeMismatch
from grace_store.base.settings import Frozen, Spec, Whole
from grace_store.base.text import canonical_json
from grace_store.base.training_settings import TrainingSpec, WarmupOptions
from grace_store.store.opened import Store
from grace_store.values.subset_trial import MIN_DRAWS

PLAN, RUNS, FOUND = "plan.json", "runs", "trial.json"
"""Files and folders in OUT."""

UNDER_WAY = "under-way"
"""Folder in OUT with the state of trainings that are not over; gone in the end."""
REPEAT = "Put the file back as it was, or delete it and run the same command again: only this training is repeated."

OPTIONS = {"num_updates": "updates", "num_random": "random", "num_seeds": "seeds"}
"""What fields of a TrialSpec are called where people give them, if not as here."""

SubsetFile = tuple[Path, Path | None]
"""A subset as it was given, and the table of step weights that it is trained with, if any."""


class TrialSpec(Spec):
    """What is trained on what, how often, and what it is measured on."""

    training: TrainingSpec = Field(default_factory=TrainingSpec)
    """How each adapter is trained; its seed is that of all draws, and of the first round."""
    num_updates: int = Field(default=200, ge=1)
    """Optimiser steps of every training, whatever the size of its subset."""
    num_random: int = Field(default=5, ge=MIN_DRAWS)
    """Random subsets that each subset is compared with: more of them narrow the intervals."""
    num_seeds: int = Field(default=3, ge=1)
    """Seeds that every subset is trained with, one after the other; the answer is looked at after each."""
    held_out: str = "0.1"
    """What models are measured on: a share of the pool's questions (at most 256 of them), a number of them, or a file
    with other traces or a planned store of them. No model is trained on traces with the same prompt and images, or,
    for a file or store, with the same words of the user and images."""
    generate: bool = False
    """Let every model answer the held-out questions, too, and compare how many of its final answers are right."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Tokens after which an answer that has no end counts as wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """What is tried, and how. What is not said comes from the trial that was begun, or else from the defaults."""

    subsets: Sequence[str | Path] = ()
    """Files that ``select`` wrote, or lists of ids."""
    weighted: Sequence[tuple[str | Path, str | Path]] = ()
    """Subsets that are trained with step weights, each with the table of them that ``weights`` wrote."""
    store: str | None = None
    """Where the store is now, if it moved, or if subsets are lists of ids."""
    model: str | None = None
    """None for the one that the scores' signal was extracted with."""
    spec: TrialSpec = field(default_factory=TrialSpec)
    """What is trained and measured; only the settings that were given count."""
    format: str | None = None
    """Of the records of a held-out file, if it is not recognised."""
    map: Mapping[str, str] | None = None
    """The fields of the held-out file's records, by the parts that they hold."""
    data: Sequence[str] | None = None
    """Where the dataset is now, if it moved."""
    images: str | None = None
    """The folder that relative image paths start from."""
    options: WarmupOptions = field(default_factory=WarmupOptions)
    devices: Sequence[str] = ()
    """Devices that get a process each, "cpu" or as the machine names them; none for this process alone."""


class TrialSubset(Frozen):
    """A subset that is tried."""

    name: str
    path: str
    num_samples: Count
    num_trained: Count
    """Without those of held-out questions."""
    random: Count
    """Which of the sets of random subsets it is compared with, from 1."""
    samples_sha256: str
    """Digest of the rows that are trained on, of those of its random subsets, and of its weights."""
    weights: str | None = None
    """The table of step weights that it is trained with, if any."""


class TrialPlan(Document):
    """All that decides a trial's numbers. Frozen before the first training; compared on resuming."""

    words: ClassVar[str] = "the plan of a trial"
    maker: ClassVar[str] = "trial"
    remedy: ClassVar[str] = "Run `grace-store {maker}` with a new --out."

    kind: Literal["trial_plan"] = "trial_plan"
    spec: Whole[TrialSpec]
    plan_sha256: str
    """Of the samples of the store that subsets are chosen from and how they were made, wherever it and its data lie."""
    num_pool: Count
    """Samples that random subsets are drawn from, those of held-out questions included."""
    num_held_out_samples: Count
    """Samples of the pool whose question is held out."""
    subsets: tuple[TrialSubset, ...] = Field(min_length=1)
    held_out: tuple[SampleRef, ...] = Field(min_length=1)
    """The items that models are measured on, one for each question."""
    held_out_sha256: str
    """Digest of the planned samples that they are among."""
    origin: dict[str, str]
    """Where model, store, images and held-out traces lay and what software ran: for people, never compared."""

    def fingerprint(self) -> str:
        """Return a digest of what is compared."""
        compared = self.model_dump(mode="json", exclude={"origin", "made_by", "version"})
        # A setting that is no more. Trainings that were done without it belong to the same plan still.
        compared["spec"]["by"] = None
        for subset in compared["subsets"]:
            del subset["path"], subset["weights"]
        return hashlib.sha256(canonical_json(compared)).hexdigest()


class TrialItem(Frozen):
    """The loss and the answer of one model on one held-out item."""

    sample_id: str
    num_tokens: Count
    """Tokens of the response that the loss is taken over."""
    loss: float
    """Mean over these."""
    is_right: bool | None = None
    """Whether its own answer comes to the right result, if it was asked for."""


class TrialRun(Document):
    """One training and what its model was measured at. Its file says that it is done."""

    words: ClassVar[str] = "a training of a trial"
    maker: ClassVar[str] = "trial"
    remedy: ClassVar[str] = "Delete it and run `grace-store {maker}` again: only this training is repeated."

    kind: Literal["trial_run"] = "trial_run"
    plan_sha256: str
    """Fingerprint of the trial's plan."""
    round: Count
    """From 1."""
    arm: str
    """The subset or random subset that was trained on."""
    seed: Count
    num_samples: Count
    """Samples that the model was trained on."""
    num_left_out: Count
    """Samples skipped: too long, or an image is unusable."""
    loss: float
    """Mean over the tokens, as they count, of the last tenth of the updates."""
    items: tuple[TrialItem, ...]
    sha256: str
    """Digest of all other fields: a number that was changed later is noticed."""

    @classmethod
    def sealed(cls, **fields: Any) -> Self:
        """Return the document of a training with the digest of its fields."""
        found = cls(**{**fields, "sha256": ""})
        return found.model_copy(update={"sha256": found.content_sha256()})

    def content_sha256(self) -> str:
        """Return the digest that these fields should have."""
        content = {name: value for name, value in self.to_json().items() if name != "sha256"}
        return hashlib.sha256(canonical_json(content)).hexdigest()

    @property
    def heldout_loss(self) -> float:
        """Mean over the tokens of all items."""
        total = sum(each.num_tokens for each in self.items)
        return sum(each.loss * each.num_tokens for each in self.items) / total


# ---------------------------------------------------------------- in memory: what is trained on


@dataclass(frozen=True, slots=True)
class Arm:
    """The samples of one training."""

    key: str
    """Its name in files: subset-1, or random-1-3 for the third random subset of the first set of them."""
    name: str
    """For people."""
    positions: IntArray
    """In the plan, ascending, without held-out questions."""
    weights: Mapping[int, FloatArray] = field(default_factory=dict)
    """By row, how much the loss of each of a sample's segments counts, the answer last; those of other rows count 1."""


@dataclass(frozen=True, slots=True)
class TrialSamples:
    """All samples of a trial."""

    store: Store
    subsets: tuple[TrialSubset, ...]
    arms: dict[str, Arm]
    """By key."""
    num_questions: dict[str, int]
    """Of how many questions the traces of each arm are, by its key, held-out ones included."""
    held_out_store: Store
    """Where the traces are that models are measured on."""
    held_out: IntArray
    """Positions of these items in the plan of that store, ascending, one for each question."""
    num_pool: int
    num_held_out_samples: int

    @property
    def held_out_refs(self) -> tuple[SampleRef, ...]:
        """The items by id and row."""
        ids, rows = (self.held_out_store.column(name) for name in ("sample_id", "sample_row"))
        return tuple(SampleRef(sample_id=str(ids[i]), row=int(rows[i])) for i in self.held_out.tolist())

    def arms_of(self, subset: int) -> list[Arm]:
        """Return a subset, numbered from 0, and then its random ones."""
        randoms = f"random-{self.subsets[subset].random}-"
        return [self.arms[f"subset-{subset + 1}"]] + [arm for key, arm in self.arms.items() if key.startswith(randoms)]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One training that a trial may need."""

    round: int
    """From 1."""
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        return f"{self.round}-{self.arm.key}"


@dataclass(frozen=True, slots=True)
class TrialJob:
    """A trial: all that decides its numbers, and the folder that the results of trainings are written to."""

    out: Path
    plan: TrialPlan
    samples: TrialSamples
    request: TrialRequest
    is_begun: bool
    remarks: tuple[str, ...] = ()
    """Warnings about the files that were given."""

    def arms(self, subsets: Sequence[int]) -> list[Arm]:
        """Return the arms that some subsets, numbered from 0, need, each once."""
        return list({arm.key: arm for subset in subsets for arm in self.samples.arms_of(subset)}.values())

    @property
    def num_most_runs(self) -> int:
        return len(self.samples.arms) * self.plan.spec.num_seeds

    def planned(self, arms: Sequence[Arm], round: int) -> list[PlannedRun]:
        """Return the trainings of some arms in a round."""
        return [PlannedRun(round, arm, self.plan.spec.training.seed + round - 1) for arm in arms]

    def read(self, run: PlannedRun) -> TrialRun | None:
        """Return the result of a training, or None if it is not over; raise if the file holds anything else."""
        path = self._path(run)
        if not path.is_file():
            return None
        found = read_document(path, TrialRun)
        if found.sha256 != found.content_sha256():
            raise DataError(
                f"{path} does not match its own digest: it was damaged or edited since its training was over. {REPEAT}"
            )
        if found.plan_sha256 != self.plan.fingerprint():
            raise ResumeMismatch(f"{path} belongs to another trial than the plan beside it. Choose a new --out.")
        if (found.arm, found.round, found.seed) != (run.arm.name, run.round, run.seed):
            raise DataError(
                f"{path} holds another training, on {found.arm} in round {found.round} with seed {found.seed}; that on "
                f"{run.arm.name} in round {run.round} with seed {run.seed} was expected, so the file was copied or "
                f"renamed. {REPEAT}"
            )
        return found

    def check_items(self, runs: Sequence[PlannedRun], results: Mapping[tuple[int, str], TrialRun]) -> None:
        """Raise DataError unless trainings were measured on the same items, in the same order, as the first of all."""
        (round, key), first = next(iter(results.items()))
        expected = [(each.sample_id, each.num_tokens) for each in first.items]
        for run in runs:
            found = [(each.sample_id, each.num_tokens) for each in results[run.round, run.arm.key].items]
            if found != expected:
                raise DataError(
                    f"{self._path(run)} was measured on other held-out items ({len(found)}) than {round}-{key}.json "
                    f"({len(expected)}) beside it, so they cannot be compared. Were images missing for one of them? "
                    "Put them in place, delete the one with fewer items, and run the same command again."
                )

    def finish(self, run: PlannedRun, found: TrialRun) -> None:
        """Write the result of a training, then delete its files; other processes look for the result first."""
        write_document(self._path(run), found)
        shutil.rmtree(self.under_way(run), ignore_errors=True)
        self.lock(run).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Delete the files of trainings that are over, also where a process was killed before it deleted them."""
        shutil.rmtree(self.out / UNDER_WAY, ignore_errors=True)
        for lock in (self.out / RUNS).glob(".*.lock"):
            lock.unlink(missing_ok=True)

    def _path(self, run: PlannedRun) -> Path:
        return self.out / RUNS / f"{run.name}.json"

    def lock(self, run: PlannedRun) -> Path:
        return self.out / RUNS / f".{run.name}.lock"

    def under_way(self, run: PlannedRun) -> Path:
        return self.out / UNDER_WAY / run.name
