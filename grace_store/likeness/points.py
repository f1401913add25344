"""Samples as points: a descriptor (a vector of length 1) for each sample, from its segments' vectors. NumPy alone.

Knows neither stores nor indexes. The inner product of two descriptors is their cosine.

    answer     the vector of the answer
    steps      the mean of the vectors of the steps, after scaling each to length 1
    weighted   the same mean, weighted by step scores; scores below 0 count as 0
    projected  answer and steps side by side, randomly projected to fewer numbers; a cosine is the mean of both cosines
"""

import hashlib
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import BoolArray, Float32Array, FloatArray, IntArray
from grace_store.base.errors import SettingError

Descriptor = Literal["answer", "steps", "weighted", "projected"]
DESCRIPTORS: tuple[Descriptor, ...] = get_args(Descriptor)
DEFAULT_DESCRIPTOR: Descriptor = "steps"
"""Steps rather than answers: answers are short, and answers of different traces often have the same direction."""
PROJECTED_SIZE = 512
"""Default size of a projected descriptor."""
_CANCELLED = 1e-6
"""If the mean of vectors of length 1 is shorter than this, the vectors cancel and the mean is rounding error."""
_PROJECTION_SEED = b"grace-store projection of %d numbers to %d, seed %d"

Described = tuple[Float32Array, BoolArray, BoolArray]
"""The descriptors of n samples, (n, m), of length 1 or all zeros; whether each descriptor is zeros, (n,); and whether
each sample lacks a step weight above 0, (n,), so that all its steps have the same weight."""


def descriptor_named(name: str) -> Descriptor:
    """Return a descriptor by its name; raise SettingError if there is none of that name."""
    if name not in DESCRIPTORS:
        raise SettingError(f"unknown descriptor {name!r}: use one of {', '.join(DESCRIPTORS)}")
    return name


def projection_for(vector_size: int, dimension: int | None = None, seed: int = 0) -> FloatArray | None:
    """Return the projection of "projected" descriptors; None if answer and steps side by side fit in dimension."""
    dimension = PROJECTED_SIZE if dimension is None else dimension
    if dimension < 1:
        raise SettingError(f"dimension {dimension} is below 1: a descriptor needs at least one number")
    return None if 2 * vector_size <= dimension else random_projection(2 * vector_size, dimension, seed)


def random_projection(num_inputs: int, num_outputs: int, seed: int = 0) -> FloatArray:
    """Return a matrix of random signs that depends on the sizes and the seed alone, on every machine and release."""
    text = _PROJECTION_SEED % (num_inputs, num_outputs, seed)
    stream = hashlib.shake_256(text).digest(-(-num_inputs * num_outputs // 8))
    bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8), count=num_inputs * num_outputs)
    return np.asarray((1.0 - 2.0 * bits).reshape(num_inputs, num_outputs) / np.sqrt(num_outputs))


def project(vectors: Float32Array, projection: FloatArray) -> Float32Array:
    # Summed in float64, so that a row in float32 does not depend on the number of rows.
    return np.asarray(vectors.astype(np.float64) @ projection, dtype=np.float32)


def describe(
    vectors: Float32Array,
    num_steps: npt.NDArray[np.integer[Any]],
    descriptor: Descriptor,
    *,
    step_score: npt.NDArray[np.floating[Any]] | None = None,
    projection: FloatArray | None = None,
) -> Described:
    """Return the descriptors of samples from flat vectors, K_i + 1 rows for each sample, the answer last.

    For "answer", vectors may have answers alone, with num_steps all 0. "weighted" needs step_score, flat without
    answers; a score that is not finite counts as 0. A descriptor does not depend on the other samples.
    """
    steps_of = np.asarray(num_steps, dtype=np.int64)
    is_answer = np.zeros(len(vectors), dtype=np.bool_)
    is_answer[np.cumsum(steps_of + 1) - 1] = True
    none = np.zeros(len(num_steps), dtype=np.bool_)
    if descriptor == "answer":
        return (*normalised(vectors[is_answer]), none)
    weight, is_unweighted = _step_weights(steps_of, step_score if descriptor == "weighted" else None)
    unit, _ = normalised(vectors[~is_answer])
    total = _reduced(np.add, unit * weight[:, None], steps_of)
    share = _reduced(np.add, weight, steps_of)
    steps, steps_zero = normalised((total / np.where(share > 0, share, 1)[:, None]).astype(np.float32), _CANCELLED)
    if descriptor != "projected":
        return steps, steps_zero, is_unweighted
    answer, _ = normalised(vectors[is_answer])
    both = np.concatenate([answer, steps], axis=1)
    return (*normalised(both if projection is None else project(both, projection)), none)


def normalised(vectors: Float32Array, shortest: float = 0.0) -> tuple[Float32Array, BoolArray]:
    """Return rows of length 1, and which rows became zeros because they were not longer than shortest."""
    # In float64, which can hold the squares of the smallest and largest float32.
    length = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    is_zero = ~(length > shortest)
    return np.asarray(vectors / np.where(is_zero, np.inf, length)[:, None], dtype=np.float32), is_zero


def _step_weights(num_steps: IntArray, score: npt.NDArray[np.floating[Any]] | None) -> tuple[FloatArray, BoolArray]:
    """Return the weights of steps, with 1 for the largest of a sample, and which samples have no weight above 0."""
    total = int(num_steps.sum())
    if score is None:
        return np.ones(total), np.zeros(len(num_steps), dtype=np.bool_)
    if len(score) != total:
        raise ValueError(f"{len(score)} step scores for {total} steps")
    weight = np.where(np.isfinite(score), score, 0.0).astype(np.float64).clip(0)
    largest = _reduced(np.maximum, weight, num_steps)
    each = np.repeat(largest, num_steps)
    return np.where(each > 0, weight / np.where(each > 0, each, 1), 1.0), largest == 0


def _reduced(reduce: np.ufunc, values: FloatArray, num_steps: IntArray) -> FloatArray:
    """Reduce the values of the steps of each sample; 0 for a sample without steps."""
    out = np.zeros((len(num_steps), *values.shape[1:]))
    if (some := num_steps > 0).any():
        out[some] = reduce.reduceat(values, (np.cumsum(num_steps) - num_steps)[some], axis=0)
    return out


class Nearest:
    """The points with the largest (or smallest) cosines to each query, ties to the lower point."""

    def __init__(self, query: Float32Array, count: int, *, least: bool = False) -> None:
        """Compare with query, (q, m) of length 1, and keep count points for each."""
        self._query = query
        self._count = count
        self._sign = np.float32(-1 if least else 1)
        self._point = np.zeros((len(query), 0), dtype=np.int64)
        self._cosine = np.zeros((len(query), 0), dtype=np.float32)

    def add(self, point: IntArray, vector: Float32Array, leave_out: IntArray | None = None) -> None:
        """Add points, ascending over all calls, and their vectors; leave_out has a point for each query, or -1."""
        cosine = self._sign * (self._query @ vector.T)
        if leave_out is not None:
            cosine[leave_out[:, None] == point[None, :]] = -np.inf
        joined = np.concatenate([self._cosine, cosine], axis=1)
        points = np.concatenate([self._point, np.broadcast_to(point, cosine.shape)], axis=1)
        # A stable sort of ascending points puts the lower point first.
        best = np.argsort(-joined, axis=1, kind="stable")[:, : self._count]
        self._point = np.take_along_axis(points, best, axis=1)
        self._cosine = np.take_along_axis(joined, best, axis=1)

    def found(self) -> tuple[IntArray, Float32Array]:
        """Return the points and their cosines, both (q, at most count), filled up with -1 and NaN."""
        none = np.isneginf(self._cosine)
        cosine = np.where(none, np.nan, (self._sign * self._cosine).clip(-1, 1)).astype(np.float32)
        return np.where(none, -1, self._point), cosine
