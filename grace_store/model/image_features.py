"""What the vision tower makes of images, kept for as long as samples of a unit have them. Knows no samples.

A model's own forward asks itself for the features of its images (get_image_features). Where a trial has shown that the
features of several samples are those of each by itself, put together, it is given what was made before.
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

MOST_BYTES = 2**30
"""What features may take on the device; beyond, they are made again when they are needed."""
Key = tuple[str, ...]
"""The digests of a sample's images."""


class VisionTower:
    """A model's own features of images, made apart from its forward and given to it."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._backbone: Any = backbone_of(model)
        self._device = device
        self._names = set(inspect.signature(self._backbone.get_image_features).parameters)

    def run(self, images: Mapping[str, Tensor]) -> Any:
        """Return the features of one sample's images, given what its processor made of them."""
        given = {name: tensor for name, tensor in images.items() if name in self._names}
        on_device = {
            name: devices.to_device(devices.pin(each, self._device), self._device) for name, each in given.items()
        }
        with torch.inference_mode():
            made = self._backbone.get_image_features(**on_device, return_dict=True)
        return {name: made[name] for name in _JOIN if made.get(name) is not None}

    @contextmanager
    def given(self, several: Sequence[Any]) -> Iterator[None]:
        """Have the model's forward find the features of some samples, in their order, instead of making them."""
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
    """Return the images of several samples end to end: one tensor of all, or a list with one for each."""
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
"""What models take of their tower's output, and how that of several samples becomes one."""


class KeptFeatures:
    """Features of a unit's images: made once where several prompts have the same, dropped after the last of them."""

    def __init__(self, tower: VisionTower | None, uses: Iterable[Key]) -> None:
        """Take the images of every prompt that will run; without a tower the model makes features as it always does."""
        self._tower = tower
        self._left = Counter(key for key in uses if key) if tower is not None else Counter()
        self._shared = {key for key, number in self._left.items() if number > 1}
        self._kept: dict[Key, Any] = {}
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
    def for_batch(self, prompts: Sequence[tuple[Key, Any]]) -> Iterator[None]:
        """Run what is inside with the features of a batch's prompts; each comes with what makes its images' inputs."""
        with_images = [(key, make) for key, make in prompts if key]
        if self._tower is None or self._shared.isdisjoint(key for key, _ in with_images):
            yield
            return
        with self._tower.given([self._of(key, make, self._tower) for key, make in with_images]):
            yield
        for key, _ in with_images:
            self._left[key] -= 1
            if self._left[key] <= 0 and key in self._kept:
                self.num_bytes -= _size(self._kept.pop(key))

    def _of(self, key: Key, make: Any, tower: VisionTower) -> Any:
        if key not in self._kept:
            made = tower.run(make())
            if self.num_bytes + _size(made) > self._most_bytes:
                return made
            self._kept[key] = made
            self.num_bytes += _size(made)
        return self._kept[key]


def _size(features: Any) -> int:
    if isinstance(features, Tensor):
        return features.nbytes
    return sum(map(_size, features.values() if isinstance(features, dict) else features))
