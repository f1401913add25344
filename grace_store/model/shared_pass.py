"""Prompts through the model once, and each response after the keys and values of its prompt. Knows no samples.

Prompts begin together, padded on the right, as any batch does. Their keys and values are then moved so that prompts end
together, where responses follow: distances between tokens are as in a sample by itself, whatever the model makes of
them, and only what lies before a shorter prompt is masked.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grace_store.base.errors import ModelError
from grace_store.model import devices
from grace_store.model.head.own_forward import backbone_of, response_states, run_backbone
from grace_store.model.inputs.collate import SharedPrompts
from grace_store.model.inputs.packing import has_image_positions, image_positions


def shared_states(
    model: nn.Module, prompts: Mapping[str, Tensor], shared: SharedPrompts, first_places: Tensor, device: torch.device
) -> Tensor:
    """Return what the head is given for each response token, pass by pass: (tokens, d).

    prompts are the model's arguments of the prompts and their images; first_places is, for each prompt, the position of
    the first token after it, in main memory.
    """
    kept = PromptKeys(model, prompts, shared, device)
    takes_positions = "position_ids" in inspect.signature(backbone_of(model).forward).parameters
    states = []
    for each in shared.passes:
        inputs = {name: devices.to_device(tensor, device) for name, tensor in each.inputs.items()}
        if each.mask is not None:
            inputs["attention_mask"] = devices.to_device(each.mask, device)
        if takes_positions:
            places = first_places[each.prompt].unsqueeze(1) + each.within
            inputs["position_ids"] = devices.to_device(devices.pin(places, device), device)
        kept.look_from(devices.to_device(each.prompt, device))
        predecessor = devices.to_device(each.predecessor, device)
        states.append(response_states(model, {**inputs, **kept.arguments}, predecessor))
    return torch.cat(states)


class PromptKeys:
    """The keys and values of prompts in every layer, for responses to look back at."""

    def __init__(
        self, model: nn.Module, prompts: Mapping[str, Tensor], shared: SharedPrompts, device: torch.device
    ) -> None:
        # Without a configuration every layer keeps all it is given, also one that looks back at a window only.
        self._cache = DynamicCache()
        self.arguments: dict[str, Any] = {"past_key_values": self._cache, "use_cache": True}
        run_backbone(model, **prompts, **self.arguments)
        shift = None if shared.shift is None else devices.to_device(shared.shift, device)
        shape = tuple(prompts["input_ids"].shape)
        self._layers = [_Followed(layer, shape, shift) for layer in self._cache.layers]
        if not self._layers:
            raise ModelError("it keeps no keys and values")

    def look_from(self, prompt: Tensor) -> None:
        """Say which prompt each response of the next pass follows."""
        for layer in self._layers:
            layer.prompt = prompt


class _Followed:
    """What stands for a layer's update: keys and values of prompts before those of responses, which are not kept."""

    def __init__(self, layer: Any, shape: tuple[int, ...], shift: Tensor | None) -> None:
        kind = type(layer)
        if kind is not DynamicLayer or (layer.keys.shape[0], layer.keys.shape[-2]) != shape:
            raise ModelError(f"it keeps a {kind.__name__}, not the keys and values of every token")
        if shift is not None:
            layer.keys, layer.values = _shifted(layer.keys, shift), _shifted(layer.values, shift)
        # Not the layer itself: nothing would free the memory of a layer and this if each held the other.
        self._keys, self._values = layer.keys, layer.values
        self.prompt: Tensor | None = None
        layer.update = self

    def __call__(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._before(self._keys, keys), self._before(self._values, values)

    def _before(self, of_prompts: Tensor, following: Tensor) -> Tensor:
        if len(of_prompts) == 1:
            return torch.cat((of_prompts.expand(len(following), *of_prompts.shape[1:]), following), dim=-2)
        assert self.prompt is not None
        return torch.cat((of_prompts.index_select(0, self.prompt), following), dim=-2)


def _shifted(states: Tensor, shift: Tensor) -> Tensor:
    """Return (prompts, heads, tokens, size) with each prompt's tokens where the shift says."""
    return states.gather(-2, shift[:, None, :, None].expand_as(states))


def places_after(model: nn.Module, prompts: Mapping[str, Tensor], lengths: Tensor) -> Tensor:
    """Return the position of the first token after each prompt; all of it in main memory.

    That is its length, or less where the family has positions in images too.
    """
    if not has_image_positions(model, prompts):
        return lengths
    mask = torch.arange(prompts["input_ids"].shape[1]) < lengths.unsqueeze(1)
    positions = image_positions(model, prompts, prompts["image_grid_thw"], mask)
    return positions.masked_fill(~mask, -1).amax(dim=(0, 2)) + 1
