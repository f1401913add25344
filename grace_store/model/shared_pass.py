"""Run shared prompts and shared images of a unit through the model once. Knows no samples.

Each response runs after the keys and values of its prompt. Prompts run as a batch that is padded on the right. Their
keys and values are then shifted so that all prompts end at the same index, where the responses follow. Distances
between tokens stay as in a single sample, and only the indices before a shorter prompt are masked.

A model's forward computes the features of its images with its method get_image_features. If a probe has shown that
hidden states stay the same, the method returns features from an earlier call: per image, or per sample.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grace_store.base.errors import ModelError
from grace_store.model import devices
from grace_store.model.backbone import backbone_of, response_states, run_backbone
from grace_store.model.inputs.collate import SharedPrompts
from grace_store.model.inputs.vision import ImageInputs, images_apart

MOST_BYTES = 2**30
"""Largest size of the kept features on the device. Features beyond it are computed again for each use."""
Shown = tuple[tuple[str, ...], Callable[[], ImageInputs]]
"""The images of a prompt: their keys (one per image, or one for all images) and a function that makes their inputs."""


def shared_states(
    model: nn.Module, prompts: Mapping[str, Tensor], on_host: Mapping[str, Tensor], shared: SharedPrompts
) -> Tensor:
    """Return the inputs of the head for each response token, pass by pass: (tokens, d).

    prompts are the model's arguments for the prompts and their images, and on_host the same in host memory.
    """
    device = prompts["input_ids"].device
    first_places = places_after(model, on_host, shared.lengths)
    # Without a configuration, every layer of the cache keeps all keys, even if its attention has a window.
    cache: Any = DynamicCache()
    cache.layer_class_to_replicate = _PromptLayer
    run_backbone(model, **prompts, past_key_values=cache, use_cache=True)
    if not cache.layers:
        raise ModelError("the model keeps no keys and values")
    if shared.shift is not None:
        shift = devices.to_device(shared.shift, device)
        for layer in cache.layers:
            layer.keys, layer.values = _shifted(layer.keys, shift), _shifted(layer.values, shift)
    takes_positions = "position_ids" in inspect.signature(backbone_of(model).forward).parameters
    states = []
    for each in shared.passes:
        inputs: dict[str, Any] = {name: devices.to_device(tensor, device) for name, tensor in each.inputs.items()}
        if each.mask is not None:
            inputs["attention_mask"] = devices.to_device(each.mask, device)
        if takes_positions:
            places = first_places[each.prompt].unsqueeze(1) + torch.arange(inputs["input_ids"].shape[1])
            inputs["position_ids"] = devices.to_device(devices.pin(places, device), device)
        prompt = devices.to_device(each.prompt, device)
        for layer in cache.layers:
            layer.prompt = prompt
        inputs |= {"past_key_values": cache, "use_cache": True}
        states.append(response_states(model, inputs, devices.to_device(each.predecessor, device)))
    return torch.cat(states)


class _PromptLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A cache layer that keeps only the keys and values of its first call, and puts them before all later ones."""

    keys: Tensor
    values: Tensor
    prompt: Tensor | None = None
    """Index of the prompt of each response in the current pass."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            self.keys, self.values = _owned(key_states), _owned(value_states)
            return key_states, value_states
        return self._before(self.keys, key_states), self._before(self.values, value_states)

    def _before(self, of_prompts: Tensor, following: Tensor) -> Tensor:
        if len(of_prompts) == 1:
            return torch.cat((of_prompts.expand(len(following), *of_prompts.shape[1:]), following), dim=-2)
        assert self.prompt is not None
        return torch.cat((of_prompts.index_select(0, self.prompt), following), dim=-2)


def _owned(states: Tensor) -> Tensor:
    """Return the states; copy them if they are a view of a larger tensor (of queries, keys and values)."""
    return states if states.untyped_storage().nbytes() <= states.nbytes else states.clone()


def _shifted(states: Tensor, shift: Tensor) -> Tensor:
    """Return states (prompts, heads, tokens, size) with each prompt's tokens reordered by shift (prompts, tokens)."""
    return states.gather(-2, shift[:, None, :, None].expand_as(states))


def places_after(model: nn.Module, prompts: Mapping[str, Tensor], lengths: Tensor) -> Tensor:
    """Return the position of the first token after each prompt, in host memory.

    This is the prompt's length, or less if the model family has positions in images.
    """
    if not has_image_positions(model, prompts):
        return lengths
    mask = torch.arange(prompts["input_ids"].shape[1]) < lengths.unsqueeze(1)
    return image_positions(model, prompts, prompts["image_grid_thw"], mask).masked_fill(~mask, -1).amax(dim=(0, 2)) + 1


def packed_positions(model: nn.Module, inputs: Mapping[str, Tensor], lengths: Sequence[int]) -> Tensor:
    """Return position_ids (1, tokens), or (4, 1, tokens) if the model family has positions in images.

    The four rows are: position within the sample, which separates the samples; then time, height and width.
    """
    within: Tensor = inputs["position_ids"]
    if not has_image_positions(model, inputs):
        return within
    device = within.device
    rows = {
        name: pad_sequence(list(torch.split_with_sizes(inputs[name][0], list(lengths))), batch_first=True)
        for name in ("input_ids", "mm_token_type_ids")
    }
    longest = rows["input_ids"].shape[1]
    mask = torch.arange(longest, device=device) < torch.tensor(lengths, device=device).unsqueeze(1)
    positions = image_positions(model, rows, inputs["image_grid_thw"], mask)
    return torch.cat((within.unsqueeze(0), positions[:, mask].unsqueeze(1)))


def has_image_positions(model: nn.Module, inputs: Mapping[str, Tensor]) -> bool:
    """Tell whether tokens have positions in time, height and width: there are images and the family uses them."""
    return "image_grid_thw" in inputs and hasattr(backbone_of(model), "get_rope_index")


def image_positions(model: nn.Module, rows: Mapping[str, Tensor], grid: Tensor, mask: Tensor) -> Tensor:
    """Return positions in time, height and width, shape (3, samples, longest), of samples padded on the right."""
    given = {name: rows[name] for name in ("input_ids", "mm_token_type_ids")}
    positions: Tensor = backbone_of(model).get_rope_index(**given, image_grid_thw=grid, attention_mask=mask.long())[0]
    return positions


class VisionTower:
    """A model's vision tower, which runs outside the model's forward."""

    def __init__(self, model: nn.Module, device: torch.device, *, apart: bool) -> None:
        self.apart = apart
        """Whether each image may run alone; otherwise all images of a sample run together."""
        self._backbone: Any = backbone_of(model)
        self._device = device
        self._names = set(inspect.signature(self._backbone.get_image_features).parameters)

    def run(self, images: Mapping[str, Tensor]) -> Any:
        """Return the features of one image, or of several images of a sample, from the processor's output."""
        pinned = {name: devices.pin(each, self._device) for name, each in images.items() if name in self._names}
        on_device = {name: devices.to_device(each, self._device) for name, each in pinned.items()}
        with torch.inference_mode():
            made = self._backbone.get_image_features(**on_device, return_dict=True)
        return {name: made[name] for name in _JOIN if made.get(name) is not None}

    @contextmanager
    def given(self, several: Sequence[Any]) -> Iterator[None]:
        """Make the model's forward use these features, in the order of the images, instead of computing them."""
        joined = _Features({name: _JOIN[name]([each[name] for each in several]) for name in several[0]})
        self._backbone.get_image_features = lambda *_args, **_kwargs: joined
        try:
            yield
        finally:
            del self._backbone.get_image_features


class _Features(dict[str, Any]):
    """Features by name, also as attributes, like a model's outputs."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def _images_joined(several: Sequence[Any]) -> Any:
    """Return the features of all images: one tensor, or a list with one tensor per image."""
    if isinstance(several[0], Tensor):
        return torch.cat(list(several))
    return [image for each in several for image in each]


_JOIN: dict[str, Callable[[Sequence[Any]], Any]] = {
    "pooler_output": _images_joined,
    "deepstack_features": lambda several: [_images_joined(layers) for layers in zip(*several, strict=True)],
}
"""The outputs of a vision tower that models use, with the function that joins the outputs of several runs."""


class KeptFeatures:
    """Features of a unit's images, computed once for all prompts with the same image and dropped after the last use."""

    def __init__(self, tower: VisionTower | None, uses: Iterable[Shown]) -> None:
        """Count the uses of each image over all prompts. Without a tower, the model's forward computes features."""
        self._tower = tower
        self._left = Counter(key for keys, _ in uses for key in keys) if tower is not None else Counter()
        self._shared = {key for key, number in self._left.items() if number > 1}
        self._kept: dict[str, Any] = {}
        self.num_bytes = 0
        """Size of the kept features on the device."""
        self._most_bytes = MOST_BYTES if tower is not None else 0

    def give_up(self) -> bool:
        """Drop all features and keep none from now on; return whether this freed memory."""
        made_room = self.num_bytes > 0
        self._kept.clear()
        self.num_bytes = self._most_bytes = 0
        return made_room

    @contextmanager
    def for_batch(self, prompts: Sequence[Shown]) -> Iterator[None]:
        """Run the body of the with statement with the features of a batch's prompts."""
        used = [key for keys, _ in prompts for key in keys]
        if self._tower is None or self._shared.isdisjoint(used):
            yield
            return
        with self._tower.given([made for each in prompts for made in self._of(each, self._tower)]):
            yield
        for key in used:
            self._left[key] -= 1
            if self._left[key] <= 0 and key in self._kept:
                self.num_bytes -= _size(self._kept.pop(key))

    def _of(self, shown: Shown, tower: VisionTower) -> Iterator[Any]:
        """Yield the features of a prompt's images; run them together if no other prompt has any of them."""
        keys, make = shown
        if self._shared.isdisjoint(keys):
            yield from [tower.run(make())] if keys else []
            return
        apart: list[ImageInputs] = []
        for number, key in enumerate(keys):
            if key in self._kept:
                yield self._kept[key]
                continue
            apart = apart or images_apart(make(), len(keys))
            made = tower.run(apart[number])
            if self.num_bytes + _size(made) <= self._most_bytes:
                self._kept[key] = made
                self.num_bytes += _size(made)
            yield made


def _size(features: Any) -> int:
    if isinstance(features, Tensor):
        return features.nbytes
    return sum(map(_size, features.values() if isinstance(features, dict) else features))
