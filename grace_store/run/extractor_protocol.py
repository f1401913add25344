"""The one extension point of a job: what turns a unit's samples into signals. Knows no model library."""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, cast

from grace_store.base.metadata import Sharing
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.states import UnitOutcome
from grace_store.data.sample import Sample


class UnitUnderWay(Protocol):
    """A unit whose device work may still be under way."""

    def result(self) -> UnitOutcome:
        """Wait for the device and return the signals; called once, from the writer's thread."""


class Extractor(Protocol):
    """Turns samples into signals."""

    @property
    def vector_size(self) -> int: ...

    @property
    def sharing(self) -> Sharing | None:
        """Whether samples share prompts and images, as a probe at load found; None if they were not to."""

    def share_as(self, sharing: Sharing) -> None:
        """Share this way from now on, which must be no more than was found."""

    def prepare(self, samples: Sequence[Sample]) -> Any:
        """Tokenise a unit: CPU work only, safe to call from several threads at once."""

    def compute(self, prepared: Any) -> UnitUnderWay:
        """Run the model on a prepared unit; called from one thread only."""


class ModelDoor(Protocol):
    """A module that knows a model library: what a job asks of it."""

    REFERENCE: str
    """The module that `doctor` asks about autograd, the device's memory, and how trainers prepare images."""

    def resolve_spec(
        self, model: str, request: ExtractSpec, options: RunOptions, *, adapter: str | None = None
    ) -> ExtractSpec:
        """Return the full spec for a model folder, its content fingerprints included, without loading weights."""

    def open_extractor(
        self,
        model: str,
        spec: ExtractSpec,
        options: RunOptions,
        *,
        adapter: str | None = None,
        images: str | None = None,
    ) -> Extractor:
        """Load the model; raise if its content is not what the spec says. images: the folder image paths are in."""


PROXY = "grace_store.model.open_model"
"""The door to the real models."""


def model_door(module: str = PROXY) -> ModelDoor:
    """Import a door by its module's name, so that nothing heavy is loaded before it is needed."""
    return cast(ModelDoor, importlib.import_module(module))


def reference_of(door: str) -> Any:
    """Import the module that a door's vectors are checked by."""
    return importlib.import_module(model_door(door).REFERENCE)
