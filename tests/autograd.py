"""Vectors by their definition: backward passes of a whole model, one segment of one sample at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.states import UnitSignals
from grace_store.data.sample import Sample
from grace_store.model.load.weights import LoadedModel, load
from grace_store.model.open_model import ProxyExtractor, resolve_spec

ONE_THREAD = RunOptions(device="cpu", threads=1)


def open_tiny(folder: Path, options: RunOptions = ONE_THREAD, **choices: Any) -> tuple[LoadedModel, ProxyExtractor]:
    """Return a model and an extractor on that very model."""
    spec = resolve_spec(str(folder), ExtractSpec(**choices), options)
    loaded = load(folder, spec.dtype, spec.attention, "cpu", 1)
    return loaded, ProxyExtractor(loaded, spec, options)


def extract(extractor: ProxyExtractor, samples: Sequence[Sample]) -> UnitSignals:
    return extractor.compute(extractor.prepare(samples)).result()


def autograd_truth(model: Any, inputs: dict[str, torch.Tensor], segment: np.ndarray, *, shift: int = 0):
    """Return vectors and losses: a backward pass of the model's own forward for every segment of a sample alone.

    The gradient is read where the head gets its input: a scale that the model puts before is not yet in it.
    shift != 0 pairs targets with the wrong positions.
    """
    captured = []

    def keep(_module, args):
        captured.append(args[0].detach().requires_grad_(True))
        return (captured[-1],)

    hook = model.get_output_embeddings().register_forward_pre_hook(keep)
    vectors, losses = [], []
    for number in range(segment.max() + 1):
        captured.clear()
        logits = model(**inputs, use_cache=False).logits[0].float()
        positions = torch.from_numpy(np.flatnonzero(segment == number))
        loss = torch.nn.functional.cross_entropy(logits[positions - 1 + shift], inputs["input_ids"][0, positions])
        (gradient,) = torch.autograd.grad(loss, captured[0])
        vectors.append(gradient[0].sum(dim=0))
        losses.append(loss.detach())
    hook.remove()
    return torch.stack(vectors).numpy(), torch.stack(losses).numpy()


def text_truth(model: Any, extractor: ProxyExtractor, sample: Sample, *, shift: int = 0):
    """Return vectors and losses of a sample without images, by the extractor's own tokens."""
    tokens = extractor.prepare([sample]).tokens[0]
    ids = torch.from_numpy(tokens.ids).unsqueeze(0)
    return autograd_truth(model, {"input_ids": ids}, tokens.segment, shift=shift)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest relative difference of a row."""
    return float(np.max(np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)))
