"""A store of traces of which some are copies, near or exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grace_store.store.opened import Store
from tests.vector_stores import at_cosine, vector_store

NUM = 90


def duplicated_samples() -> list[np.ndarray]:
    """Traces of one step; 60-69 are 0-9 at a cosine of 0.97, 70-79 are 10-19 at 0.91, 80-84 equal 20, 85 is zero."""
    rng = np.random.default_rng(0)
    step = rng.normal(size=(NUM, 48))
    step /= np.linalg.norm(step, axis=1, keepdims=True)
    step[60:70], step[70:80] = at_cosine(step[:10], 0.97, rng), at_cosine(step[10:20], 0.91, rng)
    step[80:85], step[85] = step[20], 0
    return [np.stack([each, rng.normal(size=48)]).astype(np.float32) for each in step]


def duplicated_store(folder: Path) -> Store:
    """Write them as a store."""
    tokens = [10 - place % 7 for place in range(NUM)]
    return vector_store(folder / "s.zarr", duplicated_samples(), samples_per_unit=16, num_tokens=tokens)
