"""Inner products of the true parameter gradients of a sample's segments, for comparison with the proxy.

The gradient of a segment with respect to the backbone's parameters takes one backward pass from the last hidden state.
The output head's own parameters are left out. If the head shares its weight with the input embeddings, only the
gradient of the input side counts. The gradients of LoRA factors need no further pass: with the weight W + s B A and its
gradient G, they are s G A' for B and s B' G for A.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from grace_store.base.arrays import FloatArray as Gram
from grace_store.base.errors import ModelError
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.data.sample import Sample
from grace_store.model import devices
from grace_store.model.closed_form import alone
from grace_store.model.load.adapters import Adapter, lora_scale, place, read_adapter
from grace_store.model.load.resolve_spec import load_planned
from grace_store.model.load.weights import LoadedModel
from grace_store.model.unit_extractor import ProxyExtractor

REPRESENTATION = "representation"
"""All parameters that the last hidden state depends on."""
LORA = "lora"
"""The adapter's own parameters."""
GRADIENT_BYTES = 1 << 32
"""Memory for the gradients of all segments. If they need more, parameters are processed in groups."""
Named = tuple[str, nn.Parameter]
"""A parameter and its name."""
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")


def open_gradients(
    model: str,
    spec: ExtractSpec,
    options: RunOptions,
    *,
    adapter: str | None = None,
    images: str | Path | None = None,
    num_layer_groups: int = 0,
    lora: bool = True,
) -> TrueGradients:
    """Load the model of a signal; raise if this is another model."""
    _, loaded = load_planned(model, spec, options, adapter)
    with devices.watching(loaded.device):
        extractor = ProxyExtractor(loaded, spec, options, images=images)
        factors = read_adapter(adapter) if adapter is not None and lora else None
        return TrueGradients(loaded, extractor, factors, num_layer_groups=num_layer_groups)


class TrueGradients:
    """Inner products of a sample's segment gradients in parameter space."""

    def __init__(
        self,
        loaded: LoadedModel,
        extractor: ProxyExtractor,
        adapter: Adapter | None = None,
        *,
        num_layer_groups: int = 0,
        gradient_bytes: int = GRADIENT_BYTES,
    ) -> None:
        """Take a model with its adapter merged. Each of the layer groups also gets its own inner products."""
        self._extractor = extractor
        self._device = loaded.device
        self._bytes = gradient_bytes
        self._lora = {} if adapter is None else _factors(adapter, loaded.model, loaded.device)
        output, inputs = loaded.model.get_output_embeddings(), loaded.model.get_input_embeddings()  # type: ignore[operator]
        head = set() if output is None else {id(parameter) for parameter in output.parameters()}
        head -= {id(parameter) for parameter in inputs.parameters()}
        every = loaded.model.named_parameters()
        self._parameters = [(name, each) for name, each in every if id(each) not in head and each.is_floating_point()]
        """All floating-point parameters but the output head's, unless the input embeddings share them."""
        self._labels = _layer_groups(loaded.model, self._parameters, num_layer_groups)
        for _, parameter in self._parameters:
            parameter.requires_grad_(True)

    @property
    def spaces(self) -> list[str]:
        """The names of the sets of parameters with inner products of their own."""
        found = [REPRESENTATION, *([LORA] if self._lora else [])]
        groups = {label for label in self._labels.values() if label}
        return found + sorted(groups, key=lambda label: int(label.split()[1].partition("-")[0]))

    def grams(self, sample: Sample) -> dict[str, Gram] | None:
        """Return the (K + 1, K + 1) inner products for each set of parameters; None if the sample cannot be used."""
        if (prepared := self._extractor.prepare([sample])).set_aside:
            return None
        (batch,) = prepared.batches
        with devices.watching(self._device):
            with torch.enable_grad():
                hidden = self._extractor.hidden_states(batch, self._extractor.image_inputs(prepared, batch))
            tokens = batch.tokens_on(self._device)
            with torch.no_grad():  # dL/dh of every token: segments of one token each
                means = self._extractor.head.segment_means(hidden.detach(), alone(tokens.target), len(hidden))
            weights = [((tokens.segment == k) * tokens.weight).unsqueeze(1) for k in range(tokens.num_segments)]
            cotangents = [(means.vector * weight).to(hidden.dtype) for weight in weights]
            grams = {space: np.zeros((len(cotangents), len(cotangents))) for space in self.spaces}
            for group in self._groups(len(cotangents)):
                self._add(grams, hidden, cotangents, group)
        return grams

    def _groups(self, num_segments: int) -> Iterator[list[Named]]:
        """Yield groups of parameters, the last layers first, so that the gradients of a group fit into memory."""
        group: list[Named] = []
        num_bytes = 0
        for name, parameter in reversed(self._parameters):
            needed = parameter.numel() * parameter.element_size() * num_segments
            if group and num_bytes + needed > self._bytes:
                yield group
                group, num_bytes = [], 0
            group.append((name, parameter))
            num_bytes += needed
        if group:
            yield group

    def _add(
        self, grams: dict[str, Gram], hidden: Tensor, cotangents: Sequence[Tensor], group: Sequence[Named]
    ) -> None:
        """Add the inner products of a group; skip parameters that the sample does not use."""
        parameters = [parameter for _, parameter in group]
        options = {"retain_graph": True, "allow_unused": True}
        found = [torch.autograd.grad(hidden, parameters, cotangent, **options) for cotangent in cotangents]
        for (name, _), gradients in zip(group, zip(*found, strict=True), strict=True):
            if gradients[0] is None:
                continue
            product = _products(gradients)
            grams[REPRESENTATION] += product
            if self._labels[name]:
                grams[self._labels[name]] += product
            if name in self._lora:
                a, b, scale, transposed = self._lora[name]
                whole = [(gradient.T if transposed else gradient).float() for gradient in gradients]
                over_b = _products([scale * gradient @ a.T for gradient in whole])
                grams[LORA] += _products([scale * b.T @ gradient for gradient in whole]) + over_b


def _products(gradients: Sequence[Tensor]) -> Gram:
    flat = torch.stack([gradient.flatten().float() for gradient in gradients])
    return (flat @ flat.T).double().cpu().numpy()


def _factors(adapter: Adapter, model: nn.Module, device: torch.device) -> dict[str, tuple[Tensor, Tensor, float, bool]]:
    """Return A, B and s of each weight W + s B A, and whether the weight has the shape (inputs, outputs)."""
    if adapter.folder.config.get("use_dora"):
        raise ModelError(
            f"{adapter.folder.path} is DoRA. Gradients of DoRA's parameters are not supported here. Leave the "
            "adapter's own parameters out with --no-lora."
        )
    modules = dict(model.named_modules())
    placed = place(adapter, model)
    if model.get_output_embeddings() in [modules[module] for module in placed.values()]:  # type: ignore[operator]
        raise ModelError(
            f"{adapter.folder.path} also adapts the output head. Gradients of the head's parameters are not supported "
            "here. Leave the adapter's own parameters out with --no-lora."
        )
    return {
        f"{module}.weight": (
            adapter.lora[name]["lora_A"].to(device, torch.float32),
            adapter.lora[name]["lora_B"].to(device, torch.float32),
            lora_scale(adapter, name),
            isinstance(modules[module], Conv1D),
        )
        for name, module in placed.items()
    }


def _layer_groups(model: nn.Module, parameters: Sequence[Named], num_groups: int) -> dict[str, str]:
    """Return each parameter's group of decoder layers; "" for a parameter outside the layers or without groups."""
    decoder: Any = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model  # type: ignore[operator]
    inside = {id(parameter) for parameter in decoder.parameters()}
    found = {name: _LAYER.search(name) for name, parameter in parameters if id(parameter) in inside}
    layers = {name: int(match[1]) for name, match in found.items() if match}
    labels = dict.fromkeys((name for name, _ in parameters), "")
    if num_groups and layers:
        num_layers = max(layers.values()) + 1
        width = math.ceil(num_layers / min(num_groups, num_layers))
        for name, layer in layers.items():
            first = layer // width * width
            labels[name] = f"layers {first}-{min(first + width, num_layers) - 1}"
    return labels
