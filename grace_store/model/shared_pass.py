"""What samples of a unit have in common runs through the model once: prompts, and images. Knows no samples.

Each response runs after the keys and values of its prompt. Prompts begin together, padded on the right, as any batch
does. Their keys and values are then moved so that prompts end together, where responses follow: distances between
tokens are as in a sample by itself, and only the places before a shorter prompt are masked.

A model's own forward asks itself for the features of its images (get_image_features). It is given features that were
made before where a probe has shown that this changes nothing: image by image, or all images of a sample together.
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
"""What features may take on the device; beyond, they are made again when they are needed."""
Shown = tuple[tuple[str, ...], Callable[[], ImageInputs]]
"""What tells the images of a prompt from others', one by one or all in one, and what makes their inputs."""


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
            places = first_places[each.prompt].unsqueeze(1) + torch.arange(inputs["input_ids"].shape[1])
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
        cache: Any = DynamicCache()
        cache.layer_class_to_replicate = _PromptLayer
        self.arguments: dict[str, Any] = {"past_key_values": cache, "use_cache": True}
        run_backbone(model, **prompts, **self.arguments)
        self._layers = cache.layers
        if not self._layers:
            raise ModelError("it keeps no keys and values")
        if shared.shift is not None:
            shift = devices.to_device(shared.shift, device)
            for layer in self._layers:
                layer.keys, layer.values = _shifted(layer.keys, shift), _shifted(layer.values, shift)

    def look_from(self, prompt: Tensor) -> None:
        """Say which prompt each response of the next pass follows."""
        for layer in self._layers:
            layer.prompt = prompt


class _PromptLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keeps the keys and values that it is given first, and puts them before all others, which it does not keep."""

    keys: Tensor
    values: Tensor
    prompt: Tensor | None = None

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
    """Return the states by themselves, should they be part of something larger (of queries, keys and values in one)."""
    return states if states.untyped_storage().nbytes() <= states.nbytes else states.clone()


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


# ---------------------------------------------------------------- positions that a model does not find by itself


def packed_positions(model: nn.Module, inputs: Mapping[str, Tensor], lengths: Sequence[int]) -> Tensor:
    """Return position_ids (1, tokens), or (4, 1, tokens) where the family has positions in images too.

    Those are, row by row: within the sample, by which samples are told apart; then time, height and width.
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
    """Tell whether tokens have positions in time, height and width, as there are images and the family has these."""
    return "image_grid_thw" in inputs and hasattr(backbone_of(model), "get_rope_index")


def image_positions(model: nn.Module, rows: Mapping[str, Tensor], grid: Tensor, mask: Tensor) -> Tensor:
    """Return positions in time, height and width, (3, samples, longest), of samples padded on the right."""
    given = {name: rows[name] for name in ("input_ids", "mm_token_type_ids")}
    positions: Tensor = backbone_of(model).get_rope_index(**given, image_grid_thw=grid, attention_mask=mask.long())[0]
    return positions


# ---------------------------------------------------------------- features of images


class VisionTower:
    """A model's own features of images, made apart from its forward and given to it."""

    def __init__(self, model: nn.Module, device: torch.device, *, apart: bool) -> None:
        self.apart = apart
        """Whether each image may go through it by itself, or only all images of a sample together."""
        self._backbone: Any = backbone_of(model)
        self._device = device
        self._names = set(inspect.signature(self._backbone.get_image_features).parameters)

    def run(self, images: Mapping[str, Tensor]) -> Any:
        """Return the features of an image, or of several of one sample, given what the processor made of them."""
        given = {name: tensor for name, tensor in images.items() if name in self._names}
        on_device = {
            name: devices.to_device(devices.pin(each, self._device), self._device) for name, each in given.items()
        }
        with torch.inference_mode():
            made = self._backbone.get_image_features(**on_device, return_dict=True)
        return {name: made[name] for name in _JOIN if made.get(name) is not None}

    @contextmanager
    def given(self, several: Sequence[Any]) -> Iterator[None]:
        """Have the model's forward find the features of some images, in their order, instead of making them."""
        joined = _Features({name: _JOIN[name]([each[name] for each in several]) for name in several[0]})
        self._backbone.get_image_features = lambda *_args, **_kwargs: joined
        try:
            yield
        finally:
            del self._backbone.get_image_features


class _Features(dict[str, Any]):
    """Features by name, as attributes too, as a model's outputs are."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def _images_joined(several: Sequence[Any]) -> Any:
    """Return images end to end: one tensor of all, or a list with one for each."""
    if isinstance(several[0], Tensor):
        return torch.cat(list(several))
    return [image for each in several for image in each]


def _layers_joined(several: Sequence[Any]) -> Any:
    """Return the same of each layer whose features the model takes in."""
    return [_images_joined(layers) for layers in zip(*several, strict=True)]


_JOIN: dict[str, Callable[[Sequence[Any]], Any]] = {
    "pooler_output": _images_joined,
    "deepstack_features": _layers_joined,
}
"""What models take of their tower's output, and how that of several runs becomes one."""


class KeptFeatures:
    """Features of a unit's images: made once where several prompts have the same, dropped after the last of them."""

    def __init__(self, tower: VisionTower | None, uses: Iterable[Shown]) -> None:
        """Take the images of every prompt that will run; without a tower the model makes features as it always does."""
        self._tower = tower
        self._left = Counter(key for keys, _ in uses for key in keys) if tower is not None else Counter()
        self._shared = {key for key, number in self._left.items() if number > 1}
        self._kept: dict[str, Any] = {}
        self.num_bytes = 0
        """What they take on the device."""
        self._most_bytes = MOST_BYTES if tower is not None else 0

    def give_up(self) -> bool:
        """Drop all features, and keep none from now on; return whether that made room."""
        made_room = self.num_bytes > 0
        self._kept.clear()
        self.num_bytes = self._most_bytes = 0
        return made_room

    @contextmanager
    def for_batch(self, prompts: Sequence[Shown]) -> Iterator[None]:
        """Run what is inside with the features of a batch's prompts."""
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
        """Yield the features of a prompt's images; all together if no other prompt has any of them."""
        keys, make = shown
        if self._shared.isdisjoint(keys):
            yield from [tower.run(make())] if keys else []
            return
        apart: list[ImageInputs] = []
        for number, key in enumerate(keys):
            if key not in self._kept:
                apart = apart or images_apart(make(), len(keys))
                yield self._keep(key, tower.run(apart[number]))
            else:
                yield self._kept[key]

    def _keep(self, key: str, made: Any) -> Any:
        """Return features that were made, kept if there is room."""
        if self.num_bytes + _size(made) <= self._most_bytes:
            self._kept[key] = made
            self.num_bytes += _size(made)
        return made


def _size(features: Any) -> int:
    if isinstance(features, Tensor):
        return features.nbytes
    return sum(map(_size, features.values() if isinstance(features, dict) else features))
