"""The points nearest to some queries, and the farthest, from vectors that come block by block. NumPy alone."""

import numpy as np

from grace_store.base.arrays import Float32Array, IntArray


class Nearest:
    """Keeps the points with the largest cosines to each query, or the smallest; of equal ones the lower."""

    def __init__(self, query: Float32Array, count: int, *, least: bool = False) -> None:
        """Compare with query, (q, m) of length 1, and keep count points for each."""
        self._query = query
        self._count = count
        self._sign = np.float32(-1 if least else 1)
        self._point = np.zeros((len(query), 0), dtype=np.int64)
        self._cosine = np.zeros((len(query), 0), dtype=np.float32)

    def add(self, point: IntArray, vector: Float32Array, leave_out: IntArray | None = None) -> None:
        """Take points, ascending over all calls, and their vectors; leave_out is one point for each query, or -1."""
        cosine = self._sign * (self._query @ vector.T)
        if leave_out is not None:
            cosine[leave_out[:, None] == point[None, :]] = -np.inf
        joined = np.concatenate([self._cosine, cosine], axis=1)
        points = np.concatenate([self._point, np.broadcast_to(point, cosine.shape)], axis=1)
        # Stable, and points ascend: the lower one comes first.
        best = np.argsort(-joined, axis=1, kind="stable")[:, : self._count]
        self._point = np.take_along_axis(points, best, axis=1)
        self._cosine = np.take_along_axis(joined, best, axis=1)

    def found(self) -> tuple[IntArray, Float32Array]:
        """Return the points and their cosines, both (q, at most count); -1 and NaN where there are fewer."""
        none = np.isneginf(self._cosine)
        cosine = np.where(none, np.nan, (self._sign * self._cosine).clip(-1, 1)).astype(np.float32)
        return np.where(none, -1, self._point), cosine
