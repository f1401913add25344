"""The losses of a warm-up as a file of JSON lines: one for each step, one for each look at the held-out samples."""

import json
import os
from pathlib import Path
from typing import Any

LOSSES = "loss.jsonl"
"""The file's name, in the folder of the warm-up."""


class LossLog:
    """Appends lines; on resuming, lines past the step that was saved are cut off."""

    def __init__(self, path: Path, *, kept_steps: int | None) -> None:
        """Take kept_steps, the step whose state was saved; None starts an empty log."""
        self._path = path
        kept = -1 if kept_steps is None else kept_steps
        self.entries = [entry for entry in read_entries(path) if entry["step"] <= kept]
        part = path.with_name(f"{path.name}.part")
        part.write_text("".join(map(_line, self.entries)))
        part.replace(path)

    def add(self, **entry: Any) -> None:
        """Append one line and see it to the disk."""
        self.entries.append(entry)
        with self._path.open("a") as stream:
            stream.write(_line(entry))
            stream.flush()
            os.fsync(stream.fileno())

    def mean_loss(self, first: int, last: int) -> float:
        """Return the mean loss of steps first..last, both included, each token counting once."""
        steps = [entry for entry in self.entries if "loss" in entry and first <= entry["step"] <= last]
        tokens = sum(entry["num_tokens"] for entry in steps)
        return float(sum(entry["loss"] * entry["num_tokens"] for entry in steps) / tokens)


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return every line up to the first that is none of ours; a kill may have left half a line at the end."""
    if not path.is_file():
        return []
    entries = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(entry, dict) or not _has_numbers(entry):
            break
        entries.append(entry)
    return entries


def _has_numbers(entry: dict[str, Any]) -> bool:
    return "step" in entry and all(isinstance(each, int | float) for each in entry.values())


def read_losses(out: Path) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Return the (step, loss) of every step of the warm-up in a folder, and those on held-out samples."""
    entries = read_entries(out / LOSSES)
    trained = [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry]
    return trained, [(entry["step"], entry["heldout_loss"]) for entry in entries if "heldout_loss" in entry]


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, allow_nan=False) + "\n"
