"""Whole commands on a finished store of a million samples: status, and extract with nothing left to do."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from jobs.bench.findings import Findings, Goal, Ratio
from jobs.bench.stores import million

GOAL = Goal("<=", 1.5)
"""Seconds: about one."""


def measure(*, quick: bool, threads: int, work: str) -> dict[str, Any]:
    """Measure each command, Python's start-up included, best of several."""
    location, num_samples = million(Path(work), quick=quick)
    commands = {"status": ["status", location], "extract, all done": ["extract", location]}
    ratios = []
    for name, arguments in commands.items():
        taken = [_run(arguments) for _ in range(1 if quick else 5)]
        best = {key: min(each[key] for each in taken) for key in taken[0]}
        note = f"{num_samples:,} samples; {best['wall_seconds']:.2f} s by the clock"
        ratios.append(Ratio(f"{name}, whole command", "CPU seconds", best["cpu_seconds"], GOAL, {name: best}, note))
    return Findings(ratios).to_json()


def _run(arguments: list[str]) -> dict[str, float]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", "from grace_store.cli import main; main()", *arguments]
    subprocess.run(command, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_seconds": cpu, "wall_seconds": wall}
