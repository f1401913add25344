"""The synthetic stores that several measurements share: made once in a working folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from grace_store.store.opened import Store
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


def kept_labels(location: str, num_labels: int) -> str:
    """Return the place of a file of labels, drawn at random, for the first samples of a store."""
    place = Path(location).with_suffix(f".{num_labels}-labels.csv")
    num_labels = min(num_labels, Store.open(location).plan.num_samples)
    rng = np.random.default_rng(0)
    rows = (
        f"synthetic-{row},{'good' if is_right else 'bad'}" for row, is_right in enumerate(rng.random(num_labels) < 0.5)
    )
    place.write_text("\n".join(["id,verdict", *rows]) + "\n", encoding="utf-8")
    return str(place)


def million(work: Path, *, quick: bool) -> tuple[str, int]:
    """Return the place and size of the large store: a million samples, or few for a quick look."""
    num_samples = 3_200 if quick else 1_000_000
    return kept_store(work, num_samples), num_samples
