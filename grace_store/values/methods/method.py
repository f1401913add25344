"""What a way of scoring is: its settings, what it reads of a store, and what its table has besides. numpy only.

A new method is a module with one ``Method`` called METHOD, and its name in ``methods/__init__``. One that needs no
vectors is a ``Heuristic``, one that looks at a target set an ``InfluenceMethod``: for both, scoring itself is there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grace_store.base.arrays import Array, FloatArray, Numbers
from grace_store.values.methods.method_spec import HeuristicSpec, InfluenceSpec, MethodSpec

Reads = Literal["plan", "tokens", "losses", "grams", "gradients"]
"""What of a store a method looks at. Plan and tokens take no model to make."""
ColumnType = Literal["int32", "float64", "list<float32>"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way of scoring."""

    name: str
    about: str
    """What it keeps, in a line; shown in --help."""
    spec: type[MethodSpec]
    settings: tuple[str, ...] = ()
    """Those of the spec's settings that it uses. The others are refused, not ignored."""
    reads: Reads
    columns: Mapping[str, ColumnType] = field(default_factory=dict)
    """What its tables have besides what all have."""
    is_reconstruction: bool = False
    """Published without code: what is here is our reading of its text, and says so wherever it is shown."""

    @property
    def title(self) -> str:
        """The name, with what must be said of it."""
        return f"{self.name} (reconstruction)" if self.is_reconstruction else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """What heuristics know of n samples. Token counts and losses lie flat, num_parts of them to a sample.

    They are those of K + 1 segments, as in the store, or one for the whole response.
    """

    row: Numbers
    """Where each sample's record stands in the dataset."""
    num_steps: Numbers
    num_parts: Numbers
    num_tokens: Numbers
    loss: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Heuristic(Method):
    """A method that needs no vectors."""

    spec: type[MethodSpec] = HeuristicSpec
    values: Callable[[Any, Responses], FloatArray]
    """From its spec and samples to their values, (n,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Influences:
    """Influences of n samples on J subtasks or capabilities."""

    influence: Numbers
    """(n, J), NaN for a sample without a value."""
    slope: FloatArray
    """Of each sample's squared gradient length over the checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Valued:
    """What a method makes of influences."""

    value: FloatArray
    columns: Mapping[str, Array] = field(default_factory=dict)
    """Its own columns besides the influences; what a sample without a value has there does not count."""
    thresholds: FloatArray | None = None
    """Of each subtask, if there are such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceMethod(Method):
    """A method that scores by the influence on a target set."""

    spec: type[MethodSpec] = InfluenceSpec
    reads: Reads = "gradients"
    values: Callable[[Any, Influences], Valued]
    needs_whole_pool: bool = False
    """Whether a value depends on the influences of all samples, which are held in memory then."""
    restores_length: bool = False
    """Whether gradients count as long as they are; otherwise by their directions alone."""
    joins_subtasks: bool = False
    """Whether subtasks are joined to capabilities, which are influenced in their place."""
    max_checkpoints: int | None = None
    takes_preconditioned: bool = True
    """Whether the pool's gradients may be Adam's steps."""
