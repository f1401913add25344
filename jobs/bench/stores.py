"""The synthetic stores that several measurements share: made once in a working folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from jobs.bench.synthetic_store import make_store

NUM_STEPS = 9


def kept_store(work: Path, num_samples: int, num_steps: int = NUM_STEPS) -> str:
    """Return the place of a finished store of that size, made if it is not there."""
    place = work / f"synthetic-{num_samples}-{num_steps}.zarr"
    finished = place.with_suffix(".made")
    if not finished.exists():
        shutil.rmtree(place, ignore_errors=True)  # what an interrupted run left
        make_store(place, num_samples, min_steps=num_steps, max_steps=num_steps)
        finished.touch()
    return str(place)


def million(work: Path, *, quick: bool) -> tuple[str, int]:
    """Return the place and size of the large store: a million samples, or few for a quick look."""
    num_samples = 3_200 if quick else 1_000_000
    return kept_store(work, num_samples), num_samples
