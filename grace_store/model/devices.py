"""Everything that differs between a CPU and an accelerator, or between kinds of accelerators.

Written against torch's generic interface (torch.accelerator, torch.Event, a device's own module), so that CUDA, ROCm,
Intel XPU, Ascend NPU and MPS share one code path. A kind that is not named below is treated like CUDA.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from grace_store.base.errors import DeviceLost, GraceStoreError, ModelError, OutOfMemory, SettingError

ANY_ACCELERATOR = "accelerator"
"""The --device for any accelerator, but never the CPU."""
ONE_DEVICE = "GRACE_STORE_ONE_DEVICE"
"""Environment variable of a process that must see only one device."""

# Facts about kinds of devices that torch's generic interface does not give.
_VISIBLE = {"xpu": "ZE_AFFINITY_MASK", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
"""The environment variable for the devices that a process sees; by default NAME_VISIBLE_DEVICES."""
_COPY_AT_ONCE = ("cpu", "mps")
"""Kinds that do not copy pinned memory while the host continues."""
_WITHOUT_FLOAT64 = ("mps",)
_WITH_GROUPED_PRODUCTS = ("cuda",)
"""Kinds that have a grouped product for a mixture's experts, in half precision."""
CPU = torch.device("cpu")

_OUT_OF_MEMORY = (
    "can't allocate memory",  # torch on the CPU: its allocator has no exception class
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",  # CUDA and its libraries allocate outside torch's allocator too
    "CUDA error: out of memory",
    "MPS backend out of memory",
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    "NPU out of memory",
)
_LOST = (
    "CUDA error", "HIP error", "device-side assert", "CUDNN_STATUS", "NCCL", "UR_RESULT_ERROR", "NPU function error",
)  # fmt: skip

_PROBE_SIZE = 64
_MAX_WORDS = 200
"""Largest number of characters of an error in words."""


# ---------------------------------------------------------------- names and numbers of devices


def accelerator() -> str | None:
    """Return torch's name of the kind of accelerator on this machine; None if there is only a CPU."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    return None if found is None else found.type


def count() -> int:
    """Return how many accelerators this process may use."""
    return torch.accelerator.device_count() if accelerator() else 0


def kind_of(name: str) -> str:
    """Return torch's name of the kind of device that --device names; raise if there is none. Opens no device."""
    found = accelerator()
    if name == "cpu" or (name == "auto" and found is None):
        return "cpu"
    wanted, _, number = name.partition(":")
    if found is None or wanted not in ("auto", ANY_ACCELERATOR, found) or int(number or 0) >= count():
        seen = f"{count()} of the kind {found}, numbered from 0" if found else "no accelerator"
        raise SettingError(f"--device {name} cannot be used: torch {torch.__version__} sees {seen} on this machine.")
    return found


def resolve(name: str) -> torch.device:
    """Return the device that --device names: auto, cpu, or a kind of accelerator with or without a number."""
    if (kind := kind_of(name)) == "cpu":
        return CPU
    if os.environ.get(ONE_DEVICE) and count() > 1:
        raise SettingError(
            f"This worker should see one device because of {visible_variable()}, but it sees {count()}. Start one "
            f"process for each device with torchrun or --shard, and --device {kind}:0, {kind}:1, ..."
        )
    number = name.partition(":")[2]
    return torch.device(kind, int(number) if number else _current_index(kind))


def of_rank(name: str, local_rank: int) -> str:
    """Return the device of one process among several on a machine: by its rank, unless --device has a number."""
    kind = accelerator()
    # A process that sees only one device gives it the number 0.
    return f"{kind}:{local_rank % count()}" if kind and name in ("auto", ANY_ACCELERATOR, kind) else name


def assigned(name: str) -> str:
    """Return the device that a cluster assigned to this process; name is the cluster's name of the device."""
    if (kind := accelerator()) is None or count() <= 1:
        return ANY_ACCELERATOR
    # The process sees more than its own device. Either the cluster does not know this kind's variable and counts from
    # 0, or its configuration keeps it from setting the variable, and then its names come from the variable.
    names = visible_devices(os.environ) if kind == "cuda" else []
    return f"{kind}:{names.index(name) if name in names else int(name)}"


def visible_variable() -> str:
    """Return the environment variable with the accelerators that a process sees."""
    kind = accelerator() or "cuda"
    if kind == "cuda" and torch.version.hip and "HIP_VISIBLE_DEVICES" in os.environ:
        return "HIP_VISIBLE_DEVICES"
    return _VISIBLE.get(kind, f"{kind.upper()}_VISIBLE_DEVICES")


def visible_devices(environment: Mapping[str, str]) -> list[str]:
    """Return the accelerators that this process may use, as the variable for visible devices names them."""
    names = [name for name in environment.get(visible_variable(), "").split(",") if name]
    return names[: count()] if names else [str(number) for number in range(count())]


def environment_of(device: str) -> dict[str, str]:
    """Return the environment of a process that must see only one device: "cpu", or one of visible_devices."""
    return {} if device == "cpu" else {visible_variable(): device, ONE_DEVICE: "1"}


# ---------------------------------------------------------------- abilities of a device


def default_dtype(name: str) -> Literal["bfloat16", "float32"]:
    """Return the default number format of a model on a device: bfloat16 if the device supports it."""
    kind = kind_of(name)
    has_it = getattr(torch.get_device_module(kind), "is_bf16_supported", None) if kind != "cpu" else None
    return "bfloat16" if has_it is not None and has_it() else "float32"


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating-point format that a device can sum in."""
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64


def has_grouped_products(device: torch.device, dtype: str) -> bool:
    """Tell whether a mixture's experts are faster as one grouped product, without a loss of accuracy."""
    return device.type in _WITH_GROUPED_PRODUCTS and dtype != "float32"


def has_mixed_product(weight: Tensor) -> bool:
    """Tell whether the device multiplies matrices of this dtype into float32 results without float32 copies."""
    if weight.device.type == "cpu":
        return False
    tiny = torch.ones((16, 16), dtype=weight.dtype, device=weight.device)
    try:
        torch.mm(tiny, tiny, out_dtype=torch.float32)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


def collectives(device: torch.device) -> str:
    """Return the backend of torch.distributed for sums across devices of this kind."""
    return str(torch.distributed.get_default_backend_for_device(device.type))


@contextmanager
def same_every_time(device: torch.device) -> Iterator[None]:
    """Make a device sum in the same order every time, if it can; the CPU always does."""
    if device.type == "cpu":
        yield
        return
    was, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(was, warn_only=warned)


def prepare_same_every_time() -> None:
    """Set the variable that makes products of cuBLAS repeatable. Call this first: cuBLAS reads it when it starts."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


# ---------------------------------------------------------------- memory and copies


def make_current(device: torch.device) -> None:
    """Make a device the current device of this thread.

    torch pins memory for the current device, and kernels from outside torch run on it. A thread without this call would
    open a context on the first device. With eight processes, the first device would get eight contexts.
    """
    # torch.accelerator's own function has changed its name. MPS has one device and no such function.
    if (choose := getattr(torch.get_device_module(device), "set_device", None)) and device.type != "cpu":
        choose(device.index)


def pin(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor in pinned memory, if the device can copy such memory while the host continues."""
    return tensor if device.type in _COPY_AT_ONCE else tensor.pin_memory()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; do not wait for a copy from pinned memory."""
    return tensor.to(device, non_blocking=device.type not in _COPY_AT_ONCE)


def to_host(tensor: Tensor) -> Tensor:
    """Return a tensor in host memory. Its values are complete after the wait for a later mark of the device."""
    if tensor.device.type in _COPY_AT_ONCE:
        return tensor.cpu()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


class Mark:
    """A point in the work queue of a device that the host can wait for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event: Any = None
        if device.type not in _COPY_AT_ONCE:
            self._event = torch.Event(device)
            self._event.record(torch.accelerator.current_stream(device))

    def wait(self) -> None:
        """Return when the device has finished all work before the mark."""
        if self._event is not None:
            with watching(self._device):
                make_current(self._device)
                self._event.synchronize()


def release_memory(device: torch.device) -> None:
    """Return the memory of torch's cache to the device."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def memory(device: torch.device) -> tuple[int, int] | None:
    """Return the free and the total bytes of an accelerator's memory; None if they are unknown, or on a CPU."""
    ask = getattr(torch.get_device_module(device), "mem_get_info", None) if device.type != "cpu" else None
    if ask is None:
        return None
    with watching(device):
        free, total = ask(device)
    return int(free), int(total)


# ---------------------------------------------------------------- errors of devices


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means a lack of memory. Some such errors are plain RuntimeErrors with a known text."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY)


def is_lost(error: BaseException) -> bool:
    """Tell whether the device cannot be used in this process after an error. Then the sample is not the cause."""
    if is_out_of_memory(error):
        return False
    return isinstance(error, getattr(torch, "AcceleratorError", ())) or any(message in str(error) for message in _LOST)


@contextmanager
def watching(device: torch.device) -> Iterator[None]:
    """Turn the error of a lost device into DeviceLost; let any other error pass."""
    try:
        yield
    except GraceStoreError:
        raise
    except Exception as error:
        if not is_lost(error):
            raise
        raise DeviceLost(
            f"The device {device} is lost ({in_words(error)}). Committed work is kept: run the same command again. If "
            f"the device is lost again, exclude it with {visible_variable()}."
        ) from error


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Turn an error into a ModelError (or OutOfMemory) that begins with what; let the error of a lost device pass."""
    try:
        yield
    except GraceStoreError:
        raise
    except Exception as error:
        if is_lost(error):
            raise  # this error is not about the model
        if is_out_of_memory(error):
            raise OutOfMemory(f"{what}: there is not enough memory ({in_words(error)}).") from error
        raise ModelError(f"{what}: {in_words(error)}.") from error


def in_words(error: BaseException) -> str:
    """Return an error as one line: its kind and its message, without parts that differ from run to run."""
    lines = str(error).strip().split("\n")
    message = " ".join(line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1]).rstrip(".")
    message = re.sub(r"0x[0-9a-fA-F]+", "", message)  # addresses
    message = re.sub(rf"(?<=\b{accelerator()}):[0-9]+", "", message)  # the device's number
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= _MAX_WORDS else f"{text[: _MAX_WORDS - 1]}…"


def _current_index(kind: str) -> int:
    current = getattr(torch.get_device_module(kind), "current_device", None)
    return 0 if current is None else int(current())


# ---------------------------------------------------------------- a report on every device


def describe_devices() -> Iterator[dict[str, Any]]:
    """Yield torch's build, then for each device its memory and the result of its probe."""
    built = {name: value for name, value in vars(torch.version).items() if isinstance(value, str) and name[0] != "_"}
    kind = accelerator()
    yield {"torch": built, "kind": kind, "num_devices": count(), "visible_by": visible_variable()}
    for number in range(count()):
        yield {"begins": number}
        yield _described(torch.device(str(kind), number))


def _described(device: torch.device) -> dict[str, Any]:
    description: dict[str, Any] = {"device": device.index}
    try:
        get_name = getattr(torch.get_device_module(device), "get_device_name", None)
        description["name"] = "" if get_name is None else str(get_name(device))
        description["probe"] = _probe(device)
        free_and_total = memory(device)
    except Exception as error:  # noqa: BLE001 - any error is the result of the probe
        return {**description, "probe": in_words(error)}
    return description | dict(zip(("free_bytes", "total_bytes"), free_and_total or (), strict=False))


def _probe(device: torch.device) -> str:
    """Return "ok" if a matrix product is right in float32 and bfloat16, with the copies that an extraction makes."""
    make_current(device)
    for dtype in (torch.float32, torch.bfloat16):
        ones = to_device(pin(torch.ones((_PROBE_SIZE, _PROBE_SIZE), dtype=dtype), device), device)
        product = to_host(ones @ ones)
        Mark(device).wait()
        if not bool((product == _PROBE_SIZE).all()):
            return f"a matrix product in {dtype} is wrong"
    return "ok"


if __name__ == "__main__":
    for line in describe_devices():
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
