"""The storages: how a vector is kept, one class each with all that differs. Plain numpy; FORMAT.md section 6 in code.

A new one is a class here, its entry in STORAGES and its name in ``base.settings.Storage``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from grace_store.base.arrays import Array, Float32Array
from grace_store.base.settings import ExtractSpec, Storage
from grace_store.store.rotation import Rotation

CODEBOOK: Float32Array = np.array(
    [-2.7326, -2.0690, -1.6181, -1.2562, -0.9424, -0.6568, -0.3881, -0.1284,
     0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326],
    dtype=np.float32,
)  # fmt: skip
"""The 16 levels with the least mean squared error for a standard normal (Lloyd-Max)."""


class Constant(NamedTuple):
    """An array that a storage keeps beside the vectors to decode them with; it follows from their size alone."""

    name: str
    dims: tuple[str, ...]
    values: Array
    about: str


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

    def constants(self) -> Sequence[Constant]:
        """Return what is kept once for all vectors."""
        return ()

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

    def constants(self) -> Sequence[Constant]:
        rotation = Rotation.for_size(self.size)
        about_sign = "signs before each round of the rotation"
        return (
            Constant("rotation_sign", ("rotation_round", "coordinate"), rotation.sign, about_sign),
            Constant("rotation_order", ("coordinate",), rotation.order, "permutation between the rounds"),
            Constant("vector_codebook", ("code",), CODEBOOK, "value of each 4-bit code"),
        )

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
        kept = constants or {each.name: each.values for each in self.constants()}
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
