"""Are the vectors an extractor makes the gradients of its whole model, by autograd? For a few samples, before a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace_store.base.arrays import Float32Array
from grace_store.data.sample import Sample
from grace_store.model.head.own_forward import backbones
from grace_store.model.proxy import ProxyExtractor

TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 5e-2}
"""Largest relative difference that rounding may make, by the model's dtype."""


def autograd_difference(extractor: ProxyExtractor, samples: Sequence[Sample]) -> float:
    """Return the largest relative difference of a segment's vector from the gradient of its mean loss by autograd.

    The reference runs each sample alone through the model's own forward, head included.
    """
    worst = 0.0
    for sample in samples:
        made = extractor.compute(extractor.prepare([sample])).result().segment_vector
        expected = _gradients(extractor, sample)
        norms = np.maximum(np.linalg.norm(expected, axis=1), np.finfo(np.float32).tiny)
        worst = max(worst, float((np.linalg.norm(made - expected, axis=1) / norms).max()))
    return worst


def _gradients(extractor: ProxyExtractor, sample: Sample) -> Float32Array:
    prepared = extractor.prepare([sample])
    (batch,) = prepared.batches
    inputs = extractor.inputs_on_device(batch, extractor.image_inputs(prepared, batch))
    model: Any = extractor.model
    with torch.enable_grad(), _leaf_hidden_states(model) as leaves:
        logits = model(**inputs, use_cache=False, return_dict=True).logits
        device = logits.device
        rows = logits.reshape(-1, logits.shape[-1])[batch.predecessor.to(device)].float()
        losses = torch.nn.functional.cross_entropy(rows, batch.target.to(device), reduction="none")
        weighted = losses * batch.weight.to(device)
        gradients = []
        for segment in range(int(batch.host_segment[-1]) + 1):
            loss = weighted[torch.from_numpy(batch.host_segment == segment).to(device)].sum()
            (gradient,) = torch.autograd.grad(loss, leaves[-1], retain_graph=True)
            gradients.append(gradient.reshape(-1, gradient.shape[-1]).float().sum(dim=0))
    return torch.stack(gradients).cpu().numpy()


@contextmanager
def _leaf_hidden_states(model: Any) -> Iterator[list[Tensor]]:
    """Make what the backbone gives the head a leaf of the graph; the last one collected is what the head got."""
    leaves: list[Tensor] = []

    def cut(_module: Any, _args: Any, output: Any) -> Any:
        leaves.append(output.last_hidden_state.detach().requires_grad_(True))
        return type(output)(**{**output, "last_hidden_state": leaves[-1]})

    hooks = [module.register_forward_hook(cut) for module in backbones(model)]
    try:
        yield leaves
    finally:
        for hook in hooks:
            hook.remove()


def device_memory(extractor: ProxyExtractor) -> tuple[int, int] | None:
    """Return the bytes free and the bytes in all of the extractor's GPU; None on a CPU."""
    device = next(extractor.model.parameters()).device
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return int(free), int(total)
