"""The settings of a warm-up, in the same two kinds as an extraction's, and the documents that it writes."""

import hashlib
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from grace_store.base.documents import Count, Document
from grace_store.base.settings import Attention, Frozen, ImagesAs, ModelIdentity, Rendering, canonical_json

Schedule = Literal["cosine", "linear", "constant"]
TrainingDtype = Literal["float32", "bfloat16"]
"""Gradients would vanish in float16."""

LOSSES = "loss.jsonl"
RECIPE = "recipe.json"
REPLAY = "replay.toml"
SUBSET = "subset.json"
DONE = "done.json"
"""Files beside the checkpoints."""
TRAINING_STATE = "training_state.json"
"""A file in each checkpoint."""


# ---------------------------------------------------------------- what changes the numbers


def check_fraction(text: str) -> str:
    """Return a fraction of the steps as it is written, or raise ValueError."""
    try:
        is_fraction = 0 < float(text) <= 1
    except ValueError:
        is_fraction = False
    if not is_fraction:
        raise ValueError(f"{text!r} is not a number above 0 and at most 1, as in 0.25,0.5,1")
    return text


class TrainingSpec(Frozen):
    """How an adapter is trained, whatever on. Where the paper is silent, ms-swift's defaults."""

    model: ModelIdentity
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the subset, of its order and of the adapter's first weights."""
    rank: int = Field(default=8, ge=1)
    """Rank of the adapter."""
    alpha: float = Field(default=32.0, gt=0)
    """LoRA's alpha: the adapter is scaled by alpha/rank."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Highest learning rate."""
    warmup_ratio: float = Field(default=0.05, ge=0, lt=1)
    """Share of the training over which the learning rate rises from 0."""
    schedule: Schedule = "cosine"
    """How the learning rate falls after its rise."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Weight decay of AdamW."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of AdamW's first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of AdamW's second moment."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Epsilon that AdamW adds to the denominator."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Scale longer gradients down to this norm."""
    batch_size: int = Field(default=16, ge=1)
    """Samples in one optimiser step, over all devices."""
    rendering: Rendering
    system: str | None = None
    max_length: int = Field(default=4096, ge=2)
    """Leave conversations with more tokens out."""
    text_only: bool = False
    images_as: ImagesAs = Field(default="processor", exclude_if=lambda value: value == "processor")
    min_pixels: int | None = Field(default=None, ge=1)
    max_pixels: int | None = Field(default=None, ge=1)
    train_eos: bool = True
    """Train on the end-of-turn token after the response, too, as trainers do."""
    dtype: TrainingDtype = "float32"
    """Number format of the frozen model; the adapter and its moments are float32."""
    attention: Attention = "sdpa"


class WarmupSpec(TrainingSpec):
    """What a warm-up trains on, and how."""

    ratio: str = "0.05"
    """Share of the planned samples to train on."""
    num_heldout: int = Field(default=32, ge=0)
    """Samples outside the subset whose loss is measured at the start and at each checkpoint."""
    checkpoints: tuple[str, ...] = ("1",)
    """Fractions of the training after which a checkpoint is kept, such as 0.25,0.5,1; the end always is one."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over the subset."""

    @field_validator("checkpoints")
    @classmethod
    def _ends_at_the_end(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        ordered = sorted(dict.fromkeys(map(check_fraction, value)), key=float)
        return tuple(ordered) if ordered and float(ordered[-1]) == 1.0 else (*ordered, "1")


class TrainingRequest(Frozen):
    """Wishes about a training. What is not said comes from the one that was begun, or else from the defaults."""

    seed: int | None = None
    rank: int | None = None
    alpha: float | None = None
    learning_rate: float | None = None
    warmup_ratio: float | None = None
    schedule: Schedule | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    max_grad_norm: float | None = None
    batch_size: int | None = None
    rendering: Rendering | None = None
    system: str | None = None
    max_length: int | None = None
    text_only: bool | None = None
    images_as: ImagesAs | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    train_eos: bool | None = None
    dtype: TrainingDtype | None = None
    attention: Attention | None = None


class WarmupRequest(TrainingRequest):
    """Wishes about a warm-up. What is not said comes from its recipe, or else from WarmupSpec's defaults."""

    ratio: str | None = None
    num_heldout: int | None = None
    checkpoints: tuple[str, ...] | None = None
    num_epochs: int | None = None


# ---------------------------------------------------------------- what changes only the speed


class WarmupOptions(Frozen):
    """How fast, on what. May differ from run to run, up to the order of sums."""

    batch_tokens: int = Field(default=8192, ge=1)
    """Tokens in one forward and backward pass, padding included."""
    device: str = "auto"
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of each process."""
    loader_threads: int = Field(default=4, ge=1)
    """Threads that tokenise samples and open images ahead of the model."""
    gradient_checkpointing: bool = True
    """Compute activations twice instead of keeping them: less memory, more time."""
    save_seconds: float = Field(default=300.0, ge=0)
    """Seconds of training between saves: a killed run loses no more than this."""
    patience: int = Field(default=600, ge=1)
    """Seconds after which a device that has not finished a step is said to hang."""


class Ranks(Frozen):
    """Which process of how many this is, and on which device of its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0


# ---------------------------------------------------------------- what it writes


class WarmupDocument(Document):
    """What all documents of a warm-up have in common."""

    maker: ClassVar[str] = "warmup"
    remedy: ClassVar[str] = "Run `grace-store {maker}` with a new --out."
    was_bare: ClassVar[bool] = True


class SampleRef(Frozen):
    """A sample by its id and its record's row in the dataset."""

    sample_id: str
    row: Count


class LeftOut(SampleRef):
    """A sample of the subset that cannot be trained on."""

    reason: str
    detail: str = ""


class WarmupSubset(WarmupDocument):
    """Which samples a warm-up trains on and which it holds out, in the order of the dataset."""

    words: ClassVar[str] = "the subset of a warm-up"

    kind: Literal["warmup_subset"] = "warmup_subset"
    num_planned: Count
    ratio: str
    seed: int
    samples: tuple[SampleRef, ...]
    heldout: tuple[SampleRef, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def fingerprint(self) -> str:
        """Return a digest of what was chosen."""
        chosen = {"num_planned", "ratio", "seed", "samples", "heldout"}
        return hashlib.sha256(canonical_json(self.model_dump(mode="json", include=chosen))).hexdigest()


class Recipe(WarmupDocument):
    """All that decides a warm-up's numbers. Frozen in recipe.json; compared on resuming."""

    words: ClassVar[str] = "the recipe of a warm-up"

    kind: Literal["warmup_recipe"] = "warmup_recipe"
    spec: WarmupSpec
    plan_sha256: str
    subset_sha256: str
    origin: dict[str, str]
    """Where model, store and images lay and what software ran: for people, never compared."""

    @field_validator("origin")
    @classmethod
    def _names_places(cls, value: dict[str, str]) -> dict[str, str]:
        if missing := sorted({"model", "store", "images"} - value.keys()):
            raise ValueError(f"origin does not say where {', '.join(missing)} lay")
        return value

    def fingerprint(self) -> str:
        """Return a digest of what is compared."""
        compared = self.model_dump(mode="json", include={"spec", "plan_sha256", "subset_sha256"})
        return hashlib.sha256(canonical_json(compared | {"origin": {}})).hexdigest()


class CheckpointState(WarmupDocument):
    """Where in the training a checkpoint stands, and what it was trained on."""

    words: ClassVar[str] = "the state of a checkpoint"

    kind: Literal["warmup_checkpoint"] = "warmup_checkpoint"
    step: Count
    num_steps: Count
    fraction: str
    learning_rate: float
    """Of the step just taken."""
    mean_learning_rate: float
    """Over the steps since the checkpoint before: the weight that influence methods give a checkpoint."""
    loss: float
    """Mean over the tokens of the steps since the checkpoint before."""
    heldout_loss: float | None = None
    base: ModelIdentity
    """The model that the adapter belongs on."""
    recipe_sha256: str


class WarmupDone(WarmupDocument):
    """The end of a warm-up. Its file says that nothing is left to do."""

    words: ClassVar[str] = "the end of a warm-up"
    remedy: ClassVar[str] = "Delete it and run `grace-store {maker}` again; what was trained is kept."

    kind: Literal["warmup_done"] = "warmup_done"
    recipe_sha256: str
    num_planned: Count
    num_samples: Count
    num_left_out: Count
    num_steps: Count
    checkpoints: tuple[Annotated[str, Field(pattern="^checkpoint-[0-9]+$")], ...] = Field(min_length=1)
    """Folders beside this file, in the order of their steps."""
