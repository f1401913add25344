"""Whether an error says that memory ran out, be it the device's or the machine's."""

from __future__ import annotations

import torch

_MESSAGES = (
    "can't allocate memory",  # torch on the CPU, whose allocator has no exception of its own
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",  # what CUDA and its libraries allocate beside torch's allocator
    "CUDA error: out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is for lack of memory; some are plain RuntimeErrors and known by their text alone."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)
