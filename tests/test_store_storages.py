"""Stored forms of vectors: what comes back, how far off it is, and what makes four bits enough."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.base.settings import Storage
from grace_store.store.storages import (
    CODEBOOK,
    STORAGES,
    Rotation,
    VectorStorage,
    hadamard_blocks,
    packed_grams,
    stored_form,
)
from tests.stores import ODD_SIZES, RELATIVE_ERROR

Array = npt.NDArray[np.float32]

FORMAT = Path(__file__).parent.parent / "schemas" / "FORMAT.md"


def form(storage: Storage, size: int) -> VectorStorage:
    return STORAGES[storage](size)


def test_every_storage_that_a_spec_may_name_is_there() -> None:
    assert tuple(STORAGES) == get_args(Storage)


def relative_error(vectors: Array, storage: Storage) -> npt.NDArray[np.float64]:
    off = stored_form(vectors, storage).astype(np.float64) - vectors
    return np.linalg.norm(off, axis=1) / np.linalg.norm(vectors.astype(np.float64), axis=1)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("norm", [1e-30, 1e-6, 1.0, 1e30])
@pytest.mark.parametrize("size", [97, 896, 2048])
def test_decoded_vectors_are_close_at_any_norm(storage: Storage, norm: float, size: int) -> None:
    unit = np.random.default_rng(size).standard_normal((20, size))
    vectors = (unit / np.linalg.norm(unit, axis=1, keepdims=True) * norm).astype(np.float32)
    assert relative_error(vectors, storage).max() <= RELATIVE_ERROR[storage]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("size", ODD_SIZES)
def test_a_form_has_the_size_and_dtype_it_should(storage: Storage, size: int) -> None:
    stored, scale = form(storage, size).encode(np.ones((3, size), dtype=np.float32))
    assert stored.shape == (3, math.ceil(size / 2) if storage == "int4" else size)
    assert stored.dtype == {"int4": "uint8"}.get(storage, storage)
    assert (scale is None) == (storage == "float32")
    assert scale is None or (scale.dtype == np.float32 and scale.shape == (3,))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("size", ODD_SIZES)
def test_zero_vectors_come_back_as_zero_among_others(storage: Storage, size: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((5, size)).astype(np.float32)
    vectors[[1, 4]] = 0
    back = stored_form(vectors, storage)
    assert not back[[1, 4]].any()
    assert back[[0, 2, 3]].any(axis=1).all()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("largest", [1.4e-45, 3e-39, 1e-37, 1e-30, 1e30, 3.4e38])
def test_the_edges_of_float32_neither_overflow_nor_warn(storage: Storage, largest: float) -> None:
    vectors = np.array([[largest, -largest / 3, 0.0, largest / 7, largest / 9]], dtype=np.float32)
    back = stored_form(vectors, storage)
    assert np.isfinite(back).all()
    # Below the normal range nothing but the size is promised.
    share = 0.25 if largest > 1e-37 else 1
    assert np.abs(back.astype(np.float64) - vectors).max() <= share * vectors.max()


@pytest.mark.parametrize("storage", ["float16", "int8", "int4"])
def test_no_rows_make_no_rows(storage: Storage) -> None:
    assert stored_form(np.zeros((0, 24), dtype=np.float32), storage).shape == (0, 24)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40),
    st.sampled_from(["float32", "float16", "int8"]),
)
def test_a_component_is_off_by_at_most_half_a_step_of_its_form(values: list[float], storage: Storage) -> None:
    vectors = np.array([values], dtype=np.float32)
    largest = float(np.abs(vectors).max())
    steps = {"float32": 0.0, "float16": 2**-12, "int8": 0.5001 / 127}
    tiny = 1e-38  # below, a float32 itself is no longer exact
    assert np.abs(stored_form(vectors, storage) - vectors).max() <= steps[storage] * 2 * largest + tiny


@pytest.mark.parametrize("storage", STORAGES)
def test_a_vector_does_not_depend_on_its_neighbours(storage: Storage) -> None:
    vectors = np.random.default_rng(1).standard_normal((9, 33)).astype(np.float32)
    stored, scale = form(storage, vectors.shape[1]).encode(vectors)
    for i in range(9):
        alone, alone_scale = form(storage, vectors.shape[1]).encode(vectors[i : i + 1])
        np.testing.assert_array_equal(alone[0], stored[i])
        assert scale is None or alone_scale is None or scale[i] == alone_scale[0]


def test_float16_scales_are_powers_of_two_that_leave_the_mantissa_alone() -> None:
    vectors = np.random.default_rng(2).standard_normal((50, 8)).astype(np.float16).astype(np.float32) * 2.0**-40
    stored, scale = form("float16", vectors.shape[1]).encode(vectors)
    assert scale is not None
    assert (np.frexp(scale)[0] == 0.5).all()
    largest = np.abs(stored.astype(np.float32)).max(axis=1)
    assert ((largest >= 0.5) & (largest <= 1)).all()
    np.testing.assert_allclose(form("float16", 8).decode(stored, scale), vectors, rtol=0, atol=2.0**-40 * 2**-20)


def test_int4_is_decoded_with_the_arrays_that_are_stored_beside_it() -> None:
    storage = form("int4", 4)
    stored, scale = storage.encode(np.array([[1, 2, 3, 4]], dtype=np.float32))
    kept = {name: values for name, (_, values, _) in storage.constants().items()}
    np.testing.assert_array_equal(storage.decode(stored, scale, kept), storage.decode(stored, scale))
    other = kept | {"vector_codebook": 2 * CODEBOOK}
    np.testing.assert_allclose(storage.decode(stored, scale, other), 2 * storage.decode(stored, scale), rtol=1e-6)


# ---------------------------------------------------------------- codebook


def test_the_codebook_is_a_fixed_point_of_lloyd_max_for_the_normal() -> None:
    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def mass(x: float) -> float:
        return (1 + math.erf(x / math.sqrt(2))) / 2

    levels = CODEBOOK.astype(float)
    edges = [-math.inf, *((levels[1:] + levels[:-1]) / 2).tolist(), math.inf]
    centroids = [(density(a) - density(b)) / (mass(b) - mass(a)) for a, b in pairwise(edges)]
    np.testing.assert_allclose(levels, centroids, atol=1e-3)
    np.testing.assert_array_equal(levels, -levels[::-1])


def test_the_scale_of_int4_is_the_least_squares_one() -> None:
    vectors = np.random.default_rng(3).standard_normal((20, 64)).astype(np.float32)
    stored, scale = form("int4", vectors.shape[1]).encode(vectors)
    assert scale is not None
    storage = form("int4", 64)
    best = np.linalg.norm(storage.decode(stored, scale) - vectors, axis=1)
    for factor in (0.99, 1.01):
        other = np.linalg.norm(storage.decode(stored, scale * np.float32(factor)) - vectors, axis=1)
        assert (best < other).all()


# ---------------------------------------------------------------- what a form costs, as FORMAT.md states it


def synthetic_gradients(size: int, *, outliers: bool) -> Array:
    """Return (100, 10, size) vectors that share a direction within a sample, more or less."""
    rng = np.random.default_rng(size)
    spread = np.ones(size)
    if outliers:
        spread = np.exp(rng.standard_normal(size))
        spread[rng.choice(size, size // 256, replace=False)] *= 20
    shared, own = rng.standard_normal((100, 1, size)), rng.standard_normal((100, 10, size))
    weight = rng.uniform(0, 1, (100, 10, 1))
    norm = 1e-3 * np.exp(rng.standard_normal((100, 10, 1)))
    return ((weight * shared + (1 - weight) * own) * spread * norm).astype(np.float32)


def cosines(vectors: Array) -> npt.NDArray[np.float64]:
    unit = vectors.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=2, keepdims=True)
    rows, columns = np.tril_indices(vectors.shape[1], -1)
    return np.asarray((unit @ unit.transpose(0, 2, 1))[:, rows, columns])


def cosine_error(storage: Storage, size: int, *, outliers: bool) -> tuple[float, float]:
    vectors = synthetic_gradients(size, outliers=outliers)
    back = stored_form(vectors.reshape(-1, size), storage).reshape(vectors.shape)
    error = np.abs(cosines(back) - cosines(vectors))
    return float(np.sqrt(np.mean(error**2))), float(error.max())


STATED = re.findall(
    r"^\| `(\w+)` \| (\d+) \| (even|outliers) \| ([\d.e-]+) \| ([\d.e-]+) \|$", FORMAT.read_text(), re.MULTILINE
)


def test_every_storage_has_its_cosine_error_stated() -> None:
    assert {(row[0], row[1]) for row in STATED} >= {(storage, "2048") for storage in STORAGES}


@pytest.mark.parametrize(("storage", "size", "coordinates", "rms", "largest"), STATED)
def test_cosine_errors_are_those_stated(storage: Storage, size: str, coordinates: str, rms: str, largest: str) -> None:
    measured = cosine_error(storage, int(size), outliers=coordinates == "outliers")
    assert measured == pytest.approx((float(rms), float(largest)), rel=0.1)


# ---------------------------------------------------------------- the rotation: orthogonal, and the same for ever


@pytest.mark.parametrize("size", [*ODD_SIZES, 127, 256])
def test_the_rotation_is_orthogonal_and_backward_undoes_forward(size: int) -> None:
    rotation = Rotation.for_size(size)
    matrix = rotation.forward(np.eye(size, dtype=np.float32)).astype(np.float64)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=2e-6)
    np.testing.assert_allclose(rotation.backward(matrix.astype(np.float32)), np.eye(size), atol=2e-6)


def test_blocks_are_sylvester_matrices_largest_first() -> None:
    h2 = np.array([[1, 1], [1, -1]])
    h4 = np.kron(h2, h2)
    expected = np.zeros((7, 7))
    expected[:4, :4], expected[4:6, 4:6], expected[6, 6] = h4 / 2, h2 / np.sqrt(2), 1
    np.testing.assert_allclose(hadamard_blocks(np.eye(7, dtype=np.float32)), expected, atol=1e-7)


def test_the_rotation_of_a_size_never_changes() -> None:
    """Stores written years apart share it; these numbers are part of the format."""
    rotation = Rotation.for_size(12)
    assert rotation.sign.tolist() == [
        [1, -1, -1, 1, -1, -1, -1, -1, -1, 1, -1, 1],
        [1, -1, 1, 1, 1, -1, 1, -1, 1, -1, 1, -1],
    ]
    assert rotation.order.tolist() == [0, 4, 5, 10, 3, 9, 8, 11, 1, 6, 7, 2]
    assert sorted(rotation.order) == list(range(12))


def test_an_outlier_is_spread_over_all_coordinates() -> None:
    spike = np.zeros((1, 2048), dtype=np.float32)
    spike[0, 77] = 1
    turned = Rotation.for_size(2048).forward(spike)
    assert np.abs(turned).max() < 6 / np.sqrt(2048)


# ---------------------------------------------------------------- packed Grams: those of a loop


@given(st.lists(st.integers(1, 6), max_size=6), st.integers(1, 9))
@settings(deadline=None, max_examples=50)
def test_packed_grams_are_those_of_a_loop(num_segments: list[int], size: int) -> None:
    vectors = np.random.default_rng(size).standard_normal((sum(num_segments), size)).astype(np.float32)
    expected, start = [], 0
    for m in num_segments:
        for i in range(m):
            for j in range(i + 1):
                pair = zip(vectors[start + i].tolist(), vectors[start + j].tolist(), strict=True)
                expected.append(math.fsum(a * b for a, b in pair))
        start += m
    packed = packed_grams(vectors, np.array(num_segments, dtype=np.int64))
    assert packed.dtype == np.float32
    np.testing.assert_allclose(packed, np.array(expected), rtol=2**-23, atol=1e-14)


def test_grams_of_vectors_too_long_for_float32_are_infinite_not_wrong() -> None:
    assert packed_grams(np.full((1, 4), 1e30, dtype=np.float32), np.array([1])).tolist() == [np.inf]
    assert packed_grams(np.full((1, 4), 1e-30, dtype=np.float32), np.array([1])).tolist() == [0.0]
