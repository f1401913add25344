"""A trial as documents: what was frozen before it began, each of its trainings, and what ``grace-store trial`` found.

OUT/plan.json                  TrialPlan, written first; compared on resuming
OUT/runs/ROUND-ARM.json        TrialRun, one for each training, written when it is over
OUT/trial.json                 Trial, written last
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from grace_store.base.documents import Count, Document, Number
from grace_store.base.settings import Frozen, canonical_json
from grace_store.model.lora.recipe import SampleRef, TrainingSpec
from grace_store.values.subset_trial import MIN_DRAWS, SubsetDifference

PLAN, RUNS, FOUND = "plan.json", "runs", "trial.json"
"""Files and folders in OUT."""

OPTIONS = {"num_updates": "updates", "num_random": "random", "num_seeds": "seeds"}
"""What fields of a TrialSpec are called where people give them, if not as here."""


class TrialSpec(Frozen):
    """What is trained on what, how often, and what it is measured on."""

    training: TrainingSpec
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
    by: str | None = None
    """Field of the records, or several that commas join: random subsets have as many samples of each of its values as
    the subset they are compared with."""
    generate: bool = False
    """Let every model answer the held-out questions, too, and compare how many of its final answers are right."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Tokens after which an answer that has no end counts as wrong."""


class TrialDocument(Document):
    """What all documents of a trial have in common."""

    maker: ClassVar[str] = "trial"
    remedy: ClassVar[str] = "Run `grace-store {maker}` with a new --out."


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


class TrialPlan(TrialDocument):
    """All that decides a trial's numbers. Frozen before the first training; compared on resuming."""

    words: ClassVar[str] = "the plan of a trial"

    kind: Literal["trial_plan"] = "trial_plan"
    spec: TrialSpec
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
        for subset in compared["subsets"]:
            del subset["path"], subset["weights"]
        return hashlib.sha256(canonical_json(compared)).hexdigest()


class TrialItem(Frozen):
    """What one model makes of one held-out item."""

    sample_id: str
    num_tokens: Count
    """Tokens of the response that the loss is taken over."""
    loss: float
    """Mean over these."""
    is_right: bool | None = None
    """Whether its own answer comes to the right result, if it was asked for."""


class TrialRun(TrialDocument):
    """One training and what its model was measured at. Its file says that it is done."""

    words: ClassVar[str] = "a training of a trial"
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
    """That it was trained on."""
    num_left_out: Count
    """Whose turn came but that could not be trained on, for their length or images."""
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


class TriedSubset(Frozen):
    """One subset against random ones."""

    name: str
    num_samples: Count
    num_trained: Count
    num_questions: Count | None = None
    """Of how many questions its traces are, held-out ones included."""
    random_num_questions: tuple[Count, ...] | None = None
    """The same of each random subset."""
    num_rounds: Count
    """Seeds that it was trained with before the answer was clear, or all."""
    heldout_loss: Number
    """Mean over the tokens of all held-out items, and over the rounds."""
    random_losses: tuple[Number, ...]
    """The same of each random subset."""
    difference: SubsetDifference
    """Of the held-out loss: below 0 the subset trains better models."""
    share_right: Number | None = None
    """Of the model's own answers."""
    random_shares_right: tuple[Number, ...] | None = None
    right_difference: SubsetDifference | None = None
    """Of the share of right answers: above 0 the subset trains better models. It decides nothing of when to stop."""
    conclusion: str
    """A sentence for people."""
    right_conclusion: str | None = None
    """Another one, on right answers, if they were asked for."""


class SubsetPair(Frozen):
    """Two of the given subsets against each other."""

    first: str
    second: str
    num_rounds: Count
    """Seeds that both were trained with; no others count."""
    difference: SubsetDifference
    """Of the held-out loss over these seeds: below 0 the first trains better models."""
    conclusion: str | None = None
    """A sentence for people, if the difference is clear."""


def conclusions_of(
    subsets: Sequence[TriedSubset], questions: str | None, pairs: Sequence[SubsetPair] | None
) -> list[str]:
    """Return what was found in sentences, each once: of every subset, of their questions, and of clear pairs."""
    told = [sentence for each in subsets for sentence in (each.conclusion, each.right_conclusion)]
    told += [questions, *(each.conclusion for each in pairs or ())]
    return list(dict.fromkeys(sentence for sentence in told if sentence is not None))


class Trial(TrialDocument):
    """What a trial found."""

    words: ClassVar[str] = "the result of a trial"
    mistaken: ClassVar[Mapping[str, str]] = {
        "trial_plan": f"Give {FOUND} in the same folder, which is there when the trial is over.",
        "trial_run": f"Give {FOUND} in the folder above {RUNS}, which is there when the trial is over.",
    }

    kind: Literal["trial"] = "trial"
    store: str
    plan_sha256: str
    """Of the store."""
    spec: TrialSpec
    conclusion: str
    """What it means: for each subset a sentence, and one on right answers if they were asked for; then one on subsets
    of few questions, and one for each pair of subsets whose difference is clear."""
    questions_conclusion: str | None = None
    """The sentence on subsets that have far fewer questions than random ones and train no better models, if any."""
    num_pool: Count
    num_held_out_samples: Count | None = None
    """Samples of the pool that no model is trained on, since their question is held out."""
    num_items: Count
    """Held-out items that all models are measured on."""
    num_runs: Count
    """Trainings that were done."""
    num_most_runs: Count
    """Trainings that there would have been without an early end."""
    subsets: tuple[TriedSubset, ...]
    pairs: tuple[SubsetPair, ...] | None = None
    """Each pair of subsets, if there are several: intervals hold for all pairs together, with 5 % of their own."""
