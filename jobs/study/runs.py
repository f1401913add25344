"""The study's raw results: a line a training, appended whole, never mixed with those of other settings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from grace_store.base.errors import Corrupt, ResumeMismatch
from grace_store.base.settings import Frozen, short

RunKey = tuple[str, str, int]
"""Method, ratio, seed."""

WHOLE = "1"
"""The ratio of the full pool; of the base model, which is trained on none of it, it is 0."""
NONE = "0"


class Run(Frozen):
    """One model that was trained and asked, or the base model."""

    settings_sha256: str
    method: str
    ratio: str
    seed: int
    subset_sha256: str
    """Of the ids it was trained on."""
    num_traces: int
    num_updates: int
    num_traces_seen: int
    num_tokens_learnt: int
    last_loss: float | None
    heldout_loss: float
    """Mean over the tokens of clean solutions of the held-out problems."""
    right: dict[str, str] = Field(min_length=1)
    """By kind, for each held-out problem 1 if it was answered rightly, else 0."""
    seconds: float
    """For people: the only field that another run of the study need not give again."""

    @property
    def key(self) -> RunKey:
        return self.method, self.ratio, self.seed


def subset_digest(ids: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()


def append_line(path: Path, document: dict[str, Any]) -> None:
    """Add one line of JSON and wait until it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        stream.write((json.dumps(document, sort_keys=True) + "\n").encode())
        stream.flush()
        os.fsync(stream.fileno())


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file. A last one that was cut off is dropped, and the file mended."""
    if not path.is_file():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as stream:
            stream.truncate(len(whole))
    return whole.splitlines()


def read_runs(path: Path, settings_sha256: str) -> dict[RunKey, Run]:
    """Return the runs of a file by their keys."""
    runs: dict[RunKey, Run] = {}
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            run = Run.model_validate_json(line)
        except ValidationError as error:
            raise Corrupt(f"{path}, line {number} is no result of this study: {error}") from error
        if run.settings_sha256 != settings_sha256:
            raise ResumeMismatch(
                f"{path} has results of other settings ({short(run.settings_sha256)}, now {short(settings_sha256)}). "
                "Results are never mixed: choose another --out, or move the old ones away."
            )
        runs[run.key] = run
    return runs


def append_run(path: Path, run: Run) -> None:
    append_line(path, run.model_dump(mode="json"))
