"""Events that a long job reports to a listener, which is one callback. Only the command line draws anything."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    def to_json(self) -> dict[str, Any]:
        return {"event": type(self).__name__, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Note(Event):
    """A sentence for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Warned(Event):
    """A warning for the user, in a sentence."""

    text: str


@dataclass(frozen=True, slots=True)
class Progressed(Event):
    """The progress of a job without units: bytes of a dataset read, or samples scored or compared."""

    text: str
    """The progress in a sentence for the user."""
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The start of a run: the work to do, and the work that was done before."""

    signal: str
    num_units: int
    num_units_skipped: int
    num_samples: int
    num_samples_skipped: int
    bytes_expected: int


@dataclass(frozen=True, slots=True)
class Rated(Event):
    """An estimate of the speed, from a few samples that are timed before the run."""

    samples_per_second: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class UnitCommitted(Event):
    """The commit of a unit."""

    unit: int
    num_samples: int
    num_set_aside: int
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """The end of a run, with the number of units that it computed and its wall time."""

    num_units: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The end of a run by an error; only for the run's log, as the user sees the error itself."""

    text: str
    where: tuple[str, ...]
    """The calls that led to the error, as "file:line in function", the innermost last."""


@dataclass(frozen=True, slots=True)
class StepTaken(Event):
    """One optimiser step of a training; loss is the loss before the step."""

    step: int
    num_steps: int
    loss: float
    learning_rate: float
    num_tokens: int


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore an event: the listener of a caller that wants none."""
