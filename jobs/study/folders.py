"""Where everything of a study lies: results that are kept, and work that can be made again from the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folders:
    """One study's places."""

    out: Path

    @property
    def work(self) -> Path:
        return self.out / "work"

    @property
    def runs(self) -> Path:
        return self.out / "runs.jsonl"

    @property
    def settings(self) -> Path:
        return self.out / "settings.json"

    @property
    def pool(self) -> Path:
        return self.work / "data" / "pool.jsonl"

    @property
    def targets(self) -> Path:
        return self.work / "data" / "targets"

    @property
    def base(self) -> Path:
        return self.work / "base"

    @property
    def pool_store(self) -> Path:
        return self.work / "pool.zarr"

    @property
    def target_store(self) -> Path:
        return self.work / "targets.zarr"

    @property
    def scores(self) -> Path:
        return self.work / "scores"

    @property
    def costs(self) -> Path:
        return self.work / "costs.jsonl"

    def warmup(self, seed: int) -> Path:
        return self.work / f"warmup-{seed}"
