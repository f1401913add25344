"""The one extension point of a job: what turns a unit's samples into signals. Knows no model library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from grace_store.data.sample import Sample
from grace_store.unit import SetAside, UnitSignals


class PendingUnit(Protocol):
    """A unit whose device work may still be under way."""

    def result(self) -> UnitSignals:
        """Wait for the device and return the signals; called once, from the writer's thread."""
        ...


class Extractor(Protocol):
    """Turns samples into signals."""

    @property
    def vector_size(self) -> int: ...

    def prepare(self, samples: Sequence[Sample]) -> Any:
        """Tokenise a unit: CPU work only, safe to call from several threads at once."""
        ...

    def compute(self, prepared: Any) -> PendingUnit:
        """Run the model on a prepared unit; called from one thread only."""
        ...


__all__ = ["Extractor", "PendingUnit", "SetAside", "UnitSignals"]
