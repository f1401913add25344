"""The study's settings: fixed before the runs in settings.toml, checked, and named by their digest."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, field_validator, model_validator

from grace_store.base.errors import SettingError
from grace_store.base.settings import Frozen

SETTINGS = Path(__file__).parent / "settings.toml"


class DataSettings(Frozen):
    """What is taught, chosen from, and asked."""

    seed: int = Field(ge=0)
    num_lessons: int = Field(ge=1)
    """Easy problems, for the base model."""
    most_lesson_steps: int = Field(ge=1)
    """Easy problems have one step, or up to so many."""
    num_pool: int = Field(ge=1)
    num_targets: int = Field(ge=1)
    """Of each kind."""
    num_heldout: int = Field(ge=1)
    """Of each kind."""
    fewest_steps: int = Field(ge=2)
    most_steps: int = Field(ge=2, le=10)
    copies: int = Field(ge=1)
    """How often a duplicated record comes again."""
    shares: dict[str, float]
    """Of the pool, by quality, in each kind alike."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        from jobs.study.problems import KINDS
        from jobs.study.traces import DUPLICATED, QUALITIES

        if set(self.shares) != {*QUALITIES, DUPLICATED} or abs(sum(self.shares.values()) - 1) > 1e-9:
            raise ValueError(f"shares must be of {', '.join([*QUALITIES, DUPLICATED])} and add up to 1")
        if self.num_pool % len(KINDS):
            raise ValueError(f"num_pool must be a multiple of {len(KINDS)}, the number of kinds")
        if not self.most_lesson_steps < self.fewest_steps <= self.most_steps:
            raise ValueError("most_lesson_steps must be below fewest_steps, and that at most most_steps")
        return self

    def counts(self, total: int) -> dict[str, int]:
        """Return how many records of each quality make a total; what rounding leaves is clean."""
        counts = {quality: int(share * total) for quality, share in self.shares.items()}
        counts["clean"] += total - sum(counts.values())
        return counts


class ModelSettings(Frozen):
    """A Llama, small."""

    hidden_size: int = Field(ge=8)
    intermediate_size: int = Field(ge=8)
    num_layers: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    max_length: int = Field(ge=16)


class TrainSettings(Frozen):
    """A training: its budget is num_updates batches of batch_size traces, whatever it trains on."""

    num_updates: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    warmup_share: float = Field(ge=0, lt=1)
    """Share of the updates over which the learning rate rises from 0; it then falls to 0 as a cosine."""
    weight_decay: float = Field(ge=0)


class WarmupSettings(Frozen):
    """The LoRA warm-up of the scoring model, by grace-store warmup."""

    ratio: str
    checkpoints: tuple[str, ...]
    num_epochs: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    seeds: tuple[int, ...] = Field(min_length=1)
    """The first is the study's; the others are for the stability audit."""


class ScoreSettings(Frozen):
    """What subsets are chosen by."""

    projection_dimension: int = Field(ge=8)
    ratios: tuple[str, ...] = Field(min_length=1)
    main_ratio: str
    methods: tuple[str, ...] = Field(min_length=1)
    """Compared at every ratio."""
    ablations: tuple[str, ...]
    """Compared at the main ratio."""
    unit_samples: int = Field(ge=1)
    # Left out of the digest where nothing is said, as it was before there was a choice.
    by: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """A field of the records: every subset has its values in the pool's shares. Without it, the best are taken."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        from jobs.study.methods import METHODS

        if unknown := [name for name in (*self.methods, *self.ablations) if name not in METHODS]:
            raise ValueError(f"unknown methods {', '.join(unknown)}; there are {', '.join(METHODS)}")
        if self.main_ratio not in self.ratios:
            raise ValueError(f"main_ratio {self.main_ratio} is none of the ratios")
        return self


class EvaluationSettings(Frozen):
    """How models are judged."""

    max_new_tokens: int = Field(ge=8)
    batch_size: int = Field(ge=1)
    draws: int = Field(ge=100)
    """Of the bootstrap over seeds and problems."""
    fidelity_samples: int = Field(ge=8)


class Settings(Frozen):
    """All that decides the study's numbers."""

    seeds: tuple[int, ...] = Field(min_length=1)
    """One fine-tuning for each, of every subset."""
    threads: int = Field(ge=1)
    """Of what runs alone: base training and extraction. Each fine-tuning has one."""
    data: DataSettings
    model: ModelSettings
    base: TrainSettings
    tune: TrainSettings
    warmup: WarmupSettings
    score: ScoreSettings
    evaluation: EvaluationSettings

    @field_validator("seeds")
    @classmethod
    def _differ(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError("seeds must differ")
        return value


def read_settings(path: Path = SETTINGS) -> Settings:
    """Return the settings of a file, or raise SettingError with all that is wrong with them."""
    try:
        return Settings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise SettingError(f"{path}: {error}") from error
