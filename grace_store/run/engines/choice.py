"""Which processes do the work: this one, one for each device, this one as a rank of many, or those of a cluster."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from grace_store.base.errors import SettingError
from grace_store.base.settings import RunOptions
from grace_store.model.lora.recipe import Ranks
from grace_store.run.engines.engine import EngineOptions
from grace_store.store.lock import Shard

RANK_VARIABLES = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"))
"""Slurm sets SLURM_NTASKS for the batch script too, which is no rank; only what srun starts has the step's number."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """How a run is spread: what of an ExtractJob depends on where it runs."""

    options: RunOptions
    shard: Shard = (0, 1)
    engine: EngineOptions = field(default_factory=EngineOptions)


def choose_engine(
    options: RunOptions,
    workers: int | None,
    shard: Shard | None,
    environment: Mapping[str, str] = os.environ,
    elsewhere: EngineOptions | None = None,
) -> EngineChoice:
    """Return the engine for what was asked and what the environment offers.

    A rank of torchrun or srun does its shard here, on its own device. Otherwise several accelerators mean one worker
    each, and one device, or a named one, this process. A shard that is given says which units are meant, not where
    they run; an engine elsewhere that is named does the work whatever there is here.
    """
    rank = None if shard is not None else rank_in(environment)
    if elsewhere is not None:
        if rank is not None:
            why = "one process hands out all units, start it once"
            raise SettingError(f"--engine {elsewhere.name} under torchrun or srun: {why}.")
        return EngineChoice(options, shard or (0, 1), elsewhere)
    if rank is not None:
        if workers is not None:
            raise SettingError("--workers has no meaning for a rank of torchrun or srun: each rank is one worker.")
        from grace_store.model import devices

        i, n, local = rank
        return EngineChoice(options.model_copy(update={"device": devices.of_rank(options.device, local)}), (i, n))
    names = _devices(options, workers, environment)
    engine = EngineOptions("processes", devices=names) if names else EngineOptions("here")
    return EngineChoice(options, shard or (0, 1), engine)


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
