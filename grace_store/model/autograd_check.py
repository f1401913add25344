"""Compare an extractor with references on a few samples: its vectors with autograd, its images with a trainer's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace_store.base.arrays import Float32Array
from grace_store.base.errors import SettingError
from grace_store.base.settings import ImagesAs
from grace_store.data.sample import Sample
from grace_store.model import devices
from grace_store.model.backbone import backbones
from grace_store.model.inputs.encode_samples import PreparedUnit, SampleReader
from grace_store.model.inputs.trainer_images import TRAINERS
from grace_store.model.unit_extractor import ProxyExtractor

TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 5e-2}
"""Largest relative difference that rounding may cause, by the model's dtype."""


def autograd_difference(extractor: ProxyExtractor, samples: Sequence[Sample]) -> float:
    """Return the largest relative difference between a segment's vector and the autograd gradient of its mean loss.

    The reference runs each sample alone through the model's own forward, with the head.
    """
    worst = 0.0
    for sample in samples:
        made = extractor.compute(extractor.prepare([sample])).result().segment_vector
        with devices.watching(_device(extractor)):
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
    """Make the backbone's output a leaf of the autograd graph. The last collected leaf is the input of the head."""
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


def shown_otherwise(
    extractor: ProxyExtractor, samples: Sequence[Sample], own: ImagesAs
) -> dict[ImagesAs, tuple[int, int]]:
    """Count for each other way to prepare images: samples with different images, samples with different token counts.

    Ways that do not support the model are left out.
    """
    readers: dict[ImagesAs, SampleReader] = {}
    for name in TRAINERS:
        with suppress(SettingError):
            if name != own:
                readers[name] = extractor.reader.with_images_as(name)
    found = dict.fromkeys(readers, (0, 0))
    for sample in samples:
        ours = extractor.reader.read([sample])
        for name, reader in readers.items():
            theirs = reader.read([sample])
            differ, differ_in_tokens = found[name]
            differ += not _have_equal_images(ours, theirs)
            found[name] = (differ, differ_in_tokens + (_num_tokens(ours) != _num_tokens(theirs)))
    return found


def _num_tokens(read: PreparedUnit) -> int:
    return sum(tokens.num_tokens for tokens in read.tokens.values())


def _have_equal_images(ours: PreparedUnit, theirs: PreparedUnit) -> bool:
    if not ours.images or not theirs.images:
        return ours.images.keys() == theirs.images.keys()
    a, b = ours.images[0].inputs(), theirs.images[0].inputs()
    return all(torch.equal(a[name], b[name]) for name in a)


def device_memory(extractor: ProxyExtractor) -> dict[str, tuple[int, int]]:
    """Return the free and the total bytes of memory of the extractor's accelerator, by its name; empty on a CPU."""
    found = devices.memory(_device(extractor))
    return {} if found is None else {str(_device(extractor)): found}


def _device(extractor: ProxyExtractor) -> torch.device:
    return next(extractor.model.parameters()).device
