"""Choose the head for a model: a closed form if a probe confirms it, else products of the model's own forward.

The model's own forward, with its backbone replaced, is exact for every computation between the last hidden state and
the logits, but costs a backward pass through the head. Knows nothing of texts, samples or batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from grace_store.base.errors import ModelError
from grace_store.model.backbone import backbones, probe_ids, refuse_not_finite, run_backbone
from grace_store.model.closed_form import (
    ClosedFormHead,
    OutputHead,
    ResponseTokens,
    SegmentMeans,
    alone,
    averaging_matrix,
    residual_of,
)
from grace_store.model.devices import telling
from grace_store.model.token_numbers import NUM_NUMBERS, NUMBERS

_LOG = logging.getLogger(__name__)

_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier", "logits_scaling")
_DIVISORS = ("logits_scaling",)
_LARGEST_LOGITS = (1.0, 5.0, 20.0, 60.0)
"""Sizes of the probe's largest logits. A soft cap has no visible effect on small logits."""
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
        scales = [*(1.0 / value for value in _settings(model, _DIVISORS)), *_settings(model, _FACTORS), 1.0]
        for cap, scale in product((*_settings(model, _CAPS), None), dict.fromkeys(scales)):
            closed = ClosedFormHead(output.weight, output.bias, scale, cap)
            if _agree(closed, generic, hidden, tokens):
                _LOG.info("output head: %s", closed)
                return closed
    _LOG.info("output head: %s", generic)
    return generic


def _check_whole(model: Any, own: OwnForward) -> tuple[int, int]:
    """Return (vector size, vocabulary size); raise unless backbone and head together give the model's own logits."""
    ids = probe_ids(model, 8, 7919)
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits[0].float()
        hidden: Tensor = run_backbone(model, input_ids=ids).last_hidden_state[0]
        parts = own.logits(hidden.float())
    if not bool(torch.isfinite(whole).any(dim=1).all()) or bool(torch.isnan(whole).any()):
        refuse_not_finite(model)
        remedy = "The model's configuration may be damaged" if hidden.dtype == torch.float32 else "Try --dtype float32"
        raise ModelError(f"{type(model).__name__} gives logits that are not numbers in {hidden.dtype}. {remedy}.")
    is_close = whole.shape == parts.shape
    if is_close:
        # Masked logits are minus infinity (or nearly) on both sides.
        left, right = whole.clamp(-1e30, 1e30), parts.clamp(-1e30, 1e30)
        seen = (left > -1e29) & (right > -1e29)
        left, right = torch.where(seen, left, 0.0), torch.where(seen, right, 0.0)
        is_close = bool((left - right).norm() <= _WHOLE_TOLERANCE.get(hidden.dtype, 5e-2) * right.norm() + 1e-6)
    if not is_close:
        raise ModelError(
            f"{type(model).__name__} cannot be split into a backbone and a head. Together, the two parts give "
            "other logits than the whole model. Give another model."
        )
    return hidden.shape[1], whole.shape[1]


def _settings(model: Any, names: tuple[str, ...]) -> Iterator[float]:
    for owner in (model, model.config, model.config.get_text_config()):
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int | float) and not isinstance(value, bool) and value:
                yield float(value)


def _probe(output: nn.Linear) -> tuple[Tensor, ResponseTokens]:
    """Return hidden states that give logits of several sizes, and their targets, with one token per segment."""
    device = output.weight.device
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((2 * len(_LARGEST_LOGITS), output.in_features), generator=generator).to(device)
    with torch.no_grad():
        largest = (hidden.to(output.weight.dtype) @ output.weight.t()).float().abs().amax(dim=1).clamp(min=1e-20)
    wanted = torch.tensor(_LARGEST_LOGITS).repeat(2).to(device)
    # Rounded to the model's dtype, like every hidden state in an extraction.
    hidden = (hidden * (wanted / largest).unsqueeze(1)).to(output.weight.dtype)
    return hidden, alone(torch.randint(output.out_features, (len(hidden),), generator=generator).to(device))


def _agree(left: OutputHead, right: OutputHead, hidden: Tensor, tokens: ResponseTokens) -> bool:
    with torch.no_grad():
        first = left.segment_means(hidden, tokens, len(hidden))
        second = right.segment_means(hidden, tokens, len(hidden))
    left.release()
    vectors = (first.vector - second.vector).norm(dim=1) <= _PROBE_TOLERANCE * second.vector.norm(dim=1)
    # Not the ranks, because rounding can exchange logits that are nearly equal.
    but_rank = [number for number, name in enumerate(NUMBERS) if name != "rank"]
    numbers = torch.isclose(first.numbers[:, but_rank], second.numbers[:, but_rank], rtol=1e-3, atol=1e-3).all(dim=1)
    return bool((vectors & numbers).all())


class OwnForward:
    """The model's own head as a function of hidden states, always in float32."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._backbones = backbones(model)
        inside = {id(tensor) for module in self._backbones for tensor in (*module.parameters(), *module.buffers())}
        output = model.get_output_embeddings()
        tied = set() if output is None else {id(tensor) for tensor in output.parameters()}
        # Each tensor is listed once: functional_call gives it to all names that share it.
        self._parameters = {
            name: tensor.detach().float() if tensor.is_floating_point() else tensor
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if id(tensor) in tied or id(tensor) not in inside
        }
        """float32 copies of all tensors outside the backbone, by name; a tied head counts as outside."""
        with torch.no_grad():
            self._output = run_backbone(model, input_ids=probe_ids(model, 4, 1))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits (tokens, vocab) of hidden states (tokens, d)."""
        ids = torch.zeros((1, len(hidden)), dtype=torch.long, device=hidden.device)
        output = type(self._output)(**{**self._output, "last_hidden_state": hidden.unsqueeze(0)})
        for module in self._backbones:
            module.forward = lambda *_args, **_kwargs: output
        try:
            result: Any = torch.func.functional_call(
                self._model, self._parameters, kwargs={"input_ids": ids, "use_cache": False, "return_dict": True}
            )
        finally:
            for module in self._backbones:
                del module.forward
        logits: Tensor = result.logits[0].float()
        return logits


class VjpHead:
    """A head of any form: vector-Jacobian products of the model's own forward."""

    def __init__(self, own: OwnForward, vector_size: int, vocab_size: int) -> None:
        self._own = own
        self.vector_size = vector_size
        self.vocab_size = vocab_size

    def __str__(self) -> str:
        return "vector-Jacobian products of the model's own head"

    def release(self) -> None:
        return

    def segment_means(self, hidden: Tensor, tokens: ResponseTokens, block_tokens: int) -> SegmentMeans:
        vector = hidden.new_zeros((tokens.num_segments, self.vector_size), dtype=torch.float32)
        numbers = hidden.new_empty((len(hidden), NUM_NUMBERS), dtype=torch.float32)
        for start in range(0, len(hidden), block_tokens):
            block = slice(start, min(start + block_tokens, len(hidden)))
            with torch.inference_mode(False), torch.enable_grad():
                # A clone of an inference tensor is an ordinary tensor here.
                given = hidden[block].clone().float().requires_grad_(True)
                logits = self._own.logits(given)
                # A masked logit is minus infinity. Its product with a probability of 0 would make the entropy NaN.
                finite = logits.detach().clamp(min=torch.finfo(torch.float32).min)
                residual = torch.empty_like(finite)
                inverse_z, found, _ = residual_of(finite, tokens.target[block].clone(), residual)
                (gradient,) = torch.autograd.grad(logits, given, residual * inverse_z.unsqueeze(1))
            first, stop = int(tokens.host_segment[block.start]), int(tokens.host_segment[block.stop - 1]) + 1
            average = averaging_matrix(tokens.segment[block], tokens.weight[block], first, stop)
            vector[first:stop].addmm_(average, gradient)
            numbers[block] = found
        return SegmentMeans(vector, numbers)
