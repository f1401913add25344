"""Connect the processes of a training and sum tensors over them. A single process needs none of this."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from grace_store.base.errors import SettingError, WorkerDied
from grace_store.base.training_settings import Ranks
from grace_store.model import devices

_WAIT = timedelta(hours=2)
"""How long ranks wait for each other: a rank may be planning or reading a large model."""


@contextmanager
def as_one_of(ranks: Ranks, device: torch.device) -> Iterator[None]:
    """Join the process group as one rank, and leave it at the end."""
    if ranks.world_size == 1:
        yield
        return
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise SettingError(
            f"This is rank {ranks.rank} of {ranks.world_size}, but {' and '.join(missing)} are not set, so the ranks "
            "cannot find each other. Start with torchrun, or set these variables as jobs/launch/slurm.sbatch does."
        )
    devices.make_current(device)
    dist.init_process_group(devices.collectives(device), rank=ranks.rank, world_size=ranks.world_size, timeout=_WAIT)
    try:
        yield
    finally:
        dist.destroy_process_group()


def add_up(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all ranks."""
    if dist.is_available() and dist.is_initialized():
        _reduce(tensor, dist.ReduceOp.SUM)


def lowest_and_highest(value: int, device: torch.device) -> tuple[int, int]:
    """Return the lowest and the highest value over all ranks. Every rank must call this."""
    if not (dist.is_available() and dist.is_initialized()):
        return value, value
    extremes = torch.tensor([-value, value], device=device)
    _reduce(extremes, dist.ReduceOp.MAX)
    negative, highest = extremes.tolist()
    return -int(negative), int(highest)


def _reduce(tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> None:
    """Reduce a tensor over all ranks; raise WorkerDied if a rank has ended."""
    try:
        dist.all_reduce(tensor, operation)
    except RuntimeError as error:
        # The end of another rank appears as this error, unless this rank's own device is lost.
        if devices.is_lost(error) and not isinstance(error, dist.DistError):
            raise
        raise WorkerDied(
            f"Another rank has ended, or cannot be reached ({devices.in_words(error)}). The output of that rank says "
            "why. The steps saved so far are kept: run the same command again."
        ) from error
