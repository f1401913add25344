"""What a way of weighing steps is. numpy only.

A new one is a module with one ``Weighting`` called WEIGHTING, and its name in ``weightings/__init__``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grace_store.base.arrays import BoolArray, FloatArray
from grace_store.values.pulls import Pulls


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is known of the steps of n samples, which stand in columns; all arrays are (K, n)."""

    pulls: Pulls
    present: BoolArray
    """Which steps samples have."""
    score: FloatArray | None
    """Step scores, 0 for steps that a sample has not; None unless the weighting uses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """One way of weighing steps."""

    name: str
    about: str
    """What it does, in a line; shown in --help."""
    settings: tuple[str, ...] = ()
    """Those of the spec's settings that it uses. The others are refused, not ignored."""
    is_mask: bool = False
    """Whether weights are 0 or 1, which every trainer with masks can use; they are not scaled then."""
    weigh: Callable[[Any, Steps], FloatArray]
    """From the spec and steps to weights, (K, n), of any scale; NaN for all steps of a sample that has none."""

    @property
    def uses_scores(self) -> bool:
        return "scores" in self.settings
