"""The device `pretend` as torch sees it, `torch.pretend`, and what tests ask of it: limits, faults and counters.

Settings come from the environment, so that a command in a process of its own can be given them:

    PRETEND_DEVICES=8               how many devices the machine has (2)
    PRETEND_VISIBLE_DEVICES=3,5     which of them this process sees; it calls them 0 and 1 (all)
    PRETEND_MEMORY=1000000          bytes of every device; or 3=1000000,5=2000000 (8 GiB)
    PRETEND_FAULTS=3=fail@100,5=hang@7   the 100th launch on device 3 fails, the 7th on device 5 never ends
    PRETEND_COUNTERS=FOLDER         where each process leaves its counters when it ends, as PID.json

Devices in these variables are the machine's, not those a process counts from 0.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from . import _machine, collectives, module

FAULTS = {"fail": _machine.Fault.FAIL, "hang": _machine.Fault.HANG}


def autoload() -> None:
    """Make the device known to torch; called by torch as it is imported."""
    _machine.start(len(visible_devices()), find_place)
    torch.utils.rename_privateuse1_backend("pretend")
    torch._register_device_module("pretend", module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    collectives.register()
    _read_environment()


def visible_devices() -> list[int]:
    """Return the machine's number of each device that this process sees."""
    count = int(os.environ.get("PRETEND_DEVICES", "2"))
    visible = os.environ.get("PRETEND_VISIBLE_DEVICES")
    numbers = list(range(count)) if visible is None else [int(word) for word in visible.split(",") if word.strip()]
    return [number for number in numbers if 0 <= number < count]


def _read_environment() -> None:
    for device, size in _by_device("PRETEND_MEMORY"):
        set_memory(int(size), device)
    for device, fault in _by_device("PRETEND_FAULTS"):
        kind, _, launch = fault.partition("@")
        plan_fault(kind, int(launch), device)
    if folder := os.environ.get("PRETEND_COUNTERS"):
        atexit.register(_leave_counters, Path(folder))


def _by_device(variable: str) -> list[tuple[int, str]]:
    """Return a variable's settings with this process' own number of each device."""
    visible = visible_devices()
    settings = []
    for word in filter(None, os.environ.get(variable, "").split(",")):
        number, _, setting = word.rpartition("=")
        numbers = [int(number)] if number else visible
        settings += [(visible.index(number), setting) for number in numbers if number in visible]
    return settings


def _leave_counters(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    devices = {number: counters(index) for index, number in enumerate(visible_devices())}
    about = {"pid": os.getpid(), "command": sys.argv, "devices": devices}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(about, indent=1))


# ---------------------------------------------------------------- what tests ask of it


def set_memory(size: int, device: int = 0) -> None:
    """Let a device have so many bytes; what it has beyond them stays."""
    _machine.set_memory_limit(device, size)


def plan_fault(kind: str, launch: int, device: int = 0) -> None:
    """Let the n-th launch from now (1 is the next) fail, after which the device is lost, or hang until killed."""
    _machine.plan_fault(device, FAULTS[kind], launch)


def counters(device: int = 0) -> dict[str, Any]:
    """Return what happened on a device since the last reset: counts by group and name, and peak memory."""
    groups: dict[str, Any] = _machine.counters(device)
    stats = torch.accelerator.memory_stats(device)
    memory = {"allocations": stats["allocation.all.allocated"], "peak_bytes": stats["allocated_bytes.all.peak"]}
    names = ("launches", "waits", "copies", "copied bytes", "contexts", "calls", "run at once")
    return {**{name: groups.get(name, {}) for name in names}, "memory": memory}


def reset_counters(device: int = 0) -> None:
    """Begin to count anew; a context that was made stays made."""
    _machine.reset_counters(device)
    torch.accelerator.reset_peak_memory_stats(device)
    torch.accelerator.reset_accumulated_memory_stats(device)


def find_place() -> str:
    """Return the innermost line of Python that is not torch's own, as file:line."""
    frame: FrameType | None = sys._getframe().f_back
    while frame is not None and f"{os.sep}torch{os.sep}" in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return "a thread of torch"
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-3:])}:{frame.f_lineno}"
