"""From a model folder to its processor for text and images: on PIL alone, and without videos."""

import copy
import inspect
import itertools
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name

from grace_store.base.errors import ModelError, SettingError

BACKEND = "pil"
"""Pixels differ by up to 3e-2 between image backends, so there is one, and it is part of a model's identity."""
_PARTS = ("image_processor", "tokenizer")
_FOR_VIDEOS = ("num2words",)
"""Packages that processors write the prompts of videos with."""
_UNREADABLE = (ValueError, OSError, KeyError, TypeError, AttributeError)
_IMAGES: Any = AutoImageProcessor
_IMAGE_PROCESSOR = re.compile(r"\w+ImageProcessor\w*")
_LONGEST = 300


def read_processor(folder: Path, named: Iterable[Any], config: Any, tokenizer: Any) -> Any:
    """Return a vision-language model's processor around the tokenizer given; its chat template goes there too.

    named are the names of classes that the folder's files give. The first that transformers has counts, else the class
    of the model's family. Either goes without the parts that only videos need.
    """
    images = _read_images(folder)
    try:
        family = _processor_class(named, config)
        settings, _ = family.get_processor_dict(folder, local_files_only=True)
        processor = _without_videos(family).from_args_and_dict(_parts(family, images, tokenizer), settings)
    except ImportError as error:
        raise ModelError(_missing_package(folder, error)) from error
    except _UNREADABLE as error:
        raise _unreadable(folder, error) from error
    if not hasattr(processor, "image_token"):
        raise ModelError(
            f"{type(processor).__name__}, the processor of {folder}, has no token that stands for an image among the "
            "words of a conversation. The model cannot be used."
        )
    tokenizer.chat_template = processor.chat_template or tokenizer.chat_template
    return processor


def _read_images(folder: Path) -> Any:
    try:
        images = _IMAGES.from_pretrained(folder, backend=BACKEND, local_files_only=True, trust_remote_code=False)
        kind = type(images).__name__
    except (ImportError, *_UNREADABLE) as error:
        named = _IMAGE_PROCESSOR.search(str(error))
        if named is None or "torchvision" not in str(error).lower():
            raise _unreadable(folder, error) from error
        images, kind = None, named[0]
    if getattr(images, "backend", None) != BACKEND:
        raise ModelError(
            f"{kind}, the image processor in {folder}, has no form that runs on PIL: it makes its pixels with "
            "torchvision alone, which is not used here, installed or not. The model cannot be used."
        )
    return images


def _unreadable(folder: Path, error: Exception) -> ModelError:
    return ModelError(
        f"The image processor in {folder} cannot be used: {_first_line(error)}. Expected preprocessor_config.json or "
        "processor_config.json beside the model, as save_pretrained of its processor writes them."
    )


def _missing_package(folder: Path, error: ImportError) -> str:
    kind = _first_line(error).partition(" ")[0]
    if "torchvision" in str(error).lower():
        return (
            f"{kind}, the processor that {folder} names, cannot be imported without torchvision, though images are "
            "made with PIL. Install torchvision in the version that fits torch."
        )
    return f"The processor in {folder} cannot be used: {_first_line(error)}."


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n", 1)[0].rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


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
    low, high = check_limits(min_pixels or size["shortest_edge"], max_pixels or size["longest_edge"])
    limits = {"shortest_edge": low, "longest_edge": high}
    return with_image_settings(processor, size=type(images.size)(**{**size, **limits}))


def check_limits(low: int, high: int) -> tuple[int, int]:
    """Return the least and the most pixels of an image, or raise SettingError if they exclude each other."""
    if low > high:
        raise SettingError(f"--min-pixels {low} is more than --max-pixels {high}, given or the model's own.")
    return low, high


def with_image_settings(processor: Any, **settings: Any) -> Any:
    """Return a processor whose image processor has other settings; the one given stays as it is."""
    changed = copy.copy(processor)
    changed.image_processor = copy.deepcopy(processor.image_processor)
    for name, value in settings.items():
        setattr(changed.image_processor, name, value)
    return changed


def _processor_class(named: Iterable[Any], config: Any) -> Any:
    """Return the first named class that transformers has, else that of the model's family."""
    for name in named:
        if isinstance(name, str) and (found := processor_class_from_name(name)) is not None:
            return found
    if type(config) in PROCESSOR_MAPPING:
        return PROCESSOR_MAPPING[type(config)]
    raise ValueError(f"{config.model_type} has no processor in transformers")


def _parts(family: Any, images: Any, tokenizer: Any) -> list[Any]:
    """Return what a processor is made of, in the order that it asks for."""
    known = {"image_processor": images, "tokenizer": tokenizer, "video_processor": None}
    names = [name for name in inspect.signature(family.__init__).parameters if name != "self"]
    return [known[name] for name in itertools.takewhile(known.__contains__, names)]


def _without_videos(family: Any) -> Any:
    """Return a class of the same name and behaviour whose only parts are a tokenizer and an image processor."""
    if needed := [name for name in family.get_attributes() if name not in (*_PARTS, "video_processor")]:
        raise ValueError(f"{family.__name__} also needs {', '.join(needed)}")
    module = sys.modules[family.__module__]
    for name in _FOR_VIDEOS:
        if getattr(module, name, name) is None:  # not installed, and asked for whether there are videos or not
            setattr(module, name, str)

    def get_attributes(_cls: Any) -> list[str]:
        return list(_PARTS)

    return type(family.__name__, (family,), {"get_attributes": classmethod(get_attributes), "video_processor": None})
