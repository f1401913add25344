"""The documents of a trial: its plan, its trainings and its finding.

OUT/plan.json                  TrialPlan, written first; compared when the trial is resumed
OUT/runs/ROUND-ARM.json        TrialRun, one for each training, written at its end
OUT/trial.json                 Finding, written last
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.documents import Count, Document, SampleRef, read_document, write_document
from grace_store.base.errors import DataError, ResumeMismatch
from grace_store.base.settings import Frozen, Spec, Whole
from grace_store.base.text import json_sha256
from grace_store.base.training_settings import TrainingSpec, WarmupOptions
from grace_store.store.opened import Store
from grace_store.values.subset_trial import MIN_DRAWS

PLAN, RUNS, FOUND = "plan.json", "runs", "trial.json"
"""Files and folders in OUT."""

UNDER_WAY = "under-way"
"""Folder in OUT with the state of unfinished trainings; deleted in the end."""
REPEAT = "Put the file back as it was, or delete it and run the same command again: only this training is repeated."

OPTIONS = {"num_updates": "updates", "num_random": "random", "num_seeds": "seeds"}
"""Names of options that differ from the names of the fields of TrialSpec."""

SubsetFile = tuple[Path, Path | None]
"""A subset as it was given, and the table of step weights that it is trained with, if any."""


class TrialSpec(Spec):
    """The settings that decide the numbers of a trial: training, rounds, random subsets and held-out traces."""

    training: TrainingSpec = Field(default_factory=TrainingSpec)
    """The training of each adapter. Its seed is used for all draws, and for the first round."""
    num_updates: int = Field(default=200, ge=1)
    """Number of optimiser steps of every training. This number does not depend on the size of the subset."""
    num_random: int = Field(default=5, ge=MIN_DRAWS)
    """Number of random subsets that each subset is compared with. More random subsets narrow the intervals."""
    num_seeds: int = Field(default=3, ge=1)
    """Number of seeds that every subset is trained with, one after the other. The results are compared after each
    seed."""
    held_out: str = "0.1"
    """The held-out traces: a share of the pool's questions (at most 256 questions), a number of questions, or a file or
    planned store with other traces. No model is trained on traces with the same prompt and images as a held-out trace.
    For a file or store, the words of the user are compared instead of the prompt."""
    generate: bool = False
    """Also let every model answer the held-out questions, and compare the numbers of right final answers."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Maximum number of tokens of an answer. An answer that has not ended by then counts as wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """The subsets and settings of a trial. Missing fields come from the trial that was begun, or else from defaults."""

    subsets: Sequence[str | Path] = ()
    """Files that ``select`` wrote, or lists of ids."""
    weighted: Sequence[tuple[str | Path, str | Path]] = ()
    """Subsets that are trained with step weights, each with a table that ``weights`` wrote."""
    store: str | None = None
    """Where the store is now, if it moved, or if subsets are lists of ids."""
    model: str | None = None
    """The model to train; None for the model that the signal of the scores was extracted with."""
    spec: TrialSpec = field(default_factory=TrialSpec)
    """Settings of the trial; only those that were given count."""
    format: str | None = None
    """Format of the records of a held-out file, if it is not recognised."""
    map: Mapping[str, str] | None = None
    """Names of fields in the records of a held-out file, by part."""
    data: Sequence[str] | None = None
    """Where the dataset is now, if it moved."""
    labels: str | Path | None = None
    """Where the file of labels is now that subsets were chosen with, if it moved."""
    images: str | None = None
    """The folder that relative image paths start from."""
    options: WarmupOptions = field(default_factory=WarmupOptions)
    devices: Sequence[str] = ()
    """Devices, each for one process: "cpu" or the machine's names. Empty to train in this process."""


class TrialSubset(Frozen):
    """A subset in a trial."""

    name: str
    path: str
    num_samples: Count
    num_trained: Count
    """Samples of the subset without held-out questions."""
    random: Count
    """Number of the set of random subsets that the subset is compared with, from 1."""
    samples_sha256: str
    """Digest of the rows of the subset, of the rows of its random subsets, and of its weights."""
    weights: str | None = None
    """The table of step weights for this subset, if any."""


class TrialPlan(
    Document, words="the plan of a trial", maker="trial", remedy="Run `grace-store {maker}` with a new --out."
):
    """All that decides the numbers of a trial. Frozen before the first training; compared when it is resumed."""

    kind: Literal["trial_plan"] = "trial_plan"
    spec: Whole[TrialSpec]
    plan_sha256: str
    """Digest of the store's samples and settings, whatever the locations of the store and its data."""
    num_pool: Count
    """Samples that random subsets are drawn from, including samples of held-out questions."""
    num_held_out_samples: Count
    """Samples of the pool with a held-out question."""
    subsets: tuple[TrialSubset, ...] = Field(min_length=1)
    held_out: tuple[SampleRef, ...] = Field(min_length=1)
    """The held-out items, one for each question."""
    held_out_sha256: str
    """Digest of the planned samples of the store with the held-out items."""
    origin: dict[str, str]
    """Locations of model, store, images and held-out traces, and software versions: for people, never compared."""

    def fingerprint(self) -> str:
        """Return a digest of the fields that are compared."""
        compared = self.model_dump(mode="json", exclude={"origin", "made_by", "version"})
        # A setting that was removed. The fingerprint of trainings without it stays the same.
        compared["spec"]["by"] = None
        for subset in compared["subsets"]:
            del subset["path"], subset["weights"]
        return json_sha256(compared)


class TrialItem(Frozen):
    """The loss and the answer of one model on one held-out item."""

    sample_id: str
    num_tokens: Count
    """Tokens of the response."""
    loss: float
    """Mean loss over these tokens."""
    is_right: bool | None = None
    """Whether the model's answer has the right result, if answers were generated."""


class TrialRun(
    Document,
    words="a training of a trial",
    maker="trial",
    remedy="Delete it and run `grace-store {maker}` again: only this training is repeated.",
):
    """One training with the measurements of its model. The file exists only if the training is done."""

    kind: Literal["trial_run"] = "trial_run"
    plan_sha256: str
    """Fingerprint of the trial's plan."""
    round: Count
    """Number of the round, from 1."""
    arm: str
    """The subset or random subset of the training."""
    seed: Count
    num_samples: Count
    """Samples that the model was trained on."""
    num_left_out: Count
    """Samples skipped: too long, or an image is unusable."""
    loss: float
    """Mean training loss over the weighted tokens of the last tenth of the updates."""
    items: tuple[TrialItem, ...]
    sha256: str
    """Digest of all other fields, which shows later changes."""

    @classmethod
    def sealed(cls, **fields: Any) -> Self:
        """Return the document of a training with the digest of its fields."""
        found = cls(**{**fields, "sha256": ""})
        return found.model_copy(update={"sha256": found.content_sha256()})

    def content_sha256(self) -> str:
        """Return the digest of the other fields."""
        return json_sha256({name: value for name, value in self.to_json().items() if name != "sha256"})

    @property
    def heldout_loss(self) -> float:
        """Mean loss over the tokens of all items."""
        return sum(each.loss * each.num_tokens for each in self.items) / sum(each.num_tokens for each in self.items)


@dataclass(frozen=True, slots=True)
class Arm:
    """The samples of one training."""

    key: str
    """Its name in files: subset-1, or random-1-3 for the third random subset of the first set."""
    name: str
    """Its name for people."""
    positions: IntArray
    """Positions of samples in the plan, ascending, without held-out questions."""
    weights: Mapping[int, FloatArray] = field(default_factory=dict)
    """Weights of a sample's segments in the loss, the answer last, by dataset row; other rows have weight 1."""


@dataclass(frozen=True, slots=True)
class TrialSamples:
    store: Store
    subsets: tuple[TrialSubset, ...]
    arms: dict[str, Arm]
    num_questions: dict[str, int]
    """Numbers of questions by the key of the arm, including held-out questions."""
    held_out_store: Store
    """The store with the held-out traces."""
    held_out: IntArray
    """Positions of the held-out items in the plan of that store, ascending, one for each question."""
    num_pool: int
    num_held_out_samples: int

    def arms_of(self, subset: int) -> list[Arm]:
        """Return the arm of a subset, numbered from 0, and then the arms of its random subsets."""
        randoms = f"random-{self.subsets[subset].random}-"
        return [self.arms[f"subset-{subset + 1}"]] + [arm for key, arm in self.arms.items() if key.startswith(randoms)]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One training that a trial may need."""

    round: int
    """Number of the round, from 1."""
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        return f"{self.round}-{self.arm.key}"


@dataclass(frozen=True, slots=True)
class TrialJob:
    """A trial: its plan, its samples, and the folder with the results of trainings."""

    out: Path
    plan: TrialPlan
    samples: TrialSamples
    request: TrialRequest
    is_begun: bool
    remarks: tuple[str, ...] = ()
    """Warnings about the files that were given."""

    def arms(self, subsets: Sequence[int]) -> list[Arm]:
        """Return the arms of some subsets, numbered from 0, each arm once."""
        return list({arm.key: arm for subset in subsets for arm in self.samples.arms_of(subset)}.values())

    @property
    def num_most_runs(self) -> int:
        return len(self.samples.arms) * self.plan.spec.num_seeds

    def planned(self, arms: Sequence[Arm], round: int) -> list[PlannedRun]:
        return [PlannedRun(round, arm, self.plan.spec.training.seed + round - 1) for arm in arms]

    def read(self, run: PlannedRun) -> TrialRun | None:
        """Return the result of a training, or None if there is none yet; raise if the file holds anything else."""
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
        """Raise DataError unless these trainings were measured on the items of the first training, in its order."""
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
        """Write the result of a training, then delete its files; other processes check for the result first."""
        write_document(self._path(run), found)
        shutil.rmtree(self.under_way(run), ignore_errors=True)
        self.lock(run).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Delete the files of finished trainings that a killed process left."""
        shutil.rmtree(self.out / UNDER_WAY, ignore_errors=True)
        for lock in (self.out / RUNS).glob(".*.lock"):
            lock.unlink(missing_ok=True)

    def _path(self, run: PlannedRun) -> Path:
        return self.out / RUNS / f"{run.name}.json"

    def lock(self, run: PlannedRun) -> Path:
        return self.out / RUNS / f".{run.name}.lock"

    def under_way(self, run: PlannedRun) -> Path:
        return self.out / UNDER_WAY / run.name
