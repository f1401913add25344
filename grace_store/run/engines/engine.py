"""The job of an extraction, the protocol of an engine, and the choice of the processes that run the units."""

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
    from grace_store.pool.walk import Threads  # imports pyarrow, which `status` does without


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine that runs the units, with its options. Each engine reads its own options. They change no number."""

    name: str = "here"
    devices: tuple[str, ...] = ()
    """For processes: "cpu" or a GPU's number, for each process to start."""
    address: str | None = None
    """For ray: "auto" or HOST:PORT; None for a cluster of this machine alone, started for this run."""
    workers: int | None = None
    """For ray: the largest number of workers; None for as many as the nodes have GPUs, or CPUs."""
    wait_seconds: float | None = None
    """For ray: how long to wait for a node when there is none; None for no limit."""

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise SettingError(f"unknown value {self.name!r} of --engine: use one of {', '.join(ENGINES)}.")


@dataclass(frozen=True, slots=True)
class ExtractJob:
    """All arguments of an extraction."""

    store: str
    """Path or URL of the store; may be empty for `doctor`."""
    model: str | None = None
    data: tuple[str, ...] = ()
    signal: str = "base"
    adapter: str | None = None
    """Folder of an adapter, which is merged into the model; with --kind gradient, gradients are of its parameters."""
    images: str | None = None
    """Folder that relative image paths start from."""
    data_request: DataSpec = field(default_factory=DataSpec)
    request: ExtractSpec = field(default_factory=ExtractSpec)
    options: RunOptions = field(default_factory=RunOptions)
    samples_per_unit: int | None = None
    shard: Shard = (0, 1)
    engine: EngineOptions = field(default_factory=EngineOptions)
    """Engine that runs the units; by default, this process."""
    break_lock: bool = False
    door: str = PROXY
    """Module with the functions of ModelDoor."""
    probe_unit: int | None = None
    """For a worker: the unit whose first samples are timed; None for no timing."""
    lock: tuple[str, str] = ("", "")
    """For a worker: key and content of the run's lock, by which the worker recognises the store. On another machine,
    another store may lie at the same path."""

    @classmethod
    def from_json(cls, text: str) -> ExtractJob:
        """Parse the job that was sent to a worker."""
        return _JOBS.validate_json(text)

    def to_json(self) -> str:
        """Return the job for a worker, without the settings, which the worker reads from the store."""
        return _JOBS.dump_json(self, exclude={"data_request", "request"}).decode()

    @property
    def num_workers(self) -> int:
        """Number of devices that share the work, if known before the run begins; else 1."""
        return max(len(self.engine.devices), self.shard[1], 1)


_JOBS = TypeAdapter(ExtractJob)


@dataclass(frozen=True, slots=True)
class Work:
    """The units to run, with the open store, dataset and lock."""

    units: Sequence[int]
    job: ExtractJob
    """The job with absolute paths, the run's lock and a unit to time."""
    view: SignalView
    dataset: Dataset
    listener: Listener
    stop: threading.Event
    lease: Lease
    """The right to write the units; confirm it before a unit is run again."""


@runtime_checkable
class Engine(Protocol):
    """One way to run units."""

    def run(self, work: Work) -> None:
        """Run the units, or return early if asked to stop; raise WorkerDied at the end if units could not be done."""

    @contextmanager
    def tasks(self, options: EngineOptions, threads: int | None, listener: Listener) -> Iterator[Threads]:
        """Yield the workers for a job that only reads a store; by default, threads of this process."""
        yield threads


RANK_VARIABLES = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"))
"""Variables of torchrun and of srun. Slurm sets SLURM_NTASKS for the batch script, too, which is no rank."""


def choose_engine(
    options: RunOptions,
    workers: int | None,
    shard: Shard | None,
    environment: Mapping[str, str] = os.environ,
    elsewhere: EngineOptions | None = None,
) -> tuple[RunOptions, Shard, EngineOptions]:
    """Return the options, shard and engine of an ExtractJob for this environment.

    A rank of torchrun or srun runs its shard in this process, on its own device. Otherwise each of several
    accelerators gets a worker process, and a single or named device is used by this process. A given shard decides
    which units run, not where. A given engine elsewhere runs the units in any case.
    """
    ranks = Ranks() if shard is not None else current_ranks(environment)
    is_rank = ranks.world_size > 1
    if elsewhere is not None:
        if is_rank:
            raise SettingError(
                f"--engine {elsewhere.name} cannot run under torchrun or srun, because one process hands out all "
                "units. Start the command once, without torchrun or srun."
            )
        return options, shard or (0, 1), elsewhere
    if is_rank:
        if workers is not None:
            raise SettingError(
                "--workers cannot be used under torchrun or srun: each rank is one worker. Leave --workers out."
            )
        from grace_store.model import devices

        device = devices.of_rank(options.device, ranks.local_rank)
        return options.model_copy(update={"device": device}), (ranks.rank, ranks.world_size), EngineOptions()
    names = _devices(options, workers, environment)
    engine = EngineOptions("processes", devices=names) if names else EngineOptions("here")
    return options, shard or (0, 1), engine


def _devices(options: RunOptions, workers: int | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices that get a worker process each; none if this process runs the units."""
    from grace_store.model import devices

    devices.kind_of(options.device)  # raises if there is no such device
    if options.device not in ("auto", devices.ANY_ACCELERATOR, devices.accelerator()):
        if workers is not None and workers > 1 and options.device != "cpu":
            raise SettingError(
                f"--workers {workers} cannot be used with --device {options.device}: one device runs one worker. Leave "
                "--workers out."
            )
        return ("cpu",) * (workers or 0) if options.device == "cpu" else ()
    visible = devices.visible_devices(environment)
    if workers is None:
        return tuple(visible) if len(visible) > 1 else ()
    if visible and workers > len(visible):
        seen = f"the number of visible accelerators is {len(visible)}"
        raise SettingError(f"--workers is {workers}, but {seen}. Give at most one worker for each device.")
    return tuple(visible[:workers]) if visible else ("cpu",) * workers


def current_ranks(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Return the rank of this process, as set by torchrun or srun; without them, it is the only rank."""
    for rank, size, local in RANK_VARIABLES:
        if rank in environment and int(environment.get(size, "1")) > 1:
            local_rank = int(environment.get(local, "0"))
            return Ranks(rank=int(environment[rank]), world_size=int(environment[size]), local_rank=local_rank)
    return Ranks()
