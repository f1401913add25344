"""The storages: how a vector is kept, one class each with all that differs. Plain numpy; FORMAT.md section 6 in code.

A new one is a class here, its entry in STORAGES and its name in ``base.settings.Storage``.
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
    """A fixed orthogonal map that makes coordinates look normal, so that 4 bits suffice.

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
        order = np.argsort(keys, kind="stable").astype(np.int32)
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


CODEBOOK: Float32Array = np.array(
    [-2.7326, -2.0690, -1.6181, -1.2562, -0.9424, -0.6568, -0.3881, -0.1284,
     0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326],
    dtype=np.float32,
)  # fmt: skip
"""The 16 levels with the least mean squared error for a standard normal (Lloyd-Max)."""


Constant = tuple[tuple[str, ...], Array, str]
"""The dimensions, the values and the meaning of an array that a storage keeps beside the vectors to decode them with.
It follows from their size alone."""


@dataclass(frozen=True, slots=True)
class VectorStorage(ABC):
    """How vectors of one size are kept: in rows of numbers, mostly each with a scale."""

    size: int
    """Length of a vector."""

    dtype: ClassVar[str]
    """Of the numbers in a row."""
    has_scale: ClassVar[bool] = True
    is_exact: ClassVar[bool] = False
    """Whether vectors come back as they were."""

    @property
    def num_columns(self) -> int:
        """Numbers in a row."""
        return self.size

    @property
    def bytes_per_vector(self) -> int:
        """Size of a row before it is compressed."""
        return self.num_columns * np.dtype(self.dtype).itemsize

    def constants(self) -> Mapping[str, Constant]:
        """Return what is kept once for all vectors, by name."""
        return {}

    @abstractmethod
    def encode(self, vectors: Float32Array) -> tuple[Array, Float32Array | None]:
        """Return the rows, shape (n, num_columns), and the scale of each, or None if the storage has none."""

    def decode(
        self, rows: Array, scale: Float32Array | None, constants: Mapping[str, Array] | None = None
    ) -> Float32Array:
        """Return float32 vectors from their rows; constants are those kept with them, as a reader has to use them."""
        if scale is None:
            return rows.astype(np.float32)
        return np.asarray(rows.astype(np.float32) * scale[:, None], dtype=np.float32)


class Float32(VectorStorage):
    """Vectors as they are."""

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
        # A power of two: no precision is lost, and small gradients do not fall out of the range of float16.
        scale = np.exp2(np.frexp(largest)[1].clip(-126, 127)).astype(np.float32) * (largest > 0)
        return _divided(vectors, scale).astype(np.float16), scale


class Int8(VectorStorage):
    """Whole numbers up to 127 times the scale."""

    dtype = "int8"

    def encode(self, vectors: Float32Array) -> tuple[Array, Float32Array]:
        scale = (_largest(vectors) / np.float32(127)).astype(np.float32)
        return np.rint(_divided(vectors, scale)).clip(-127, 127).astype(np.int8), scale


class Int4(VectorStorage):
    """Codes of 4 bits, two in a byte, of the rotated vector's coordinates."""

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

    def decode(
        self, rows: Array, scale: Float32Array | None, constants: Mapping[str, Array] | None = None
    ) -> Float32Array:
        assert scale is not None
        kept = constants or {name: values for name, (_, values, _) in self.constants().items()}
        packed = rows.astype(np.uint8)
        codes = np.empty((len(packed), self.num_columns * 2), dtype=np.uint8)
        codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4
        turned = kept["vector_codebook"][codes[:, : self.size]]
        rotation = Rotation(kept["rotation_sign"], kept["rotation_order"])
        return np.asarray(rotation.backward(turned) * scale[:, None], dtype=np.float32)


STORAGES: dict[Storage, type[VectorStorage]] = {"float32": Float32, "float16": Float16, "int8": Int8, "int4": Int4}
"""The most precise first."""


def storage_of(spec: ExtractSpec) -> VectorStorage:
    """Return the storage of a signal's vectors."""
    return STORAGES[spec.storage](spec.vector_size)


def stored_form(vectors: Float32Array, storage: Storage) -> Float32Array:
    """Return what is left of vectors when they are stored and read again."""
    chosen = STORAGES[storage](vectors.shape[1])
    return chosen.decode(*chosen.encode(vectors))


def _largest(vectors: Float32Array) -> Float32Array:
    return np.asarray(np.abs(vectors).max(axis=1, initial=0.0))


def _divided(vectors: Float32Array, scale: Float32Array) -> Float32Array:
    """Return each row divided by its scale; zeros where that is zero."""
    # Not times 1/scale: the inverse of the tiniest float32 is no float32.
    return np.asarray(vectors / np.where(scale > 0, scale, np.float32(np.inf))[:, None], dtype=np.float32)


def num_packed(num_segments: IntArray) -> IntArray:
    """Return how many entries the packed Gram of each sample has, from its number of segments."""
    return num_segments * (num_segments + 1) // 2


def packed_grams(vectors: Float32Array, num_segments: IntArray) -> Float32Array:
    """Return the packed Grams of samples whose rows follow each other, summed in float64 and rounded at the end."""
    out: list[FloatArray] = []
    start = 0
    for m in num_segments.tolist():
        rows = vectors[start : start + m].astype(np.float64)
        out.append((rows @ rows.T)[np.tril_indices(m)])
        start += m
    with np.errstate(over="ignore"):  # vectors longer than 1e19 have an infinite Gram, which scoring reports
        return np.concatenate(out).astype(np.float32) if out else np.zeros(0, np.float32)
