"""Projections: the very bits that the format writes down, and inner products kept without bias, within their bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from grace_store.base.settings import GradientSpec
from grace_store.model.gradients import projection
from grace_store.model.gradients.projection import RademacherProjector, SparseProjector, make_projector, philox
from tests.gradients import MATRICES, philox_block

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Of the generator's authors, Random123's kat_vectors."""


@pytest.mark.parametrize(("counter", "seed", "expected"), KNOWN_ANSWERS)
def test_philox_gives_its_authors_known_answers(counter, seed, expected):
    words = philox(seed, *(torch.tensor([number]) for number in counter))
    assert tuple(int(word) for word in words) == expected == tuple(philox_block(seed, counter))


def project(kind: str, gradients: np.ndarray, dimension: int, seed: int, start: int = 0) -> np.ndarray:
    spec = GradientSpec(projection=kind, dimension=dimension, seed=seed, normalise=False, parameters="0")
    out = torch.zeros((len(gradients), dimension))
    make_projector(spec).add(out, torch.from_numpy(gradients.astype(np.float32)), start)
    return out.numpy()


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize(("dimension", "seed", "start"), [(132, 0, 0), (128, 7, 1000), (40, 2**40 + 3, 2**32 - 20)])
def test_projectors_are_the_matrices_that_the_format_writes_down(kind, dimension, seed, start):
    gradients = np.random.default_rng(0).standard_normal((3, 300))
    expected = gradients @ MATRICES[kind](300, dimension, seed, start)
    np.testing.assert_allclose(project(kind, gradients, dimension, seed, start), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [RademacherProjector, SparseProjector])
def test_pieces_in_any_cut_and_order_add_up_to_the_whole(make):
    gradients = torch.randn((4, 5000), generator=torch.Generator().manual_seed(1))
    whole, pieces = torch.zeros((4, 64)), torch.zeros((4, 64))
    make(64, 3).add(whole, gradients, 10)
    bounds = [0, 1, 700, 703, 2048, 5000]
    for start, stop in reversed(list(itertools.pairwise(bounds))):
        make(64, 3).add(pieces, gradients[:, start:stop], 10 + start)
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-4)


def test_the_size_of_blocks_changes_nothing_but_the_order_of_sums(monkeypatch):
    gradients = torch.randn((4, 1000), generator=torch.Generator().manual_seed(1))
    made = []
    for num_entries in (projection.CPU_ENTRIES, 1, 100, 64 * 77):
        monkeypatch.setattr(projection, "CPU_ENTRIES", num_entries)
        made.append(torch.zeros((4, 64)))
        RademacherProjector(64, 3).add(made[-1], gradients, 0)
    for other in made[1:]:
        torch.testing.assert_close(other, made[0], rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_the_others():
    gradients = np.random.default_rng(0).standard_normal((5, 2000))
    for kind in MATRICES:
        together, alone = project(kind, gradients, 128, 0), project(kind, gradients[2:3], 128, 0)
        np.testing.assert_allclose(together[2:3], alone, rtol=1e-4, atol=1e-5)
        gradients[0] = np.nan
        np.testing.assert_allclose(project(kind, gradients, 128, 0)[2:3], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MATRICES)
def test_inner_products_are_kept_without_bias_and_within_the_bound(kind):
    """Against the variance of a dense projection, over 400 matrices; gradients with few large coordinates, too."""
    rng = np.random.default_rng(3)
    base = rng.standard_normal((4, 600)) * rng.lognormal(0.0, 1.5, 600)
    base[1] += 0.7 * base[0]
    dimension, num_seeds = 256, 400
    exact = base @ base.T
    found = np.stack(
        [(p := project(kind, base, dimension, seed).astype(np.float64)) @ p.T for seed in range(num_seeds)]
    )
    norms = np.diag(exact)
    variance = (np.outer(norms, norms) + exact**2 - 2 * (base**2) @ (base**2).T) / dimension
    error = (found - exact) / np.sqrt(variance)
    assert np.abs(error.mean(axis=0)).max() < 4 / np.sqrt(num_seeds), "no bias: within four standard errors"
    assert (error**2).mean(axis=0).max() < 1.35, "no more variance than the bound"
    # Johnson-Lindenstrauss: |<Rg,Rh> - <g,h>| > e |g||h| has a chance of at most 4 exp(-(e^2 - e^3) d / 4).
    for epsilon in (0.25, 0.35):
        share = (np.abs(found - exact) > epsilon * np.sqrt(np.outer(norms, norms))).mean(axis=0).max()
        assert share <= 4 * np.exp(-(epsilon**2 - epsilon**3) * dimension / 4)


@pytest.mark.parametrize("kind", MATRICES)
def test_another_seed_is_another_matrix(kind):
    gradient = np.random.default_rng(0).standard_normal((1, 3000))
    one, other = project(kind, gradient, 256, 0), project(kind, gradient, 256, 2**32)
    assert abs(float(one[0] @ other[0])) < 0.3 * float(np.linalg.norm(one) * np.linalg.norm(other))
