"""Which head a model gets: the closed form that a probe shows to be its own, or products of its own forward."""

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from grace_store.base.errors import ModelError
from grace_store.model.devices import telling
from grace_store.model.head.closed_form import ClosedFormHead, OutputHead, ResponseTokens, alone
from grace_store.model.head.own_forward import OwnForward, VjpHead, probe_ids, refuse_not_finite, run_backbone

_LOG = logging.getLogger(__name__)

_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier", "logits_scaling")
_DIVISORS = ("logits_scaling",)
_LARGEST_LOGITS = (1.0, 5.0, 20.0, 60.0)
"""Sizes the probe's logits are brought to: a soft cap does not show in small ones."""
_PROBE_TOLERANCE = 1e-4
_WHOLE_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}


def choose_head(model: nn.Module) -> OutputHead:
    """Return the cheapest exact head of a loaded model."""
    with telling(f"{type(model).__name__} cannot be run on a few tokens"):
        own = OwnForward(model)
        vector_size, vocab_size = _check_whole(model, own)
    generic = VjpHead(own, vector_size, vocab_size)
    output: Any = model.get_output_embeddings()  # type: ignore[operator]
    if isinstance(output, nn.Linear) and tuple(output.weight.shape) == (vocab_size, vector_size):
        hidden, tokens = _probe(output)
        for scale, cap in _forms(model):
            closed = ClosedFormHead(output.weight, output.bias, scale, cap)
            if _agree(closed, generic, hidden, tokens):
                _LOG.info("output head: %s", closed)
                return closed
    _LOG.info("output head: %s", generic)
    return generic


def _check_whole(model: Any, own: OwnForward) -> tuple[int, int]:
    """Return (vector size, vocabulary) after seeing that backbone and head together make the whole model."""
    ids = probe_ids(model, 8, 7919)
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits[0].float()
        hidden: Tensor = run_backbone(model, input_ids=ids).last_hidden_state[0]
        parts = own.logits(hidden.float())
    if not bool(torch.isfinite(whole).any(dim=1).all()) or bool(torch.isnan(whole).any()):
        refuse_not_finite(model)
        remedy = "Its configuration may be damaged" if hidden.dtype == torch.float32 else "Try --dtype float32"
        raise ModelError(f"{type(model).__name__} gives logits that are not numbers in {hidden.dtype}. {remedy}.")
    if whole.shape != parts.shape or not _close(whole, parts, _WHOLE_TOLERANCE.get(hidden.dtype, 5e-2)):
        raise ModelError(
            f"{type(model).__name__} cannot be taken apart into a backbone and a head: together they give other logits "
            "than the whole. It cannot be used."
        )
    return hidden.shape[1], whole.shape[1]


def _close(left: Tensor, right: Tensor, tolerance: float) -> bool:
    # Masked logits are minus infinity (or nearly) on both sides.
    left, right = left.clamp(-1e30, 1e30), right.clamp(-1e30, 1e30)
    seen = (left > -1e29) & (right > -1e29)
    left, right = torch.where(seen, left, 0.0), torch.where(seen, right, 0.0)
    return bool((left - right).norm() <= tolerance * right.norm() + 1e-6)


def _forms(model: Any) -> Iterator[tuple[float, float | None]]:
    """Yield the (scale, cap) that the configuration's words may mean, the most particular first."""
    scales = [*(1.0 / value for value in _settings(model, _DIVISORS)), *_settings(model, _FACTORS), 1.0]
    for cap in (*_settings(model, _CAPS), None):
        yield from ((scale, cap) for scale in dict.fromkeys(scales))


def _settings(model: Any, names: tuple[str, ...]) -> Iterator[float]:
    for owner in (model, model.config, model.config.get_text_config()):
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int | float) and not isinstance(value, bool) and value:
                yield float(value)


def _probe(output: nn.Linear) -> tuple[Tensor, ResponseTokens]:
    """Return hidden states that bring the logits to various sizes, each its own segment, and targets."""
    device = output.weight.device
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((2 * len(_LARGEST_LOGITS), output.in_features), generator=generator).to(device)
    with torch.no_grad():
        largest = (hidden.to(output.weight.dtype) @ output.weight.t()).float().abs().amax(dim=1).clamp(min=1e-20)
    wanted = torch.tensor(_LARGEST_LOGITS).repeat(2).to(device)
    # Rounded to the model's dtype, as all hidden states are that the head will ever see.
    hidden = (hidden * (wanted / largest).unsqueeze(1)).to(output.weight.dtype)
    target = torch.randint(output.out_features, (len(hidden),), generator=generator).to(device)
    return hidden, alone(target)


def _agree(left: OutputHead, right: OutputHead, hidden: Tensor, tokens: ResponseTokens) -> bool:
    with torch.no_grad():
        first = left.segment_means(hidden, tokens, len(hidden))
        second = right.segment_means(hidden, tokens, len(hidden))
    left.release()
    difference = (first.vector - second.vector).norm(dim=1)
    vectors = difference <= _PROBE_TOLERANCE * second.vector.norm(dim=1)
    statistics = torch.isclose(first.statistics[:, :2], second.statistics[:, :2], rtol=1e-3, atol=1e-3).all(dim=1)
    return bool((vectors & statistics).all())
