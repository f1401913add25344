"""Heads: the closed form against products of the model's own forward, and float32 against float64."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import grace_store.model.closed_form as head_module
from grace_store.base.errors import ModelError
from grace_store.model.choose_head import OwnForward, VjpHead, choose_head
from grace_store.model.closed_form import ClosedFormHead, ResponseTokens, means_of_any_length
from grace_store.model.token_numbers import segment_statistics
from tests.tiny_models import FAMILIES, tiny_text_model

NOT_PLAIN = {"gemma2", "gemma3", "granite", "cohere", "minicpm3", "phi", "gptj"}


def load_tiny(family: str, folder, **changes):
    path = tiny_text_model(family, folder / family, **changes)
    return AutoModelForCausalLM.from_pretrained(path).requires_grad_(False)


def make_tokens(vocab_size: int, counts=(3, 1, 9, 5), seed: int = 1) -> ResponseTokens:
    segment = np.repeat(np.arange(len(counts)), counts)
    target = torch.randint(vocab_size, (len(segment),), generator=torch.Generator().manual_seed(seed))
    weight = torch.tensor([1 / counts[i] for i in segment], dtype=torch.float32)
    return ResponseTokens(target, torch.from_numpy(segment), weight, segment)


def make_hidden(num_tokens: int, size: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn((num_tokens, size), generator=torch.Generator().manual_seed(2)) * scale


def worst(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found.double() - expected.double()).norm(dim=1) / expected.double().norm(dim=1)).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_closed_form_equals_the_models_own_head(tmp_path, family, caplog):
    model = load_tiny(family, tmp_path)
    with caplog.at_level(logging.INFO):
        closed = choose_head(model)
    assert isinstance(closed, ClosedFormHead)
    assert "output head: closed form" in caplog.text
    generic = VjpHead(OwnForward(model), closed.vector_size, closed.vocab_size)
    tokens = make_tokens(closed.vocab_size)
    hidden = make_hidden(len(tokens.target), closed.vector_size, 2.0)
    found = closed.segment_means(hidden, tokens, 4)
    expected = generic.segment_means(hidden, tokens, 5)
    assert worst(found.vector, expected.vector) < 1e-5
    torch.testing.assert_close(found.numbers, expected.numbers, rtol=1e-4, atol=1e-5)
    naive = ClosedFormHead(model.get_output_embeddings().weight).segment_means(hidden, tokens, 4)
    error = worst(naive.vector, expected.vector)
    assert error > 1e-2 if family in NOT_PLAIN else error < 1e-5


class _OddHead(nn.Linear):
    """A head no closed form describes."""

    def forward(self, hidden):
        logits = super().forward(hidden)
        masked = logits + 0.1 * torch.sin(3 * logits)
        return masked.index_fill(-1, torch.tensor([7]), float("-inf"))


def test_an_odd_head_gets_products_of_its_own_forward(tmp_path):
    model = load_tiny("llama", tmp_path)
    odd = _OddHead(model.lm_head.in_features, model.lm_head.out_features, bias=False)
    odd.weight = model.lm_head.weight
    model.lm_head = odd
    chosen = choose_head(model)
    assert isinstance(chosen, VjpHead)
    assert "own head" in str(chosen)
    tokens = make_tokens(7)
    hidden = make_hidden(len(tokens.target), chosen.vector_size)
    with torch.inference_mode():
        found = chosen.segment_means(hidden.clone(), tokens, 6)
    hidden = hidden.double().requires_grad_(True)
    log_p = torch.log_softmax(odd.double()(hidden), dim=-1)
    loss = -(log_p.gather(1, tokens.target.unsqueeze(1))[:, 0] * tokens.weight)
    (gradient,) = torch.autograd.grad(loss.sum(), hidden)
    expected = torch.zeros_like(found.vector, dtype=torch.float64).index_add(0, tokens.segment, gradient)
    assert worst(found.vector, expected) < 1e-5
    assert torch.isfinite(found.numbers).all()


@pytest.mark.parametrize(("scale", "cap", "biased"), [(1.0, None, False), (0.3, 4.0, True), (2.0, None, True)])
def test_float32_against_float64(scale, cap, biased):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((301, 24), generator=generator)
    bias = torch.randn(301, generator=generator) if biased else None
    tokens = make_tokens(301)
    hidden = make_hidden(len(tokens.target), 24)
    found = ClosedFormHead(weight, bias, scale, cap).segment_means(hidden, tokens, 5)
    hidden64 = hidden.double().requires_grad_(True)
    logits = hidden64 @ weight.double().T
    logits = (logits if bias is None else logits + bias.double()) * scale
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    loss = nn.functional.cross_entropy(logits, tokens.target, reduction="none")
    (gradient,) = torch.autograd.grad((loss * tokens.weight).sum(), hidden64)
    expected = torch.zeros((4, 24), dtype=torch.float64).index_add(0, tokens.segment, gradient)
    assert worst(found.vector, expected) < 2e-6
    torch.testing.assert_close(-found.numbers[:, 0].double(), loss.detach(), rtol=1e-5, atol=1e-6)
    residual = torch.softmax(logits.detach(), dim=1) - nn.functional.one_hot(tokens.target, 301)
    torch.testing.assert_close(found.numbers[:, 3].double(), residual.norm(dim=1), rtol=1e-5, atol=1e-7)


def test_a_sure_model_keeps_its_digits():
    """With a margin of 30 the target's probability is 1 in float32, and p - 1 would be 0."""
    weight = torch.randn((64, 16), generator=torch.Generator().manual_seed(0))
    target = torch.arange(10) * 5
    hidden = weight[target] / weight[target].norm(dim=1, keepdim=True) ** 2 * 40.0
    segment = np.arange(10)
    tokens = ResponseTokens(target, torch.from_numpy(segment), torch.ones(10), segment)
    sure = ClosedFormHead(weight, torch.zeros(64).index_fill(0, target, 60.0)[:64])
    found = sure.segment_means(hidden, tokens, 10)
    logits = hidden.double() @ weight.double().T + torch.zeros(64).index_fill(0, target, 60.0).double()
    p = torch.softmax(logits, dim=1)
    rest = p.scatter(1, target.unsqueeze(1), 0.0)
    residual = rest.scatter(1, target.unsqueeze(1), -rest.sum(dim=1, keepdim=True))
    # Logits near 100 carry a float32 error of 1e-5 each, and the probabilities it to first order.
    assert worst(found.vector, residual @ weight.double()) < 1e-4
    loss = torch.log1p(rest.sum(dim=1) / p.gather(1, target.unsqueeze(1))[:, 0])
    torch.testing.assert_close(-found.numbers[:, 0].double(), loss, rtol=1e-3, atol=0)
    assert float(loss.min()) < 1e-8


def test_groups_of_segments_bound_the_memory(monkeypatch):
    weight = torch.randn((50, 8), generator=torch.Generator().manual_seed(0))
    tokens = make_tokens(50, counts=(2, 40, 1, 1, 7))
    hidden = make_hidden(len(tokens.target), 8)
    expected = ClosedFormHead(weight).segment_means(hidden, tokens, 16)
    monkeypatch.setattr(head_module, "MEAN_BUFFER_BYTES", 4 * 50 * 2)
    grouped = ClosedFormHead(weight)
    found = grouped.segment_means(hidden, tokens, 16)
    torch.testing.assert_close(found.vector, expected.vector, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.numbers, expected.numbers)
    assert {name: len(kept) for name, kept in grouped._scratch.items()} == {"mean": 2, "logits": 16, "residual": 16}


def test_mixed_products_pull_back_in_slices(monkeypatch):
    """The path of half precision on CUDA, on a CPU that has no product into float32: give it one."""
    weight = torch.randn((50, 8), generator=torch.Generator().manual_seed(0)).bfloat16()
    tokens = make_tokens(50)
    hidden = make_hidden(len(tokens.target), 8).bfloat16()
    expected = ClosedFormHead(weight, None, 0.5, 3.0).segment_means(hidden, tokens, 4)
    product = torch.mm

    def mm(left, right, *, out_dtype=None, out=None):
        if out_dtype is not None:
            assert left.dtype == right.dtype == torch.bfloat16
            return product(left.float(), right.float())
        return product(left, right, out=out) if out is not None else product(left, right)

    monkeypatch.setattr(head_module.devices, "has_mixed_product", lambda _weight: True)
    monkeypatch.setattr(head_module, "PULL_BACK_BYTES", 4 * 8 * 7)
    monkeypatch.setattr(torch, "mm", mm)
    found = ClosedFormHead(weight, None, 0.5, 3.0).segment_means(hidden, tokens, 4)
    torch.testing.assert_close(found.vector, expected.vector, rtol=1e-4, atol=1e-5)


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    model = load_tiny("llama", tmp_path)
    model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match=r"model.norm.weight holds values that are not finite"):
        choose_head(model)


# ---------------------------------------------------------------- very long segments


def exact_means(weight: torch.Tensor, hidden: torch.Tensor, tokens: ResponseTokens):
    """Return vectors and losses of a plain linear head in float64, with segments' means taken at once."""
    logits = hidden.double() @ weight.double().T
    residual = logits.softmax(dim=1)
    residual[torch.arange(len(logits)), tokens.target] -= 1.0
    losses = torch.nn.functional.cross_entropy(logits, tokens.target, reduction="none")
    rows = [torch.from_numpy(tokens.host_segment == number) for number in range(tokens.num_segments)]
    vectors = torch.stack([(residual @ weight.double())[row].mean(dim=0) for row in rows])
    return vectors, torch.stack([losses[row].mean() for row in rows])


@pytest.mark.parametrize("period", [1, 3, 7])
@pytest.mark.parametrize("generic", [False, True], ids=["closed", "products"])
def test_a_long_segment_that_repeats_itself_does_not_drift(tmp_path, period, generic):
    model = load_tiny("llama", tmp_path)
    head = choose_head(model)
    if generic:
        head = VjpHead(OwnForward(model), head.vector_size, head.vocab_size)
    counts = (5, 18_000, 40, 513, 512)
    segment = np.repeat(np.arange(len(counts)), counts)
    hidden = make_hidden(period, head.vector_size).repeat(len(segment) // period + 1, 1)[: len(segment)]
    target = make_tokens(head.vocab_size).target[:period].repeat(len(segment) // period + 1)[: len(segment)]
    weight = torch.tensor([1 / counts[i] for i in segment], dtype=torch.float32)
    tokens = ResponseTokens(target, torch.from_numpy(segment), weight, segment)
    found = means_of_any_length(head, hidden, tokens, 512)
    vectors, losses = exact_means(model.get_output_embeddings().weight, hidden, tokens)
    assert worst(found.vector[1:4], vectors[1:4]) < 1.5e-6
    found_losses = segment_statistics(found.numbers.numpy(), np.array(counts))["loss"]
    np.testing.assert_allclose(found_losses[1:4], losses[1:4], rtol=1.5e-6)
    assert worst(found.vector, vectors) < 1e-5


def test_segments_of_ordinary_length_stay_as_they_were_to_the_bit():
    weight = make_hidden(90, 16)
    tokens = make_tokens(90, counts=(3, 512, 1, 70))
    hidden = make_hidden(len(tokens.target), 16)
    head = ClosedFormHead(weight)
    found, expected = means_of_any_length(head, hidden, tokens, 512), head.segment_means(hidden, tokens, 512)
    assert torch.equal(found.vector, expected.vector)
    assert torch.equal(found.numbers, expected.numbers)


def test_a_long_segment_that_is_not_finite_spoils_no_other():
    tokens = make_tokens(90, counts=(600, 3, 600))
    hidden = make_hidden(len(tokens.target), 16)
    hidden[700] = float("inf")
    found = means_of_any_length(ClosedFormHead(make_hidden(90, 16)), hidden, tokens, 512)
    assert found.vector.isfinite().all(dim=1).tolist() == [True, True, False]
