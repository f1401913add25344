"""What step weights come to over all samples: how many are 0, and how much closer to the answer they bring the sum."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.flags import ABOUT, flag_counts
from grace_store.base.text import counted, percent
from grace_store.values.intervals import z_for
from grace_store.values.ragged_weights import RaggedWeights


@dataclass(slots=True)
class RunningMean:
    """A mean with its 95 % interval over samples, from sums alone."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: FloatArray) -> None:
        self.num += len(values)
        self.total += float(values.sum())
        self.squares += float((values**2).sum())

    @property
    def mean(self) -> float:
        return self.total / self.num if self.num else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        if self.num < 2:
            return math.nan, math.nan
        spread = max(0.0, self.squares / self.num - self.mean**2) / (self.num - 1)
        reach = z_for() * math.sqrt(spread)
        return self.mean - reach, self.mean + reach

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {"mean": self.mean, "low": low, "high": high}


def residual(cosine: FloatArray) -> FloatArray:
    """Return the share of the answer's squared length that the best multiple of a sum leaves.

    >>> residual(np.array([0.6, -0.6]))
    array([0.64, 1.  ])
    """
    left: FloatArray = 1.0 - np.maximum(cosine, 0.0) ** 2
    return left


@dataclass(slots=True)
class WeightSummary:
    """Counts and means over all samples that were weighed; memory does not grow with them."""

    num_samples: int = 0
    num_weighed: int = 0
    """Samples that have weights."""
    num_all_zero: int = 0
    """Samples with weights that are all 0."""
    num_steps: int = 0
    """Steps that have a weight."""
    num_zero: int = 0
    """Those whose weight is 0."""
    largest: float = 0.0
    flags: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ABOUT, 0))
    cosine: RunningMean = field(default_factory=RunningMean)
    equal_cosine: RunningMean = field(default_factory=RunningMean)
    gain: RunningMean = field(default_factory=RunningMean)
    """Of the cosine, sample by sample."""
    residual: RunningMean = field(default_factory=RunningMean)
    equal_residual: RunningMean = field(default_factory=RunningMean)

    def add(self, found: RaggedWeights) -> None:
        """Count the samples of a block."""
        has = np.isfinite(found.cosine)
        weight = found.weight[np.repeat(has, np.diff(found.offsets))]
        self.num_samples += len(has)
        self.num_weighed += int(has.sum())
        self.num_steps += len(weight)
        self.num_zero += int((weight == 0).sum())
        self.largest = max(self.largest, float(weight.max(initial=0.0)))
        if len(has):
            self.num_all_zero += int((np.maximum.reduceat(found.weight, found.offsets[:-1]) == 0).sum())
        for name, count in flag_counts(found.flags.astype(np.uint32)).items():
            self.flags[name] += count
        cosine, equal = found.cosine[has], found.equal_cosine[has]
        self.cosine.add(cosine)
        self.equal_cosine.add(equal)
        self.gain.add(cosine - equal)
        self.residual.add(residual(cosine))
        self.equal_residual.add(residual(equal))

    @property
    def conclusion(self) -> str:
        """What the weights do, in a sentence or two."""
        flagged = ", ".join(f"{count} {name}" for name, count in self.flags.items() if count)
        if not self.num_weighed:
            why = f": the flags say why ({flagged})" if flagged else ""
            return f"None of {counted(self.num_samples, 'sample')} has weights{why}."
        return f"{self._closer()} {self._zeros()}"

    def _closer(self) -> str:
        low, high = self.gain.interval
        is_more = not self.gain.mean < 0
        if self.num_weighed < 2:
            between = ""
        else:
            between = f" ({self.gain.mean:+.3f} a sample, 95 % interval {low:.3f} to {high:.3f})"
        if low <= 0 <= high:
            what = "Weights change little: the sum of the steps is about as close to the answer as with equal ones"
        elif is_more:
            what = "Weights bring the sum of the steps closer to the answer"
        else:
            what = "Weights take the sum of the steps further from the answer"
        left = f"{percent(self.residual.mean)} of the answer's direction uncovered, {{}} with equal weights"
        return (
            f"{what}: mean cosine {self.cosine.mean:.3f}, {self.equal_cosine.mean:.3f} with equal weights{between}; "
            f"the sum leaves {left.format(percent(self.equal_residual.mean))}."
        )

    def _zeros(self) -> str:
        told = f"{percent(self.num_zero / self.num_steps)} of {counted(self.num_steps, 'step')} get weight 0"
        if self.num_all_zero:
            told += f"; in {counted(self.num_all_zero, 'sample')} all do, since no step points the way of the answer"
        without = self.num_samples - self.num_weighed
        return f"{told}.{f' {without} have no weights.' if without else ''}"

    def to_json(self) -> dict[str, Any]:
        """Return all counts and means, each mean with its interval."""
        counts = ("num_samples", "num_weighed", "num_all_zero", "num_steps", "num_zero", "largest")
        means = ("cosine", "equal_cosine", "gain", "residual", "equal_residual")
        found: dict[str, Any] = {name: getattr(self, name) for name in counts}
        found |= {name: getattr(self, name).to_json() for name in means}
        return found | {"flags": {name: count for name, count in self.flags.items() if count}}
