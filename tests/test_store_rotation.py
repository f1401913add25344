"""The rotation that makes four bits enough: orthogonal, and the same for ever."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.store.rotation import Rotation, hadamard_blocks
from tests.stores import ODD_SIZES


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
