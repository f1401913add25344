"""Prepare images as a trainer does: conversion to RGB, and size. There is one entry for each trainer.

    processor       upright, transparent parts white, size by the model's processor; TRL does the same
    ms-swift        not rotated, transparency dropped; for Qwen's families with its own limits on the size
    llama-factory   not rotated, transparency dropped; with its own limits on the size before the processor's

Each entry was compared with the trainer itself: jobs/trainers/record.py records the trainer's output for every kind of
image.
"""

import math
from collections.abc import Callable
from typing import Any

from PIL import Image

from grace_store.base.errors import SettingError
from grace_store.base.settings import ImagesAs
from grace_store.data.image_files import ToRgb, upright_on_white
from grace_store.model.load.processor import check_limits, with_image_settings, with_pixel_limits

_QWEN = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")
_MEASURED = (*_QWEN, "LlavaProcessor")
"""Processors of the model families that were compared with the trainers."""
_QWEN_TOKENS = (4, 16384)
"""Smallest and largest number of tokens of an image in qwen_vl_utils, and so in ms-swift."""
_QWEN_RATIO = 200
"""Largest aspect ratio. qwen_vl_utils and transformers refuse longer images, and LLaMA-Factory widens them."""
_FACTORY_PIXELS = (32 * 32, 768 * 768)
_FACTORY_SIDE, _FACTORY_RATIO = 28, 180
"""LLaMA-Factory's shortest side of Qwen's images, and the aspect ratio that it gives to images beyond _QWEN_RATIO."""

Limit = int | None

Prepared = tuple[Any, ToRgb]
"""The processor for images, and the function that converts them to RGB first."""


def as_trainer(images_as: ImagesAs, processor: Any, min_pixels: Limit, max_pixels: Limit) -> Prepared:
    """Return the processor and the conversion of a trainer for a model; a limit of None is the trainer's own."""
    if images_as != "processor" and (kind := type(processor).__name__) not in _MEASURED:
        raise SettingError(
            f"--images-as {images_as} cannot be used with this model: grace-store does not know how {images_as} "
            f"prepares images for {kind}. Leave --images-as out."
        )
    return TRAINERS[images_as](processor, min_pixels, max_pixels)


def _as_ms_swift(processor: Any, low: Limit, high: Limit) -> Prepared:
    if type(processor).__name__ not in _QWEN:
        return with_pixel_limits(processor, low, high), _plain_rgb
    side = processor.image_processor.patch_size * processor.image_processor.merge_size
    # ms-swift counts its limits in tokens.
    tokens = [own if limit is None else limit // side**2 for limit, own in zip((low, high), _QWEN_TOKENS, strict=True)]
    least, most = check_limits(tokens[0] * side**2, tokens[1] * side**2)

    def to_rgb(image: Image.Image) -> Image.Image:
        return _plain_rgb(image).resize(_qwen_size(image.size, side, least, most))

    return with_image_settings(processor, do_resize=False), to_rgb


def _plain_rgb(image: Image.Image) -> Image.Image:
    image.info.pop("transparency", None)  # the conversion would drop it with a warning from Pillow
    return image.convert("RGB")


def _qwen_size(size: tuple[int, int], side: int, least: int, most: int) -> tuple[int, int]:
    """Return the size that qwen_vl_utils gives an image: a whole number of tokens on each side."""
    if max(size) > _QWEN_RATIO * min(size):
        raise ValueError(f"absolute aspect ratio must be smaller than {_QWEN_RATIO}, got {max(size) / min(size)}")
    width, height = (max(side, round(length / side) * side) for length in size)
    if width * height > most:
        scale = math.sqrt(size[0] * size[1] / most)
        width, height = (math.floor(length / scale / side) * side for length in size)
    elif width * height < least:
        scale = math.sqrt(least / (size[0] * size[1]))
        width, height = (math.ceil(length * scale / side) * side for length in size)
    return width, height


def _as_llama_factory(processor: Any, low: Limit, high: Limit) -> Prepared:
    least, most = check_limits(low or _FACTORY_PIXELS[0], high or _FACTORY_PIXELS[1])
    is_qwen = type(processor).__name__ in _QWEN

    def to_rgb(image: Image.Image) -> Image.Image:
        # Resize in the image's own mode: Pillow picks other pixels for a palette than for colours.
        if image.width * image.height > most:
            image = _of_pixels(image, most)
        if image.width * image.height < least:
            image = _of_pixels(image, least)
        image = _plain_rgb(image)
        if is_qwen and min(image.size) < _FACTORY_SIDE:
            image = image.resize((max(image.width, _FACTORY_SIDE), max(image.height, _FACTORY_SIDE)))
        if is_qwen and image.width > _QWEN_RATIO * image.height:
            image = image.resize((image.height * _FACTORY_RATIO, image.height))
        if is_qwen and image.height > _QWEN_RATIO * image.width:
            image = image.resize((image.width, image.width * _FACTORY_RATIO))
        return image

    return processor, to_rgb


def _of_pixels(image: Image.Image, pixels: int) -> Image.Image:
    scale = math.sqrt(pixels / (image.width * image.height))
    return image.resize((int(image.width * scale), int(image.height * scale)))


TRAINERS: dict[ImagesAs, Callable[[Any, Limit, Limit], Prepared]] = {
    "processor": lambda processor, low, high: (with_pixel_limits(processor, low, high), upright_on_white),
    "ms-swift": _as_ms_swift,
    "llama-factory": _as_llama_factory,
}
