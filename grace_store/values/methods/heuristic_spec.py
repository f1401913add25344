"""The settings of methods that need no vectors."""

from __future__ import annotations

from pydantic import Field

from grace_store.values.methods.method_spec import MethodSpec


class HeuristicSpec(MethodSpec):
    """Which heuristic makes the values."""

    seed: int = Field(default=0, ge=0, lt=2**64)
    """Seed of the values of the method random."""
