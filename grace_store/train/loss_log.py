"""The losses of a warm-up as a file of JSON lines: one for each step, and one for each held-out loss."""

import json
import os
from pathlib import Path
from typing import Any

LOSSES = "loss.jsonl"
"""The name of the file in the warm-up's folder."""


class LossLog:
    """A log that appends lines. A resumed log drops the lines after the saved step."""

    def __init__(self, path: Path, *, kept_steps: int | None) -> None:
        """Open a log; kept_steps is the saved step, None starts an empty log."""
        self._path = path
        kept = -1 if kept_steps is None else kept_steps
        self.entries = [entry for entry in read_entries(path) if entry["step"] <= kept]
        part = path.with_name(f"{path.name}.part")
        part.write_text("".join(map(_line, self.entries)))
        part.replace(path)

    def add(self, **entry: Any) -> None:
        """Append one line and flush it to the disk."""
        self.entries.append(entry)
        with self._path.open("a") as stream:
            stream.write(_line(entry))
            stream.flush()
            os.fsync(stream.fileno())

    def mean_loss(self, first: int, last: int) -> float:
        """Return the mean loss over all tokens of the steps first to last, both included."""
        steps = [entry for entry in self.entries if "loss" in entry and first <= entry["step"] <= last]
        tokens = sum(entry["num_tokens"] for entry in steps)
        return float(sum(entry["loss"] * entry["num_tokens"] for entry in steps) / tokens)


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return all entries up to the first invalid line: a killed process may have left half a line at the end."""
    if not path.is_file():
        return []
    entries = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            break
        is_entry = isinstance(entry, dict) and "step" in entry
        if not is_entry or not all(isinstance(each, int | float) for each in entry.values()):
            break
        entries.append(entry)
    return entries


def read_losses(out: Path) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Return (step, loss) for every step of the warm-up in a folder, and (step, held-out loss)."""
    entries = read_entries(out / LOSSES)
    trained = [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry]
    return trained, [(entry["step"], entry["heldout_loss"]) for entry in entries if "heldout_loss" in entry]


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, allow_nan=False) + "\n"
