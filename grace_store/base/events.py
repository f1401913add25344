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
class Scanned(Event):
    """Planning progress: records and bytes read so far."""

    num_records: int
    num_bytes: int
    total_bytes: int


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
    """How fast a trial on a few samples went: the estimate before the real work."""

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
class SamplesScored(Event):
    """Scoring progress: how many of the planned samples were looked at so far."""

    num_samples: int
    total_samples: int


@dataclass(frozen=True, slots=True)
class SamplesCompared(Event):
    """Search progress: how many samples were compared with the others so far."""

    num_samples: int
    total_samples: int


@dataclass(frozen=True, slots=True)
class StepTaken(Event):
    """One step of a warm-up was taken; the loss is that before it."""

    step: int
    num_steps: int
    loss: float
    learning_rate: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class HeldOutMeasured(Event):
    """The loss on samples that a warm-up does not train on, after a step."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class CheckpointWritten(Event):
    """A checkpoint of a warm-up is on disk for good."""

    step: int
    path: str


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""
