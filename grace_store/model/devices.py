"""The one door to devices: all that differs between a CPU and an accelerator, or between kinds of accelerators.

Written against torch's generic interface (torch.accelerator, torch.Event, a device's own module), so that CUDA, ROCm,
Intel XPU, Ascend NPU and MPS are one code path. A kind that is not in the table below is taken to be like CUDA.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from grace_store.base.errors import DeviceLost, GraceStoreError, ModelError, OutOfMemory, SettingError

ANY_ACCELERATOR = "accelerator"
"""The --device that is whatever accelerator there is, and never the CPU."""
ONE_DEVICE = "GRACE_STORE_ONE_DEVICE"
"""Set for a process that is to see one device only."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What torch's generic interface does not say of a kind of accelerator."""

    visible: str = ""
    """The environment variable that says which devices a process sees; by default NAME_VISIBLE_DEVICES."""
    copies_behind: bool = True
    """Whether pinned memory is copied while the host goes on."""
    has_float64: bool = True
    has_grouped_products: bool = False
    """Whether the grouped product of a mixture's experts was made for it, in half precision."""


_KINDS = {
    "cuda": _Kind(has_grouped_products=True),
    "xpu": _Kind(visible="ZE_AFFINITY_MASK"),
    "npu": _Kind(visible="ASCEND_RT_VISIBLE_DEVICES"),
    "mps": _Kind(copies_behind=False, has_float64=False),
}
_CPU = _Kind(copies_behind=False)
CPU = torch.device("cpu")

_OUT_OF_MEMORY = (
    "can't allocate memory",  # torch on the CPU, whose allocator has no exception of its own
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",  # what CUDA and its libraries allocate beside torch's allocator
    "CUDA error: out of memory",
    "MPS backend out of memory",
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    "NPU out of memory",
)
_LOST = (
    "CUDA error",
    "HIP error",
    "device-side assert",
    "CUDNN_STATUS",
    "NCCL",
    "UR_RESULT_ERROR",
    "NPU function error",
)


_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PROBE_SIZE = 64
_LONGEST = 200
"""Characters of a failure in words."""


# ---------------------------------------------------------------- which there are


def accelerator() -> str | None:
    """Return the kind of accelerator that torch sees here, as torch names it; None if there is only a CPU."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    return None if found is None else found.type


def count() -> int:
    """Return how many accelerators this process may use."""
    return torch.accelerator.device_count() if accelerator() else 0


def kind_of(name: str) -> str:
    """Return the kind of device that --device names, as torch names it; raise unless there is one. Opens no device."""
    found = accelerator()
    if name == "cpu" or (name == "auto" and found is None):
        return "cpu"
    wanted, _, number = name.partition(":")
    if found is None or wanted not in ("auto", ANY_ACCELERATOR, found) or int(number or 0) >= count():
        seen = f"{count()} of the kind {found}, numbered from 0" if found else "no accelerator"
        raise SettingError(f"--device {name} was asked for, but torch {torch.__version__} sees {seen} here.")
    return found


def resolve(name: str) -> torch.device:
    """Return the device that --device names: auto, cpu, or a kind of accelerator with or without a number."""
    kind = kind_of(name)
    if kind == "cpu":
        return CPU
    if os.environ.get(ONE_DEVICE) and count() > 1:
        raise SettingError(
            f"This worker was to see one device by {visible_variable()}, and sees {count()}. Start one process for "
            f"each device with torchrun or --shard, and --device {kind}:0, {kind}:1, ..."
        )
    number = name.partition(":")[2]
    return torch.device(kind, int(number) if number else _current_index(kind))


def of_rank(name: str, local_rank: int) -> str:
    """Return the device of one process among several on a machine: the one of its number, unless one is named."""
    kind = accelerator()
    # A task that is shown one device only calls it the first.
    return f"{kind}:{local_rank % count()}" if kind and name in ("auto", ANY_ACCELERATOR, kind) else name


def assigned(name: str) -> str:
    """Return the device that a cluster assigned to this process by a name of its own."""
    kind = accelerator()
    if kind is None or count() <= 1:
        return ANY_ACCELERATOR
    # A process that sees more than its own: the cluster does not know the variable of this kind, and counts from 0;
    # or it was told to leave the variable alone, from which it then has its names.
    names = visible_devices(os.environ) if kind == "cuda" else []
    return f"{kind}:{names.index(name) if name in names else int(name)}"


def visible_variable() -> str:
    """Return the environment variable that says which accelerators a process sees."""
    kind = accelerator() or "cuda"
    if kind == "cuda" and torch.version.hip and "HIP_VISIBLE_DEVICES" in os.environ:
        return "HIP_VISIBLE_DEVICES"
    return _kind(kind).visible or f"{kind.upper()}_VISIBLE_DEVICES"


def visible_devices(environment: Mapping[str, str]) -> list[str]:
    """Return the accelerators that this process may use, as the variable for visible devices names them."""
    names = [name for name in environment.get(visible_variable(), "").split(",") if name]
    return names[: count()] if names else [str(number) for number in range(count())]


def environment_of(device: str) -> dict[str, str]:
    """Return the environment of a process that is to see one device: "cpu", or one of visible_devices."""
    return {} if device == "cpu" else {visible_variable(): device, ONE_DEVICE: "1"}


# ---------------------------------------------------------------- what they can


def default_dtype(name: str) -> Literal["bfloat16", "float32"]:
    """Return the number format to run a model in unless told: bfloat16 where --device names what has it."""
    kind = kind_of(name)
    has_it = getattr(torch.get_device_module(kind), "is_bf16_supported", None) if kind != "cpu" else None
    return "bfloat16" if has_it is not None and has_it() else "float32"


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the widest number format that a device adds up in."""
    return torch.float64 if _kind(device.type).has_float64 else torch.float32


def has_grouped_products(device: torch.device, dtype: str) -> bool:
    """Return whether a mixture's experts are faster as one grouped product, and as right."""
    return _kind(device.type).has_grouped_products and dtype != "float32"


def has_mixed_product(weight: Tensor) -> bool:
    """Tell whether the device multiplies matrices of this dtype into float32 without a float32 copy."""
    if weight.device.type == "cpu":
        return False
    tiny = torch.ones((16, 16), dtype=weight.dtype, device=weight.device)
    try:
        torch.mm(tiny, tiny, out_dtype=torch.float32)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


def collectives(device: torch.device) -> str:
    """Return the backend of torch.distributed that adds up between devices of this kind."""
    return str(torch.distributed.get_default_backend_for_device(device.type))


@contextmanager
def same_every_time(device: torch.device) -> Iterator[None]:
    """Have a device add up in the same order every time, where it knows how; the CPU does anyway."""
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
    """Say before anything runs that products must not differ from run to run: cuBLAS reads this when it starts."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


# ---------------------------------------------------------------- memory, copies, waiting


def make_current(device: torch.device) -> None:
    """Make a device the current one of this thread.

    Memory is pinned, and kernels that are not torch's own run, on the current device. A thread that does not say which
    would open a context on the first one, eight processes there together.
    """
    # Not torch.accelerator's own function, whose name has changed; MPS has one device and no such function.
    if (choose := getattr(torch.get_device_module(device), "set_device", None)) and device.type != "cpu":
        choose(device.index)


def pin(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of main memory as the device can copy it while the host goes on."""
    return tensor.pin_memory() if _kind(device.type).copies_behind else tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; from pinned memory, without waiting for the copy."""
    return tensor.to(device, non_blocking=_kind(device.type).copies_behind)


def to_host(tensor: Tensor) -> Tensor:
    """Return a tensor in main memory, or on its way there: it is there once a later mark of its device has come."""
    if not _kind(tensor.device.type).copies_behind:
        return tensor.cpu()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


class Mark:
    """A place in the work of a device that a host can wait for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event: Any = None
        if _kind(device.type).copies_behind:
            self._event = torch.Event(device)
            self._event.record(torch.accelerator.current_stream(device))

    def wait(self) -> None:
        """Return when the device has done all that it was told before the mark."""
        if self._event is not None:
            with watching(self._device):
                make_current(self._device)
                self._event.synchronize()


def release_memory(device: torch.device) -> None:
    """Give memory that torch keeps for later back to the device."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def memory(device: torch.device) -> tuple[int, int] | None:
    """Return the bytes free and the bytes in all of an accelerator; None where it does not say, and of a CPU."""
    ask = getattr(torch.get_device_module(device), "mem_get_info", None) if device.type != "cpu" else None
    if ask is None:
        return None
    with watching(device):
        free, total = ask(device)
    return int(free), int(total)


# ---------------------------------------------------------------- what their failures say


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is for lack of memory; some are plain RuntimeErrors and known by their text alone."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY)


def is_lost(error: BaseException) -> bool:
    """Tell whether nothing can run in this process after an error, so that it says nothing about a sample."""
    if is_out_of_memory(error):
        return False
    kinds = getattr(torch, "AcceleratorError", ())
    return isinstance(error, kinds) or any(message in str(error) for message in _LOST)


@contextmanager
def watching(device: torch.device) -> Iterator[None]:
    """Turn what a device says when it is lost into DeviceLost; any other error passes."""
    try:
        yield
    except GraceStoreError:
        raise
    except Exception as error:
        if not is_lost(error):
            raise
        raise DeviceLost(
            f"The device {device} is lost ({in_words(error)}). What is committed is kept: run the same command again, "
            f"and leave the device out ({visible_variable()}) if it is lost once more."
        ) from error


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Turn any error inside but that of a lost device into a ModelError (or OutOfMemory) that begins with what."""
    try:
        yield
    except GraceStoreError:
        raise
    except Exception as error:
        if is_lost(error):
            raise  # which says nothing about the model
        if is_out_of_memory(error):
            raise OutOfMemory(f"{what}: it does not fit into memory ({in_words(error)}).") from error
        raise ModelError(f"{what}: {in_words(error)}.") from error


def in_words(error: BaseException) -> str:
    """Return an error in one line that is the same every time: its kind and its message, without addresses."""
    lines = str(error).strip().split("\n")
    message = " ".join(line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1]).rstrip(".")
    message = _without_number(_ADDRESS.sub("", message))
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _without_number(text: str) -> str:
    """Return a text without the number of the device it speaks of, which differs from run to run."""
    return re.sub(rf"(?<=\b{accelerator()}):[0-9]+", "", text)


def _current_index(kind: str) -> int:
    current = getattr(torch.get_device_module(kind), "current_device", None)
    return 0 if current is None else int(current())


def _kind(name: str) -> _Kind:
    return _CPU if name == "cpu" else _KINDS.get(name, _Kind())


# ---------------------------------------------------------------- a report on every device


def describe_devices() -> Iterator[dict[str, Any]]:
    """Yield what torch is built for, then each device with its memory and how a probe of it went."""
    built = {name: value for name, value in vars(torch.version).items() if isinstance(value, str) and name[0] != "_"}
    kind = accelerator()
    yield {"torch": built, "kind": kind, "num_devices": count(), "visible_by": visible_variable()}
    for number in range(count()):
        yield {"begins": number}
        yield _described(torch.device(str(kind), number))


def _described(device: torch.device) -> dict[str, Any]:
    told: dict[str, Any] = {"device": device.index}
    try:
        told["name"] = _device_name(device)
        told["probe"] = _probe(device)
        free_and_total = memory(device)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is to be told
        return {**told, "probe": in_words(error)}
    return told | dict(zip(("free_bytes", "total_bytes"), free_and_total or (), strict=False))


def _device_name(device: torch.device) -> str:
    ask = getattr(torch.get_device_module(device), "get_device_name", None)
    return "" if ask is None else str(ask(device))


def _probe(device: torch.device) -> str:
    """Return "ok" if a product comes back right, in the two formats that models run in, as a unit's results do."""
    make_current(device)
    for dtype in (torch.float32, torch.bfloat16):
        ones = to_device(pin(torch.ones((_PROBE_SIZE, _PROBE_SIZE), dtype=dtype), device), device)
        product = to_host(ones @ ones)
        Mark(device).wait()
        if not bool((product == _PROBE_SIZE).all()):
            return f"a product of {dtype} came back wrong"
    return "ok"


if __name__ == "__main__":
    for line in describe_devices():
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
