"""Greedy orders the slow way, which looks at every sample every time."""

from __future__ import annotations

import numpy as np


def naive_facility(similarity: np.ndarray, utility: np.ndarray, weight: float) -> tuple[list[int], list[float]]:
    """Look at every sample's gain every time."""
    covered, left, order, gains = np.zeros(len(similarity)), list(range(len(similarity))), [], []
    while left:
        found = [(1 - weight) * utility[j] + weight * np.maximum(similarity[j] - covered, 0).sum() for j in left]
        best = int(np.argmax(found))
        gains.append(found[best])
        order.append(left.pop(best))
        covered = np.maximum(covered, similarity[order[-1]])
    return order, gains


def naive_mmr(similarity: np.ndarray, utility: np.ndarray, weight: float) -> tuple[list[int], list[float]]:
    left, order, gains = list(range(len(similarity))), [], []
    while left:
        found = [(1 - weight) * utility[j] - weight * max((similarity[i, j] for i in order), default=0.0) for j in left]
        best = int(np.argmax(found))
        gains.append(found[best])
        order.append(left.pop(best))
    return order, gains


NAIVE = {"facility": naive_facility, "mmr": naive_mmr}
