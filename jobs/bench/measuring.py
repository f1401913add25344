"""Take the time and memory of calls: CPU, wall, peak; several calls in turns; and calls in processes of their own.

Nothing here is asserted anywhere: numbers belong to the machine they were measured on.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""What Linux takes as the wish to count the largest resident size anew (proc(5))."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call took."""

    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    """The largest resident size while it ran, all of the process counted."""
    grown_bytes: int
    """What of it came on top of what the process held before."""


def take(call: Callable[[], object]) -> Cost:
    """Run a call and return what it took."""
    gc.collect()
    before = _start_peak()
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak = _peak_bytes()
    return Cost(cpu, wall, peak, max(0, peak - before))


def in_turns(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Cost]:
    """Return the least that each call took when all are run in turns, so that a busy machine is busy for all.

    Best of CPU and wall time are taken apart from each other; memory is the most of any turn.
    """
    taken: dict[str, list[Cost]] = {name: [] for name in calls}
    for turn in range(repeats):
        # Each begins as often as the other, should whoever comes first find a colder cache.
        order = list(calls) if turn % 2 == 0 else list(calls)[::-1]
        for name in order:
            taken[name].append(take(calls[name]))
    return {name: best(costs) for name, costs in taken.items()}


def best(costs: Sequence[Cost]) -> Cost:
    return Cost(
        min(cost.cpu_seconds for cost in costs),
        min(cost.wall_seconds for cost in costs),
        max(cost.peak_bytes for cost in costs),
        max(cost.grown_bytes for cost in costs),
    )


def apart(function: Callable[..., Any], **arguments: Any) -> Any:
    """Return what a module's function returns for JSON arguments, run in a process of its own."""
    return named_apart(function.__module__, function.__name__, arguments)


def named_apart(module: str, function: str, arguments: Mapping[str, Any], python: str = sys.executable) -> Any:
    """Do the same for a function that need not be imported here; raises RuntimeError with what the process said."""
    command = [python, "-m", "jobs.bench.measuring", module, function, json.dumps(arguments)]
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    if done.returncode:
        raise RuntimeError(f"{module}.{function} failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measured_apart(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return what a function's call takes in a process of its own, and under "result" what it returned."""
    # A script's own functions are found again under its module's name.
    module = f"jobs.bench.{Path(inspect.getfile(function)).stem}" if function.__module__ == "__main__" else None
    named = {"module": module or function.__module__, "function": function.__name__, "arguments": arguments}
    taken: dict[str, Any] = named_apart(run_measured.__module__, run_measured.__name__, named)
    return taken


def run_measured(module: str, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a function by its name and return what it took and what it returned."""
    called = getattr(importlib.import_module(module), function)
    results: list[Any] = []
    cost = take(lambda: results.append(called(**arguments)))
    return {**asdict(cost), "result": results[0]}


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of the least-squares line through log cost over log size.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


def _start_peak() -> int:
    """Count the peak anew where the system lets us, and return the resident size."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
        return _status_bytes("VmRSS")
    except OSError:
        return _peak_bytes()


def _peak_bytes() -> int:
    try:
        return _status_bytes("VmHWM")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_bytes(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} does not say {name}")


def main() -> None:
    """Run what apart asked for; the result is the last line printed."""
    module, function, arguments = sys.argv[1:]
    # By its module's name, not as __main__, so that functions are found where they are said to be.
    result = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
