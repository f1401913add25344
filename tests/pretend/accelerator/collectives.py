"""Collectives between ranks on the device, as nccl is to CUDA: through main memory, by gloo."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

NAME = "pretend_ccl"


class HostGroup(dist.ProcessGroup):
    """A group whose tensors lie on the device and are carried over to a group of gloo and back."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802, as torch calls it
        return NAME

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> dist.Work:
        return self._carried("allreduce", tensors, opts or dist.AllreduceOptions())

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> dist.Work:
        return self._carried("broadcast", tensors, opts or dist.BroadcastOptions())

    def allgather(self, gathered: Sequence[list[Tensor]], tensors: Sequence[Tensor], opts: Any = None) -> dist.Work:
        host = [[tensor.cpu() for tensor in row] for row in gathered]
        work = self._gloo.allgather(host, [tensor.cpu() for tensor in tensors])
        work.wait()
        for row, host_row in zip(gathered, host, strict=True):
            _put_back(row, host_row)
        return work

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._gloo.barrier()

    def _carried(self, name: str, tensors: Sequence[Tensor], options: Any) -> dist.Work:
        host = [tensor.cpu() for tensor in tensors]
        work = getattr(self._gloo, name)(host, options)
        work.wait()
        _put_back(tensors, host)
        return work


def register() -> None:
    """Make the backend known to torch, for tensors of the device."""
    dist.Backend.register_backend(NAME, HostGroup, devices=["pretend"])


def _put_back(tensors: Sequence[Tensor], host: Sequence[Tensor]) -> None:
    for tensor, values in zip(tensors, host, strict=True):
        tensor.copy_(values)
