"""The four stored forms of a vector, and back. Plain numpy; what readers without this code do is in FORMAT.md."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import Float32Array, FloatArray, Int32Array, IntArray
from grace_store.base.settings import Storage

CODEBOOK: Float32Array = np.array(
    [-2.7326, -2.0690, -1.6181, -1.2562, -0.9424, -0.6568, -0.3881, -0.1284,
     0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326],
    dtype=np.float32,
)  # fmt: skip
"""The 16 levels with the least mean squared error for a standard normal (Lloyd-Max)."""

_ROTATION_SEED = b"grace-store rotation of size %d"


@dataclass(frozen=True, slots=True)
class Rotation:
    """A fixed orthogonal map that makes any vector's coordinates look normal, so that 4 bits suffice.

    Twice: flip signs, then a Walsh-Hadamard transform of each power-of-two block; in between, a permutation.
    """

    sign: npt.NDArray[np.int8]
    order: Int32Array

    @classmethod
    def for_size(cls, size: int) -> Rotation:
        """Return the rotation of that size: from SHAKE-256, which no release of a library will ever change."""
        stream = hashlib.shake_256(_ROTATION_SEED % size).digest(10 * size)
        bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8, count=2 * size))[: 2 * size]
        keys = np.frombuffer(stream, dtype="<u8", offset=2 * size)
        return cls(
            (1 - 2 * bits.astype(np.int8)).reshape(2, size), np.argsort(keys, kind="stable").astype(np.int32)
        )  # fmt: skip

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


def encode(vectors: Float32Array, storage: Storage) -> tuple[npt.NDArray[np.generic], Float32Array | None]:
    """Return the stored form, shape (rows, columns), and the scale of each row (None for float32)."""
    if storage == "float32":
        return vectors, None
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    if storage == "float16":
        # A power of two: no precision is lost, and small gradients do not fall out of the range of float16.
        scale = np.exp2(np.frexp(largest)[1].clip(-126, 127)).astype(np.float32) * (largest > 0)
        return _divided(vectors, scale).astype(np.float16), scale
    if storage == "int8":
        scale = (largest / np.float32(127)).astype(np.float32)
        return np.rint(_divided(vectors, scale)).clip(-127, 127).astype(np.int8), scale
    return _encode_int4(vectors)


def _encode_int4(vectors: Float32Array) -> tuple[npt.NDArray[np.generic], Float32Array]:
    size = vectors.shape[1]
    # Normalise first: the sums of squares of tiny gradients underflow in float32.
    largest = np.abs(vectors).max(axis=1, initial=0.0).astype(np.float32)
    turned = Rotation.for_size(size).forward(_divided(vectors, largest))
    spread = np.sqrt(np.mean(turned.astype(np.float64) ** 2, axis=1)).astype(np.float32)
    codes = np.searchsorted((CODEBOOK[1:] + CODEBOOK[:-1]) / 2, _divided(turned, spread)).astype(np.uint8)
    levels = CODEBOOK[codes]
    fit = (turned * levels).sum(axis=1) / (levels * levels).sum(axis=1)
    if size % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    return codes[:, 0::2] | (codes[:, 1::2] << 4), (fit * largest).astype(np.float32)


def decode(
    stored: npt.NDArray[np.generic], scale: Float32Array | None, storage: Storage, rotation: Rotation | None = None,
    codebook: Float32Array = CODEBOOK,
) -> Float32Array:  # fmt: skip
    """Return float32 vectors from their stored form; int4 needs the store's rotation."""
    if scale is None:
        return stored.astype(np.float32)
    if storage != "int4":
        return np.asarray(stored.astype(np.float32) * scale[:, None], dtype=np.float32)
    if rotation is None:
        raise ValueError("int4 vectors need the rotation that is stored with them")
    packed = stored.astype(np.uint8)
    codes = np.empty((packed.shape[0], packed.shape[1] * 2), dtype=np.uint8)
    codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4
    size = rotation.order.shape[0]
    return np.asarray(rotation.backward(codebook[codes[:, :size]]) * scale[:, None], dtype=np.float32)


def stored_form(vectors: Float32Array, storage: Storage) -> Float32Array:
    """Return what is left of vectors when they are stored and read again."""
    kept, scale = encode(vectors, storage)
    return decode(kept, scale, storage, Rotation.for_size(vectors.shape[1]) if storage == "int4" else None)


def _divided(vectors: Float32Array, scale: Float32Array) -> Float32Array:
    """Return each row divided by its scale; zeros where that is zero."""
    # Not times 1/scale: the inverse of the tiniest float32 is no float32.
    return np.asarray(vectors / np.where(scale > 0, scale, np.float32(np.inf))[:, None], dtype=np.float32)


def packed_grams(vectors: Float32Array, num_segments: IntArray) -> Float32Array:
    """Return the concatenated packed Grams of samples whose rows follow each other.

    Products are summed in float64 and only then rounded, so a Gram does not depend on how sums are split.
    """
    out: list[FloatArray] = []
    start = 0
    for m in num_segments.tolist():
        rows = vectors[start : start + m].astype(np.float64)
        out.append((rows @ rows.T)[np.tril_indices(m)])
        start += m
    with np.errstate(over="ignore"):  # vectors longer than 1e19 have an infinite Gram, which scoring reports
        return np.concatenate(out).astype(np.float32) if out else np.zeros(0, np.float32)
