"""Which learning rate at which step, and after which steps the adapter is kept. Pure functions of the spec."""

from __future__ import annotations

import math
from fractions import Fraction

from grace_store.base.errors import SettingError
from grace_store.model.lora.recipe import WarmupSpec


def learning_rate(spec: WarmupSpec, step: int, num_steps: int) -> float:
    """Return the rate of step 1..num_steps: rising from 0 and then falling to 0, as transformers' schedules do."""
    taken = step - 1
    rising = math.ceil(num_steps * spec.warmup_ratio)
    if taken < rising:
        return spec.learning_rate * taken / rising
    if spec.schedule == "constant":
        return spec.learning_rate
    progress = (taken - rising) / max(1, num_steps - rising)
    factor = 0.5 * (1.0 + math.cos(math.pi * progress)) if spec.schedule == "cosine" else 1.0 - progress
    return spec.learning_rate * max(0.0, factor)


def mean_learning_rate(spec: WarmupSpec, first: int, last: int, num_steps: int) -> float:
    """Return the mean rate of steps first..last, both included."""
    return sum(learning_rate(spec, step, num_steps) for step in range(first, last + 1)) / (last - first + 1)


def checkpoint_steps(spec: WarmupSpec, num_steps: int) -> dict[int, str]:
    """Return {step: fraction} for every checkpoint, rounding up; fractions that fall together are refused."""
    steps: dict[int, str] = {}
    for fraction in spec.checkpoints:
        step = math.ceil(Fraction(fraction) * num_steps)
        if step in steps:
            raise SettingError(
                f"Checkpoints {steps[step]} and {fraction} both fall on step {step} of {num_steps}. Give fewer "
                "--checkpoints, a smaller --batch-size or a larger --ratio."
            )
        steps[step] = fraction
    return steps
