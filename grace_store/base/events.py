"""What a long job tells whoever listens: plain events, one callback. The core never draws anything."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Base of everything a job reports."""

    def to_json(self) -> dict[str, Any]:
        return {"event": type(self).__name__, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Note(Event):
    """One sentence for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Warned(Event):
    """One sentence about something the user should look at."""

    text: str


@dataclass(frozen=True, slots=True)
class Progressed(Event):
    """How far a job is that has no other event: bytes of a dataset read, or samples scored or compared."""

    text: str
    """The same in a sentence for the user."""
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Started(Event):
    """A run begins: what is there to do and what was done before."""

    signal: str
    num_units: int
    num_units_skipped: int
    num_samples: int
    num_samples_skipped: int
    bytes_expected: int


@dataclass(frozen=True, slots=True)
class Rated(Event):
    """How fast a probe on a few samples went: the estimate before the real work."""

    samples_per_second: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class UnitCommitted(Event):
    """One unit is on disk for good."""

    unit: int
    num_samples: int
    num_set_aside: int
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """The run is over; seconds of wall time, units it computed."""

    num_units: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The run ended by an error; for its log, as whoever started it is told by the error itself."""

    text: str
    where: tuple[str, ...]
    """The calls that led to it, the innermost last, as file:line in function."""


@dataclass(frozen=True, slots=True)
class StepTaken(Event):
    """One step of a warm-up was taken; the loss is that before it."""

    step: int
    num_steps: int
    loss: float
    learning_rate: float
    num_tokens: int


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""
