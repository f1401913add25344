"""Products and answers of bfloat16 models that are computed in float32, against those of torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from jobs.study.without_bfloat16 import attention, linear


def test_products_and_their_gradients_differ_from_torch_by_rounding_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 32, generator=generator).bfloat16()
    given = torch.randn(7, 32, generator=generator).bfloat16()
    pull = torch.randn(7, 48, generator=generator).bfloat16()
    found = []
    for product in (linear, functional.linear):
        x = given.clone().requires_grad_()
        y = product(x, weight)
        y.backward(pull)
        assert y.dtype is torch.bfloat16
        assert x.grad is not None
        found.append((y.detach().double(), x.grad.double()))
    exact = given.double() @ weight.double().T, pull.double() @ weight.double()
    for ours, theirs, true in zip(*found, exact, strict=True):
        assert (ours - true).abs().max() <= 2**-8 * true.abs().max()
        assert (ours - theirs).abs().max() <= 2**-7 * true.abs().max()


@pytest.mark.parametrize("masked", [False, True])
def test_attention_differs_from_torch_by_rounding_alone(masked: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 3, 5, 8, generator=generator).bfloat16() for _ in range(3))
    mask = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).bfloat16() if masked else None
    ours = attention(query, key, value, mask)
    theirs = functional.scaled_dot_product_attention(query, key, value, mask)
    assert ours.dtype is torch.bfloat16
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_other_products_are_left_to_torch() -> None:
    x, weight, bias = torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)
    assert torch.equal(linear(x, weight, bias), functional.linear(x, weight, bias))
    trained = torch.ones(4, 3, dtype=torch.bfloat16, requires_grad=True)
    linear(x.bfloat16(), trained).sum().backward()
    assert trained.grad is not None
