"""What a failure says: that memory ran out, that the device is lost, or something about what was computed."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from grace_store.base.errors import GraceStoreError, ModelError, OutOfMemory

_OUT_OF_MEMORY = (
    "can't allocate memory",  # torch on the CPU, whose allocator has no exception of its own
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",  # what CUDA and its libraries allocate beside torch's allocator
    "CUDA error: out of memory",
)
_DEVICE_LOST = ("CUDA error", "device-side assert", "CUDNN_STATUS", "NCCL")
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|(?<=cuda):[0-9]+")
_LONGEST = 200


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is for lack of memory; some are plain RuntimeErrors and known by their text alone."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY)


def is_device_lost(error: BaseException) -> bool:
    """Tell whether nothing can run in this process after an error, so that it says nothing about a sample."""
    return not is_out_of_memory(error) and any(message in str(error) for message in _DEVICE_LOST)


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Turn any error inside into a ModelError (or OutOfMemory) whose message begins with what."""
    try:
        yield
    except GraceStoreError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"{what}: it does not fit into memory ({in_words(error)}).") from error
        raise ModelError(f"{what}: {in_words(error)}.") from error


def in_words(error: BaseException) -> str:
    """Return an error in one line that is the same every time: its kind and its message, without addresses."""
    lines = str(error).strip().split("\n")
    message = " ".join(line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1]).rstrip(".")
    text = f"{type(error).__name__}: {_CHANGING.sub('', message)}" if message else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
