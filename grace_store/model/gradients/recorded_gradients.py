"""Gradients of LoRA factors for every sample of a batch, from one backward pass for all of them.

A factor is a linear layer without bias. Its gradient for one sample is the product of what came in and of what came
back, summed over the sample's own tokens: so both are caught on their way, and the factors' own gradients, which
would be sums over the batch, are never made. Knows nothing of texts or projections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from grace_store.model.lora.layers import ADAPTER

FACTORS = ("lora_A", "lora_B")


class NotBySample(Exception):
    """A layer was given something else than the tokens of each sample."""


class Recorder:
    """Collects the gradients of all recorded layers, by name, each (samples, elements) in float32."""

    def __init__(self) -> None:
        self._shape: tuple[int, int] | None = None
        self._lengths: tuple[int, ...] = ()
        self._found: dict[str, Tensor] = {}

    @property
    def is_on(self) -> bool:
        return self._shape is not None

    def start(self, shape: Sequence[int], packed_lengths: tuple[int, ...] = ()) -> None:
        """Record a batch of inputs of shape (samples, longest), or (1, tokens) with the samples end to end."""
        self._shape = (shape[0], shape[1])
        self._lengths = packed_lengths
        self._found = {}

    def stop(self) -> None:
        self._shape = None
        self._found = {}

    def take(self) -> dict[str, Tensor]:
        """Return what the last backward pass left, and forget it."""
        found, self._found = self._found, {}
        return found

    def add(self, name: str, incoming: Tensor, coming_back: Tensor) -> None:
        """Add a layer's gradient; a layer that is used twice gets the sum."""
        x, back = self._by_sample(name, incoming), self._by_sample(name, coming_back)
        if self._lengths:
            parts = [torch.split_with_sizes(tensor[0], list(self._lengths)) for tensor in (back, x)]
            made = torch.stack([left.t().float() @ right.float() for left, right in zip(*parts, strict=True)])
        else:
            made = torch.bmm(back.transpose(1, 2).float(), x.float())
        made = made.flatten(1)
        self._found[name] = self._found[name].add_(made) if name in self._found else made

    def _by_sample(self, name: str, tensor: Tensor) -> Tensor:
        """Return a layer's inputs or outputs as (samples, longest, features)."""
        assert self._shape is not None
        if tuple(tensor.shape[:-1]) not in (self._shape, (self._shape[0] * self._shape[1],)):
            raise NotBySample(f"{name} is given {tuple(tensor.shape)} for a batch of {self._shape} tokens")
        return tensor.reshape(*self._shape, tensor.shape[-1])


class _RecordedProduct(torch.autograd.Function):
    """x W', whose backward pass records W's gradient of each sample and gives W itself none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: RecordedLinear) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *coming_back: Tensor) -> tuple[Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.layer.recorder.add(ctx.layer.name, x, coming_back[0])
        return coming_back[0] @ weight if ctx.needs_input_grad[0] else None, None, None


class RecordedLinear(nn.Module):
    """A LoRA factor in place of peft's own."""

    def __init__(self, name: str, factor: nn.Linear, recorder: Recorder) -> None:
        super().__init__()
        self.name = name
        self.weight = factor.weight
        self.recorder = recorder

    def forward(self, x: Tensor) -> Tensor:
        if not self.recorder.is_on:
            return nn.functional.linear(x, self.weight)
        product: Tensor = _RecordedProduct.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
        return product


def record(layers: dict[str, LoraLayer]) -> Recorder:
    """Have layers, by their names in the adapter, record the gradients of their factors while the recorder is on."""
    recorder = Recorder()
    for name, layer in layers.items():
        for part in FACTORS:
            factors: Any = getattr(layer, part)
            factors[ADAPTER] = RecordedLinear(f"{name}.{part}", factors[ADAPTER], recorder)
    return recorder
