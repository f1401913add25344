"""The job of an extraction, and what runs it: an engine, its options, its work, and what its workers must know."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pydantic import TypeAdapter

from grace_store.base.errors import SettingError
from grace_store.base.events import Listener
from grace_store.base.settings import DataSpec, ExtractSpec, RunOptions
from grace_store.base.training_settings import Ranks
from grace_store.data.dataset import Dataset
from grace_store.run.engines import ENGINES
from grace_store.run.extractor_protocol import PROXY
from grace_store.store.lock import Lease, Shard
from grace_store.store.opened import SignalView

if TYPE_CHECKING:
    from grace_store.pool.walk import Threads


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


@dataclass(frozen=True, slots=True)
class ExtractJob:
    """Everything `grace-store extract` was asked for."""

    store: str
    """Empty for `doctor`, which can do without."""
    model: str | None = None
    data: tuple[str, ...] = ()
    signal: str = "base"
    adapter: str | None = None
    """Merged into the model before anything else; of --kind gradient, what the gradients are taken of."""
    images: str | None = None
    """The folder that relative image paths start from."""
    data_request: DataSpec = field(default_factory=DataSpec)
    request: ExtractSpec = field(default_factory=ExtractSpec)
    options: RunOptions = field(default_factory=RunOptions)
    samples_per_unit: int | None = None
    shard: Shard = (0, 1)
    engine: EngineOptions = field(default_factory=EngineOptions)
    """Where the units run; in this process unless said."""
    break_lock: bool = False
    door: str = PROXY
    """Module with the functions of ModelDoor."""
    probe_unit: int | None = None
    """For a worker: the unit whose first samples show how fast the worker is; None: no probe."""
    lock: tuple[str, str] = ("", "")
    """For a worker: key and content of the run's lock, which no other run has. On another machine, another store may
    lie at the same location."""

    @classmethod
    def from_json(cls, text: str) -> ExtractJob:
        """Return the job that a worker was sent."""
        return _JOBS.validate_json(text)

    def to_json(self) -> str:
        """Return the job for a worker, which reads the settings from the store."""
        return _JOBS.dump_json(self, exclude={"data_request", "request"}).decode()

    @property
    def num_workers(self) -> int:
        """How many devices share the work, as far as that is known before it begins."""
        return max(len(self.engine.devices), self.shard[1], 1)


_JOBS = TypeAdapter(ExtractJob)


@dataclass(frozen=True, slots=True)
class Work:
    """The units to run, with all that is open in this process already."""

    units: Sequence[int]
    job: ExtractJob
    """The job with absolute paths, the run's lock and a unit to probe."""
    view: SignalView
    dataset: Dataset
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


# ---------------------------------------------------------------- which processes do the work
# Which processes do the work: this one, one for each device, this one as a rank of many, or those of a cluster.


RANK_VARIABLES = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"))
"""Slurm sets SLURM_NTASKS for the batch script too, which is no rank; only what srun starts has the step's number."""


def choose_engine(
    options: RunOptions,
    workers: int | None,
    shard: Shard | None,
    environment: Mapping[str, str] = os.environ,
    elsewhere: EngineOptions | None = None,
) -> tuple[RunOptions, Shard, EngineOptions]:
    """Return what of an ExtractJob depends on where it runs, for what was asked and what the environment offers.

    A rank of torchrun or srun does its shard here, on its own device. Otherwise several accelerators mean one worker
    each, and one device, or a named one, this process. A shard that is given says which units are meant, not where
    they run; an engine elsewhere that is named does the work whatever there is here.
    """
    rank = None if shard is not None else rank_in(environment)
    if elsewhere is not None:
        if rank is not None:
            why = "one process hands out all units, start it once"
            raise SettingError(f"--engine {elsewhere.name} under torchrun or srun: {why}.")
        return options, shard or (0, 1), elsewhere
    if rank is not None:
        if workers is not None:
            raise SettingError("--workers has no meaning for a rank of torchrun or srun: each rank is one worker.")
        from grace_store.model import devices

        i, n, local = rank
        return options.model_copy(update={"device": devices.of_rank(options.device, local)}), (i, n), EngineOptions()
    names = _devices(options, workers, environment)
    engine = EngineOptions("processes", devices=names) if names else EngineOptions("here")
    return options, shard or (0, 1), engine


def _devices(options: RunOptions, workers: int | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices that get a worker process each; none if this process is to do the work."""
    from grace_store.model import devices

    devices.kind_of(options.device)  # raises for one that is not there
    if options.device not in ("auto", devices.ANY_ACCELERATOR, devices.accelerator()):
        if workers is not None and workers > 1 and options.device != "cpu":
            raise SettingError(f"--workers {workers} with --device {options.device}: one device takes one worker.")
        return ("cpu",) * (workers or 0) if options.device == "cpu" else ()
    visible = devices.visible_devices(environment)
    if workers is None:
        return tuple(visible) if len(visible) > 1 else ()
    if visible and workers > len(visible):
        seen = f"the number of visible accelerators is {len(visible)}"
        raise SettingError(f"--workers {workers}, but {seen}; give at most one worker a device.")
    return tuple(visible[:workers]) if visible else ("cpu",) * workers


def rank_in(environment: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Return (rank, number of ranks, rank on this machine) as torchrun or srun set them, or None."""
    for rank, size, local in RANK_VARIABLES:
        if rank in environment and int(environment.get(size, "1")) > 1:
            return int(environment[rank]), int(environment[size]), int(environment.get(local, "0"))
    return None


def current_ranks(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Return which rank of a warm-up this process is; alone, the only one."""
    rank, size, local = rank_in(environment) or (0, 1, 0)
    return Ranks(rank=rank, world_size=size, local_rank=local)
