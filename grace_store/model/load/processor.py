"""Read the processor for text and images from a model folder. It uses only PIL, and it has no part for videos."""

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
"""The only image backend, which is part of a model's identity: pixels differ by up to 3e-2 between backends."""
_PARTS = ("image_processor", "tokenizer")
_UNREADABLE = (ValueError, OSError, KeyError, TypeError, AttributeError)
_IMAGES: Any = AutoImageProcessor
_MAX_WORDS = 300


def read_processor(folder: Path, named: Iterable[Any], config: Any, tokenizer: Any) -> Any:
    """Return a vision-language model's processor with the given tokenizer; set the tokenizer's chat template too.

    named has the class names in the folder's files. The first class that transformers has is used, else the class of
    the model's family, without the parts that only videos need.
    """
    images = _read_images(folder)
    try:
        found = (processor_class_from_name(name) for name in named if isinstance(name, str))
        family: Any = next((each for each in found if each is not None), None)
        if family is None and type(config) not in PROCESSOR_MAPPING:
            raise ValueError(f"{config.model_type} has no processor in transformers")
        family = family or PROCESSOR_MAPPING[type(config)]
        settings, _ = family.get_processor_dict(folder, local_files_only=True)
        # The parts of a processor, in the order of its arguments.
        known = {"image_processor": images, "tokenizer": tokenizer, "video_processor": None}
        names = [name for name in inspect.signature(family.__init__).parameters if name != "self"]
        parts = [known[name] for name in itertools.takewhile(known.__contains__, names)]
        processor = _without_videos(family).from_args_and_dict(parts, settings)
    except ImportError as error:
        if "torchvision" not in str(error).lower():
            raise ModelError(f"The processor in {folder} needs a package: {_first_line(error)}.") from error
        raise ModelError(
            f"{folder} names the processor {_first_line(error).partition(' ')[0]}. Its import needs torchvision, "
            "although grace-store prepares images with PIL. Install the version of torchvision that fits torch."
        ) from error
    except _UNREADABLE as error:
        raise _unreadable(folder, error) from error
    if not hasattr(processor, "image_token"):
        raise ModelError(
            f"The processor of {folder} ({type(processor).__name__}) has no token for an image in a conversation. Give "
            "another model."
        )
    tokenizer.chat_template = processor.chat_template or tokenizer.chat_template
    return processor


def _read_images(folder: Path) -> Any:
    try:
        images = _IMAGES.from_pretrained(folder, backend=BACKEND, local_files_only=True, trust_remote_code=False)
        kind = type(images).__name__
    except (ImportError, *_UNREADABLE) as error:
        named = re.search(r"\w+ImageProcessor\w*", str(error))
        if named is None or "torchvision" not in str(error).lower():
            raise _unreadable(folder, error) from error
        images, kind = None, named[0]
    if getattr(images, "backend", None) != BACKEND:
        raise ModelError(
            f"The image processor in {folder} ({kind}) needs torchvision and cannot run with PIL. grace-store never "
            "uses torchvision for images, even if torchvision is installed. Give another model."
        )
    return images


def _unreadable(folder: Path, error: Exception) -> ModelError:
    return ModelError(
        f"The image processor in {folder} cannot be used: {_first_line(error)}. Expected preprocessor_config.json or "
        "processor_config.json in the model folder. save_pretrained of the processor writes these files."
    )


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n", 1)[0].rstrip(".")
    return line if len(line) <= _MAX_WORDS else f"{line[: _MAX_WORDS - 1]}…"


def with_pixel_limits(processor: Any, min_pixels: int | None, max_pixels: int | None) -> Any:
    """Return the processor with other limits on the number of pixels of an image; None keeps its own limit."""
    if min_pixels is None and max_pixels is None:
        return processor
    images = processor.image_processor
    known = getattr(images.valid_kwargs, "__annotations__", {})
    size = dict(images.size or {})
    if "max_pixels" not in known or not {"shortest_edge", "longest_edge"} <= size.keys():
        raise SettingError(
            f"--min-pixels and --max-pixels cannot be used with this model: {type(images).__name__} resizes all images "
            "to its own sizes. Leave both options out."
        )
    low, high = check_limits(min_pixels or size["shortest_edge"], max_pixels or size["longest_edge"])
    return with_image_settings(processor, size=type(images.size)(**size | {"shortest_edge": low, "longest_edge": high}))


def check_limits(low: int, high: int) -> tuple[int, int]:
    """Return the limits on the number of pixels of an image; raise SettingError if they exclude each other."""
    if low > high:
        raise SettingError(
            f"The smallest image size ({low} pixels) is above the largest ({high} pixels). An option that was not "
            "given has the model's own value. Lower --min-pixels or raise --max-pixels."
        )
    return low, high


def with_image_settings(processor: Any, **settings: Any) -> Any:
    """Return a copy of a processor with other settings of its image processor."""
    changed = copy.copy(processor)
    changed.image_processor = copy.deepcopy(processor.image_processor)
    for name, value in settings.items():
        setattr(changed.image_processor, name, value)
    return changed


def _without_videos(family: Any) -> Any:
    """Return a class of the same name and behaviour with only a tokenizer and an image processor as parts."""
    if needed := [name for name in family.get_attributes() if name not in (*_PARTS, "video_processor")]:
        raise ValueError(f"{family.__name__} also needs {', '.join(needed)}")
    module: Any = sys.modules[family.__module__]
    if getattr(module, "num2words", "") is None:  # not installed, but required even if there are no videos
        module.num2words = str

    def get_attributes(_cls: Any) -> list[str]:
        return list(_PARTS)

    return type(family.__name__, (family,), {"get_attributes": classmethod(get_attributes), "video_processor": None})
