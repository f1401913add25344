"""Processes that have the device: a command's, by its environment, and one that runs tests' functions.

The process of pytest itself never loads the device: torch would take it for the machine's accelerator in all tests.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.pretend.build import build

REPOSITORY = Path(__file__).parent.parent.parent
SETTINGS = {
    "devices": "DEVICES",
    "visible": "VISIBLE_DEVICES",
    "memory": "MEMORY",
    "faults": "FAULTS",
    "counters": "COUNTERS",
}


def environment(**settings: object) -> dict[str, str]:
    """Return the environment of a process that has the device, with settings such as devices=8 for PRETEND_DEVICES."""
    chosen = {f"PRETEND_{name.upper()}": str(value) for name, value in settings.items()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRETEND_")}
    return {**kept, **chosen, "PYTHONPATH": os.pathsep.join([str(build()), str(REPOSITORY)])}


def run_python(
    words: Sequence[object], *, timeout: float = 120, **settings: object
) -> subprocess.CompletedProcess[str]:
    """Run Python with the device, as `python WORDS...`, and return what came of it."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=environment(**settings), capture_output=True, text=True, timeout=timeout)


def on_device(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a process with eight devices, which all such tests share; what it raises is raised here."""

    @functools.wraps(test)
    def run_there(*arguments: object, **fixtures: object) -> None:
        _process().submit(_run_test, test.__module__, test.__name__, arguments, fixtures).result()

    return run_there


@functools.cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), _join, (environment(devices=8),))


def _join(variables: dict[str, str]) -> None:
    """Become a process of that environment; torch, which is not imported yet, then loads the device."""
    os.environ.update(variables)
    sys.path[:0] = variables["PYTHONPATH"].split(os.pathsep)
    importlib.import_module("torch")


def _run_test(module: str, name: str, arguments: Sequence[object], fixtures: dict[str, Any]) -> None:
    test = getattr(importlib.import_module(module), name).__wrapped__
    import pretend_accelerator  # type: ignore[import-not-found]

    for device in range(8):
        pretend_accelerator.reset_counters(device)
    test(*arguments, **fixtures)
