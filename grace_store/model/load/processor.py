"""From a model folder to its processor for text and images: on PIL alone, and without videos."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name

from grace_store.base.errors import ModelError, SettingError

BACKEND = "pil"
"""Pixels differ by up to 3e-2 between image backends, so there is one, and it is part of a model's identity."""
_PARTS = ("image_processor", "tokenizer")
_IMAGES: Any = AutoImageProcessor


def read_processor(folder: Path, config: Any, tokenizer: Any) -> Any:
    """Return the processor of a vision-language model, around the tokenizer given; its chat template goes there too.

    It is of the class that the model's family has, made without what only videos need.
    """
    try:
        images = _IMAGES.from_pretrained(folder, backend=BACKEND, local_files_only=True, trust_remote_code=False)
        family = _processor_class(folder, config, images)
        settings, _ = family.get_processor_dict(folder, local_files_only=True)
        processor = _without_videos(family).from_args_and_dict((images, tokenizer), settings)
    except (ValueError, OSError, ImportError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).strip().split("\n", 1)[0].rstrip(".")
        raise ModelError(
            f"The image processor in {folder} cannot be used: {reason}. Expected preprocessor_config.json or "
            "processor_config.json beside the model, as save_pretrained of its processor writes them."
        ) from error
    if getattr(images, "backend", BACKEND) != BACKEND:
        raise ModelError(f"{type(images).__name__}, the image processor in {folder}, has no form that runs on PIL.")
    tokenizer.chat_template = processor.chat_template or tokenizer.chat_template
    return processor


def with_pixel_limits(processor: Any, min_pixels: int | None, max_pixels: int | None) -> Any:
    """Return the processor with other limits on how many pixels an image is brought to; None is its own."""
    if min_pixels is None and max_pixels is None:
        return processor
    images = processor.image_processor
    known = getattr(images.valid_kwargs, "__annotations__", {})
    size = dict(images.size or {})
    if "max_pixels" not in known or not {"shortest_edge", "longest_edge"} <= size.keys():
        raise SettingError(
            f"--min-pixels and --max-pixels have no meaning for this model: {type(images).__name__} brings all images "
            "to sizes of its own."
        )
    low, high = min_pixels or size["shortest_edge"], max_pixels or size["longest_edge"]
    if low > high:
        raise SettingError(f"--min-pixels {low} is more than --max-pixels {high}, given or the model's own.")
    limited = copy.copy(processor)
    limited.image_processor = copy.deepcopy(images)
    limited.image_processor.size = type(images.size)(**{**size, "shortest_edge": low, "longest_edge": high})
    return limited


def _processor_class(folder: Path, config: Any, images: Any) -> Any:
    if type(config) in PROCESSOR_MAPPING:
        return PROCESSOR_MAPPING[type(config)]
    named = getattr(images, "_processor_class", None)
    found = processor_class_from_name(named) if named else None
    if found is None:
        raise ValueError(f"{config.model_type} has no processor in transformers.")
    return found


def _without_videos(family: Any) -> Any:
    """Return a class of the same name and behaviour whose only parts are a tokenizer and an image processor."""
    needed = [name for name in family.get_attributes() if name not in (*_PARTS, "video_processor")]
    if needed:
        raise ValueError(f"{family.__name__} also needs {', '.join(needed)}.")

    def get_attributes(_cls: Any) -> list[str]:
        return list(_PARTS)

    return type(family.__name__, (family,), {"get_attributes": classmethod(get_attributes)})
