"""What the vision tower makes of images, kept for as long as samples of a unit have them. Knows no samples.

A model's own forward asks itself for the features of its images (get_image_features). Where a probe has shown that the
features of several images are those of each by itself, put together, or at least those of several samples, it is given
what was made before.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grace_store.model import devices
from grace_store.model.head.own_forward import backbone_of
from grace_store.model.inputs.vision import ImageInputs, images_apart

MOST_BYTES = 2**30
"""What features may take on the device; beyond, they are made again when they are needed."""
Shown = tuple[tuple[str, ...], Callable[[], ImageInputs]]
"""What tells the images of a prompt from others', one by one or all in one, and what makes their inputs."""


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
