"""Settings of a training, in the same two kinds as the settings of an extraction."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from grace_store.base.settings import (
    UNRESOLVED,
    Attention,
    Frozen,
    ImagesAs,
    ModelIdentity,
    Rendering,
    RunOptions,
    Spec,
)

TrainingDtype = Literal["float32", "bfloat16"]
"""Number formats for training; in float16, gradients would vanish."""


def check_fraction(text: str) -> str:
    """Return the text of a fraction unchanged; raise ValueError if it is not above 0 and at most 1."""
    try:
        is_fraction = 0 < float(text) <= 1
    except ValueError:
        is_fraction = False
    if not is_fraction:
        raise ValueError(f"{text!r} is not a number above 0 and at most 1, as in 0.25,0.5,1")
    return text


class TrainingSpec(Spec):
    """Settings for training an adapter on any samples. Defaults that the paper does not give are ms-swift's."""

    found: ClassVar[frozenset[str]] = frozenset({"model"})

    model: ModelIdentity = UNRESOLVED
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
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
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
    """Scale gradients with a larger norm down to this norm."""
    batch_size: int = Field(default=16, ge=1)
    """Number of samples in one optimiser step, on all devices together."""
    rendering: Rendering = UNRESOLVED
    system: str | None = None
    max_length: int = Field(default=4096, ge=2)
    """Leave out conversations with more tokens."""
    text_only: bool = False
    images_as: ImagesAs = "processor"
    min_pixels: int | None = Field(default=None, ge=1)
    max_pixels: int | None = Field(default=None, ge=1)
    train_eos: bool = True
    """Also train on the end-of-turn token after the response, as other trainers do."""
    dtype: TrainingDtype = "float32"
    """Number format of the frozen model. The adapter and its moments are always float32."""
    attention: Attention = "sdpa"


class WarmupSpec(TrainingSpec):
    """Settings of a warm-up: its samples, its checkpoints, and its training."""

    ratio: str = "0.05"
    """Share of the planned samples to train on."""
    num_heldout: int = Field(default=32, ge=0)
    """Number of samples outside the subset. Their loss is measured at the start and at each checkpoint."""
    checkpoints: tuple[str, ...] = ("1",)
    """Fractions of the training, such as 0.25,0.5,1. A checkpoint is kept after each fraction, and always at the
    end."""
    num_epochs: int = Field(default=1, ge=1)
    """Number of passes over the subset."""

    @field_validator("checkpoints")
    @classmethod
    def _ends_at_the_end(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        ordered = sorted(dict.fromkeys(map(check_fraction, value)), key=float)
        return tuple(ordered) if ordered and float(ordered[-1]) == 1.0 else (*ordered, "1")


class WarmupOptions(RunOptions):
    """Settings of device and speed of a training. Another run may have others, which change only the order of sums."""

    batch_tokens: int = Field(default=8192, ge=1)
    """Maximum number of tokens in one forward and backward pass, with padding."""
    loader_threads: int = Field(default=4, ge=1)
    """Number of threads that tokenise samples and open images ahead of the model."""
    gradient_checkpointing: bool = True
    """Compute activations twice instead of keeping them. This takes less memory and more time."""
    save_seconds: float = Field(default=300.0, ge=0)
    """Seconds of training between two saves. A killed run loses at most this much training."""


class Ranks(Frozen):
    """The rank of this process, the number of ranks, and the rank on this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0
