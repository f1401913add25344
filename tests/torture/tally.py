"""What a torture counted, and the command line that every torture has."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FAILURES_SHOWN = 10


@dataclass
class Tally:
    """How many things were tried, what became of them, and what should not have happened."""

    name: str
    tried: int = 0
    became: Counter[str] = field(default_factory=Counter)
    """{what became of it: how often}."""
    figures: dict[str, float] = field(default_factory=dict)
    """What was measured on the way."""
    failures: list[str] = field(default_factory=list)

    def line(self) -> str:
        parts = [f"{count} {what}" for what, count in sorted(self.became.items())]
        parts += [f"{name} {value:g}" for name, value in self.figures.items()]
        return f"{self.name}: {self.tried} tried, {len(self.failures)} failed" + "".join(f", {part}" for part in parts)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "tried": self.tried,
            "became": dict(sorted(self.became.items())),
            "figures": self.figures,
            "failures": self.failures,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Tally:
        return cls(raw["name"], raw["tried"], Counter(raw["became"]), raw["figures"], raw["failures"])


Torture = Callable[[int, int, Path], Tally]
"""(seed, count, an empty folder) to what was counted."""


def work_folder() -> Path:
    """Return an empty folder, in memory where the system has such a place: thousands of stores are written."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="grace-store-torture-", dir=memory if memory.is_dir() else None))


def main(torture: Torture, count: int) -> None:
    """Run one torture as a command: print a line, write JSON if asked, exit 1 if anything failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--json", type=Path, help="Write the tally here.")
    words = parser.parse_args()
    folder = work_folder()
    began = time.monotonic()
    try:
        tally = torture(words.seed, words.count, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    sys.stdout.write(f"{tally.line()} ({seconds:.0f} s)\n")
    for failure in tally.failures[:FAILURES_SHOWN]:
        sys.stdout.write(f"  {failure}\n")
    if words.json:
        words.json.write_text(json.dumps(tally.to_json() | {"seconds": round(seconds, 1)}, indent=1))
    sys.exit(bool(tally.failures))
