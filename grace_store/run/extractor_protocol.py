"""The protocol between a run and a model library: an extractor turns a unit's samples into signals."""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, cast

from grace_store.base.metadata import Sharing
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.states import UnitOutcome
from grace_store.data.sample import Sample


class UnitUnderWay(Protocol):
    """A unit that the device may still be working on."""

    def result(self) -> UnitOutcome:
        """Wait for the device and return the signals; called once, from the writer's thread."""


class Extractor(Protocol):
    """A loaded model that turns samples into signals."""

    @property
    def vector_size(self) -> int: ...

    @property
    def sharing(self) -> Sharing | None:
        """Whether samples share prompts and images, by the probe at load; None if sharing was not asked for."""

    def share_as(self, sharing: Sharing) -> None:
        """Share prompts and images this way from now on; the probe must have allowed it."""

    def prepare(self, samples: Sequence[Sample]) -> Any:
        """Tokenise a unit, on the CPU only; several threads may call this at once."""

    def compute(self, prepared: Any) -> UnitUnderWay:
        """Run the model on a prepared unit; called from one thread only."""


class ModelDoor(Protocol):
    """The functions of a module that knows a model library."""

    REFERENCE: str
    """The module by which `doctor` checks gradients, the device's memory, and how trainers prepare images."""

    def resolve_spec(
        self, model: str, request: ExtractSpec, options: RunOptions, *, adapter: str | None = None
    ) -> ExtractSpec:
        """Return the whole spec for a model folder, with digests of its content, without loading weights."""

    def open_extractor(
        self,
        model: str,
        spec: ExtractSpec,
        options: RunOptions,
        *,
        adapter: str | None = None,
        images: str | None = None,
    ) -> Extractor:
        """Load the model; raise if its content differs from the spec. Image paths start from the folder images."""


PROXY = "grace_store.model.open_model"
"""The door to transformers."""


def model_door(module: str = PROXY) -> ModelDoor:
    """Import a door by its module's name, so that heavy libraries are loaded only when needed."""
    return cast(ModelDoor, importlib.import_module(module))


def reference_of(door: str) -> Any:
    """Import the module by which `doctor` checks a door."""
    return importlib.import_module(model_door(door).REFERENCE)
