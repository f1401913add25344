"""What an engine is: a way to run units. Its options, the work it is given, and what its workers must know."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from grace_store.base.errors import SettingError
from grace_store.base.events import Listener
from grace_store.base.settings import Frozen, RunOptions
from grace_store.data.dataset import Dataset
from grace_store.run.engines import ENGINES
from grace_store.store.lock import Lease
from grace_store.store.opened import SignalView

if TYPE_CHECKING:
    from grace_store.read.parallel import Threads


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Which engine runs the units, and its options: each engine reads those that are for it. Changes no number."""

    name: str = "here"
    devices: tuple[str, ...] = ()
    """For processes: one process is started for each, "cpu" or a GPU's number."""
    address: str | None = None
    """For ray: "auto" or HOST:PORT; None: a cluster of this machine alone, for this run."""
    workers: int | None = None
    """For ray: the most workers to start; None: as many as the nodes have GPUs, or CPUs."""
    wait_seconds: float | None = None
    """For ray: how long to wait for a node when there is none; None: until stopped."""

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise SettingError(f"There is no engine {self.name!r}; choose one of {', '.join(ENGINES)}.")


class RunLock(Frozen):
    """The lock that a run holds: no two have the same content."""

    key: str
    content: str


class WorkerJob(Frozen):
    """What a worker must know to run units in a process of its own, on this machine or another."""

    store: str
    signal: str
    data: tuple[str, ...]
    door: str
    """Module with the functions of ModelDoor."""
    model: str
    adapter: str | None = None
    images: str | None = None
    options: RunOptions
    tmp_label: str
    trial_unit: int | None
    """Where the samples come from that show how fast the worker is; None: it is not tried."""
    parent: int
    lock: RunLock
    """That of the run. On another machine, another store may lie at the same location."""


@dataclass(frozen=True, slots=True)
class Work:
    """The units to run, with all that is open in this process already."""

    units: Sequence[int]
    job: WorkerJob
    view: SignalView
    dataset: Dataset
    engine: EngineOptions
    listener: Listener
    stop: threading.Event
    lease: Lease
    """The right to write the units; to be confirmed before any is done again."""


@runtime_checkable
class Engine(Protocol):
    """One way to run units."""

    def run(self, work: Work) -> None:
        """Run the units, or return early if asked to stop; raise WorkerDied at the end if some could not be done."""

    @contextmanager
    def tasks(self, options: EngineOptions, threads: int | None, listener: Listener) -> Iterator[Threads]:
        """Yield what works on the blocks of a store that is only read: threads of this process, unless overridden."""
        yield threads
