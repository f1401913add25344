"""The fixed rotation that makes four bits enough for a coordinate. Plain numpy; FORMAT.md section 6 in code."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import Float32Array, Int32Array

_ROTATION_SEED = b"grace-store rotation of size %d"


@dataclass(frozen=True, slots=True)
class Rotation:
    """A fixed orthogonal map that makes any vector's coordinates look normal, so that 4 bits suffice.

    Twice: flip signs, then a Walsh-Hadamard transform of each power-of-two block; in between, a permutation.
    """

    sign: npt.NDArray[np.int8]
    order: Int32Array

    @classmethod
    @lru_cache(maxsize=8)
    def for_size(cls, size: int) -> Rotation:
        """Return the rotation of that size: from SHAKE-256, which no release of a library will ever change."""
        stream = hashlib.shake_256(_ROTATION_SEED % size).digest(10 * size)
        bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8, count=2 * size))[: 2 * size]
        keys = np.frombuffer(stream, dtype="<u8", offset=2 * size)
        sign = (1 - 2 * bits.astype(np.int8)).reshape(2, size)
        return cls(sign, np.argsort(keys, kind="stable").astype(np.int32))

    def forward(self, vectors: Float32Array) -> Float32Array:
        turned = hadamard_blocks(vectors * self.sign[0].astype(np.float32))
        return hadamard_blocks(turned[:, self.order] * self.sign[1].astype(np.float32))

    def backward(self, turned: Float32Array) -> Float32Array:
        # Sign flips and normalised Hadamard transforms are their own inverses.
        middle = hadamard_blocks(turned) * self.sign[1].astype(np.float32)
        vectors = np.empty_like(middle)
        vectors[:, self.order] = middle
        return np.asarray(hadamard_blocks(vectors) * self.sign[0].astype(np.float32), dtype=np.float32)


def hadamard_blocks(vectors: Float32Array) -> Float32Array:
    """Return the vectors with each power-of-two block of coordinates, largest first, Hadamard-transformed."""
    out = np.array(vectors, dtype=np.float32, order="C")
    start, size = 0, out.shape[1]
    for bit in reversed(range(size.bit_length())):
        if size & (1 << bit):
            _hadamard_inplace(out[:, start : start + (1 << bit)])
            start += 1 << bit
    return out


def _hadamard_inplace(block: Float32Array) -> None:
    num_rows, size = block.shape
    work = np.ascontiguousarray(block)
    half = 1
    while half < size:
        pairs = work.reshape(num_rows, size // (2 * half), 2, half)
        left, right = pairs[:, :, 0], pairs[:, :, 1]
        work = np.stack([left + right, left - right], axis=2).reshape(num_rows, size)
        half *= 2
    block[:] = work / np.float32(np.sqrt(size))
