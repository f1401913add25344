"""The settings of a diverse selection: all that change the subset."""

import math
from typing import Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from grace_store.base.errors import SettingError
from grace_store.base.settings import Settings
from grace_store.values.diverse_orders import check_weight
from grace_store.values.ranking import Balance

DiversityMethod = Literal["dedup", "clusters", "facility", "mmr"]
METHODS: tuple[DiversityMethod, ...] = get_args(DiversityMethod)
Traded = Literal["clusters", "facility", "mmr"]
"""The methods that have a weight."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "dedup": {},
    "clusters": {"weight": 1.0, "balance": "equal", "seed": 0},
    "facility": {"weight": 0.25, "seed": 0},
    "mmr": {"weight": 0.5, "seed": 0},
}
_OPTIONAL = {"num_clusters": ("clusters",), "similarity": ("dedup",)}


class DiversitySpec(Settings):
    """How a ranking is made diverse. What a method has no use for is None, and refused if it is given.

    >>> DiversitySpec(method="mmr").weight
    0.5
    """

    method: DiversityMethod
    """dedup: near-duplicates last. clusters: budgets for clusters. facility: facility location with a value term,
    greedily. mmr: maximal marginal relevance. values.diverse_orders defines them."""
    weight: float | None = None
    """Weight of diversity against value, 0 (value alone) to 1."""
    similarity: float | None = None
    """With dedup, cosine from which samples are near-duplicates."""
    balance: Balance | None = None
    """With clusters, how the budget is divided: equally, by the square root of a cluster's size, or by its size."""
    num_clusters: int | None = Field(default=None, ge=1)
    """For clusters: how many; None for a number that grows with that of the samples."""
    seed: int | None = Field(default=None, ge=0)
    """Seed of the clustering."""
    signal: str | None = None
    """Whose vectors say what is similar; None for the one that was scored."""
    descriptor: str | None = None
    """How a sample's vectors become one; None for the signal's default."""

    @model_validator(mode="before")
    @classmethod
    def _own_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        said = {name: value for name, value in given.items() if value is not None}
        return _DEFAULTS.get(str(said.get("method")), {}) | said

    @field_validator("weight")
    @classmethod
    def _balance_of_two(cls, value: float | None) -> float | None:
        return None if value is None else check_weight(value)

    @field_validator("similarity")
    @classmethod
    def _cosine(cls, value: float | None) -> float | None:
        if value is not None and not (math.isfinite(value) and 0 < value <= 1):
            raise SettingError(f"similarity {value:g} is not a cosine above 0 and at most 1")
        return value

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        for name in ("weight", "similarity", "balance", "num_clusters", "seed"):
            methods = _OPTIONAL.get(name) or [method for method in METHODS if name in _DEFAULTS[method]]
            if getattr(self, name) is not None and self.method not in methods:
                option = {"num_clusters": "clusters"}.get(name, name)
                by = " or ".join(methods)
                raise SettingError(f"--{option} is for diversity by {by}; {self.method} would ignore it")
        return self
