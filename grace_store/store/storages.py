"""The storages of vectors, one class each, in plain numpy. Implements section 6 of FORMAT.md.

A new storage is a class here, its entry in STORAGES and its name in ``base.settings.Storage``.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import Array, Float32Array, FloatArray, Int32Array, IntArray
from grace_store.base.settings import ExtractSpec, Storage

_ROTATION_SEED = b"grace-store rotation of size %d"


@dataclass(frozen=True, slots=True)
class Rotation:
    """A fixed orthogonal map that makes coordinates approximately normal, so that 4 bits suffice.

    It has two rounds: flip signs, then apply a Walsh-Hadamard transform to each power-of-two block. A permutation comes
    between the rounds.
    """

    sign: npt.NDArray[np.int8]
    order: Int32Array

    @classmethod
    @lru_cache(maxsize=8)
    def for_size(cls, size: int) -> Rotation:
        """Return the rotation of a size, from SHAKE-256, which is the same in every release of every library."""
        stream = hashlib.shake_256(_ROTATION_SEED % size).digest(10 * size)
        bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8, count=2 * size))[: 2 * size]
        order = np.argsort(np.frombuffer(stream, dtype="<u8", offset=2 * size), kind="stable").astype(np.int32)
        return cls((1 - 2 * bits.astype(np.int8)).reshape(2, size), order)

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
            length = 1 << bit
            block = np.ascontiguousarray(out[:, start : start + length])
            for half in (1 << power for power in range(bit)):
                pairs = block.reshape(len(out), length // (2 * half), 2, half)
                left, right = pairs[:, :, 0], pairs[:, :, 1]
                block = np.stack([left + right, left - right], axis=2).reshape(len(out), length)
            out[:, start : start + length] = block / np.float32(np.sqrt(length))
            start += length
    return out


CODEBOOK: Float32Array = np.array(
    [-2.7326, -2.0690, -1.6181, -1.2562, -0.9424, -0.6568, -0.3881, -0.1284,
     0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326],
    dtype=np.float32,
)  # fmt: skip
"""The 16 levels with the least mean squared error for a standard normal (Lloyd-Max)."""

Constant = tuple[tuple[str, ...], Array, str]
"""The dimensions, the values and the description of an array that decodes vectors; it depends only on their size."""


@dataclass(frozen=True, slots=True)
class VectorStorage(ABC):
    """The storage of vectors of one size, as rows of numbers; most storages have a scale for each row."""

    size: int
    """Length of a vector."""

    dtype: ClassVar[str]
    """Data type of the numbers in a row."""
    has_scale: ClassVar[bool] = True
    is_exact: ClassVar[bool] = False
    """Whether decoded vectors equal the original ones."""

    @property
    def num_columns(self) -> int:
        return self.size

    def constants(self) -> Mapping[str, Constant]:
        """Return the arrays that are stored once for all vectors, by name."""
        return {}

    @abstractmethod
    def encode(self, vectors: Float32Array) -> tuple[Array, Float32Array | None]:
        """Return the rows, shape (n, num_columns), and the scale of each row, or None if the storage has no scale."""

    def decode(self, rows: Array, scale: Float32Array | None, given: Mapping[str, Array] | None = None) -> Float32Array:
        """Return float32 vectors from their rows; given are the arrays stored with the rows."""
        if scale is None:
            return rows.astype(np.float32)
        return np.asarray(rows.astype(np.float32) * scale[:, None], dtype=np.float32)


class Float32(VectorStorage):
    """Vectors without change."""

    dtype = "float32"
    has_scale = False
    is_exact = True

    def encode(self, vectors: Float32Array) -> tuple[Array, None]:
        return vectors, None


class Float16(VectorStorage):
    """Half precision, scaled by a power of two."""

    dtype = "float16"

    def encode(self, vectors: Float32Array) -> tuple[Array, Float32Array]:
        largest = _largest(vectors)
        # A power of two loses no precision, and keeps small gradients in the range of float16.
        scale = np.exp2(np.frexp(largest)[1].clip(-126, 127)).astype(np.float32) * (largest > 0)
        return _divided(vectors, scale).astype(np.float16), scale


class Int8(VectorStorage):
    """Integers up to 127, multiplied by the scale."""

    dtype = "int8"

    def encode(self, vectors: Float32Array) -> tuple[Array, Float32Array]:
        scale = (_largest(vectors) / np.float32(127)).astype(np.float32)
        return np.rint(_divided(vectors, scale)).clip(-127, 127).astype(np.int8), scale


class Int4(VectorStorage):
    """Codes of 4 bits, two in a byte, for the coordinates of the rotated vector."""

    dtype = "uint8"

    @property
    def num_columns(self) -> int:
        return -(-self.size // 2)

    def constants(self) -> Mapping[str, Constant]:
        rotation = Rotation.for_size(self.size)
        about_sign = "signs before each round of the rotation"
        return {
            "rotation_sign": (("rotation_round", "coordinate"), rotation.sign, about_sign),
            "rotation_order": (("coordinate",), rotation.order, "permutation between the rounds"),
            "vector_codebook": (("code",), CODEBOOK, "value of each 4-bit code"),
        }

    def encode(self, vectors: Float32Array) -> tuple[Array, Float32Array]:
        # Normalise first: the sums of squares of tiny gradients underflow in float32.
        largest = _largest(vectors).astype(np.float32)
        turned = Rotation.for_size(self.size).forward(_divided(vectors, largest))
        spread = np.sqrt(np.mean(turned.astype(np.float64) ** 2, axis=1)).astype(np.float32)
        codes = np.searchsorted((CODEBOOK[1:] + CODEBOOK[:-1]) / 2, _divided(turned, spread)).astype(np.uint8)
        levels = CODEBOOK[codes]
        fit = (turned * levels).sum(axis=1) / (levels * levels).sum(axis=1)
        if self.size % 2:
            codes = np.pad(codes, ((0, 0), (0, 1)))
        return codes[:, 0::2] | (codes[:, 1::2] << 4), (fit * largest).astype(np.float32)

    def decode(self, rows: Array, scale: Float32Array | None, given: Mapping[str, Array] | None = None) -> Float32Array:
        assert scale is not None
        kept = given or {name: values for name, (_, values, _) in self.constants().items()}
        packed = rows.astype(np.uint8)
        codes = np.empty((len(packed), self.num_columns * 2), dtype=np.uint8)
        codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4
        turned = kept["vector_codebook"][codes[:, : self.size]]
        rotation = Rotation(kept["rotation_sign"], kept["rotation_order"])
        return np.asarray(rotation.backward(turned) * scale[:, None], dtype=np.float32)


STORAGES: dict[Storage, type[VectorStorage]] = {"float32": Float32, "float16": Float16, "int8": Int8, "int4": Int4}
"""The most precise first."""


def storage_of(spec: ExtractSpec) -> VectorStorage:
    return STORAGES[spec.storage](spec.vector_size)


def stored_form(vectors: Float32Array, storage: Storage) -> Float32Array:
    """Return vectors after encoding and decoding."""
    chosen = STORAGES[storage](vectors.shape[1])
    return chosen.decode(*chosen.encode(vectors))


def _largest(vectors: Float32Array) -> Float32Array:
    return np.asarray(np.abs(vectors).max(axis=1, initial=0.0))


def _divided(vectors: Float32Array, scale: Float32Array) -> Float32Array:
    """Return each row divided by its scale; zeros if the scale is zero."""
    # Not multiplied by 1/scale: the inverse of the smallest float32 overflows.
    return np.asarray(vectors / np.where(scale > 0, scale, np.float32(np.inf))[:, None], dtype=np.float32)


def num_packed(num_segments: IntArray) -> IntArray:
    """Return the number of entries of each sample's packed Gram, from its number of segments."""
    return num_segments * (num_segments + 1) // 2


def packed_grams(vectors: Float32Array, num_segments: IntArray) -> Float32Array:
    """Return the packed Grams of consecutive samples, computed in float64 and rounded at the end."""
    out: list[FloatArray] = []
    start = 0
    for m in num_segments.tolist():
        rows = vectors[start : start + m].astype(np.float64)
        out.append((rows @ rows.T)[np.tril_indices(m)])
        start += m
    with np.errstate(over="ignore"):  # vectors longer than 1e19 have an infinite Gram, which scoring reports
        return np.concatenate(out).astype(np.float32) if out else np.zeros(0, np.float32)
