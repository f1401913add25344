"""Random directions around a few centres."""

from __future__ import annotations

import numpy as np


def directions(seed: int, num: int, size: int = 8, num_centres: int = 6, noise: float = 0.15) -> np.ndarray:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(num_centres, size))[rng.integers(0, num_centres, num)]
    vectors = vectors + noise * rng.normal(size=(num, size))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
