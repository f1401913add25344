"""`torch.pretend`: what torch, transformers and accelerate expect of a device's module, as `torch.cuda` has it."""

from __future__ import annotations

import torch
from torch import Event, Stream, Tensor
from torch.accelerator import current_device_index as current_device
from torch.accelerator import (
    current_stream,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
    set_stream,
    synchronize,
)
from torch.accelerator import get_memory_info as mem_get_info
from torch.accelerator import set_device_index as set_device

from . import _machine

__all__ = [
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_rng_state",
    "get_rng_state_all",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


class device(torch.accelerator.device_index):  # noqa: N801, as in torch.cuda
    """Make a device the current one of this thread while inside."""

    def __init__(self, device: torch.device | str | int | None) -> None:
        super().__init__(None if device is None else _index(device))


def stream(stream: Stream) -> Stream:
    """Return what makes a stream the current one while inside."""
    return stream


def device_count() -> int:
    return _machine.num_devices()


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    return any(_machine.has_context(index) for index in range(device_count()))


def _is_in_bad_fork() -> bool:
    return _machine.in_bad_fork()


def get_device_name(device: torch.device | str | int | None = None) -> str:
    return f"Pretend accelerator {_index(device)}"


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


# ---------------------------------------------------------------- random numbers


def manual_seed(seed: int) -> None:
    _generator(current_device()).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _generator(index).manual_seed(seed)


def get_rng_state(device: torch.device | str | int = "pretend") -> Tensor:
    return _generator(_index(device)).get_state()


def set_rng_state(new_state: Tensor, device: torch.device | str | int = "pretend") -> None:
    _generator(_index(device)).set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _generator(index: int) -> torch.Generator:
    return _machine.default_generator(index)


def _index(device: torch.device | str | int | None) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return current_device() if index is None else index
