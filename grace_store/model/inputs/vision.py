"""Turn a rendered sample with images into the arguments of a vision-language model. Knows nothing of devices.

The whole conversation goes through the model's processor once, and the model gets every array that the processor
returns, for tokens and for images. The processor replaces one image mark by many tokens. So the response is found from
the end, and its tokens are compared with the tokens of the rendered text.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from grace_store.base.arrays import IntArray
from grace_store.base.errors import DatasetChanged, ModelError
from grace_store.base.states import Reason, Unusable
from grace_store.data.image_files import ImageFolder
from grace_store.data.sample import ImageRef, Sample
from grace_store.model import devices
from grace_store.model.devices import in_words
from grace_store.model.inputs.bounded_process import LimitReached
from grace_store.model.inputs.tokens import NO_SEGMENT, RenderedSample, TokenizedSample

ImageInputs = dict[str, Tensor]
"""The model's arguments for images, by name; the first dimension counts images or their patches."""

_OF_IMAGES = re.compile(r"(?i)image|img|video|vision|(^|_)[be]oi_")
_AROUND = (("<|vision_start|>", "<|vision_end|>"), ("<vision_start>", "<vision_end>"))


@dataclass(slots=True)
class SampleImages:
    """The images of one sample, ready for the model."""

    digests: tuple[str, ...]
    """SHA-256 of each image's encoded bytes, in reading order."""
    kept: ImageInputs | None
    """The model's arguments for the images; None if there was no memory to keep them."""
    make: Callable[[], ImageInputs]
    """A function that makes the arguments again."""
    keys: tuple[str, ...] = ()
    """A key for each image in the processor's form; empty if the arguments cannot be assigned to single images."""

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.kept or {}).values())

    def inputs(self) -> ImageInputs:
        return self.make() if self.kept is None else self.kept

    def image_keys(self, *, apart: bool) -> tuple[str, ...]:
        """Return keys that identify these images among all samples: one per image if apart, else one for all."""
        if apart and self.keys:
            return self.keys
        return (" ".join(self.digests),) if self.digests else ()


def image_mark(processor: Any) -> str:
    """Return the text for an image in a conversation without a template."""
    vocabulary = processor.tokenizer.get_vocab()
    for start, stop in _AROUND:
        if start in vocabulary and stop in vocabulary:
            return f"{start}{processor.image_token}{stop}"
    return str(processor.image_token)


class VisionReader:
    """A reader that runs samples through a processor. Several threads may use it."""

    def __init__(
        self,
        processor: Any,
        images: ImageFolder | None,
        *,
        add_special_tokens: bool,
        max_length: int,
        dtype: torch.dtype,
    ) -> None:
        """Prepare to read samples; images of None leaves all images out."""
        self._processor = processor
        self._images = images
        self._add_special_tokens = add_special_tokens
        self._max_length = max_length
        self._dtype = dtype
        self.image_ids = frozenset(processor.image_token_ids)
        """The ids of the tokens for images."""
        self._reserved = _reserved_words(processor)
        # Settings of an earlier use. Every call would change them, which is not safe between threads.
        processor.tokenizer.backend_tokenizer.no_truncation()
        processor.tokenizer.backend_tokenizer.no_padding()

    def read(
        self, sample: Sample, rendered: RenderedSample, tokens: TokenizedSample
    ) -> tuple[TokenizedSample, SampleImages]:
        """Return a sample's tokens, with image tokens, and its images; tokens has the tokens of the rendered text."""
        texts = [part for turn in sample.turns for part in turn.parts if isinstance(part, str)]
        for word in self._reserved:
            if any(word in text for text in (*texts, sample.response)):
                raise Unusable(Reason.BAD_TEXT, f"the text has {word}, and the model would read {word} as an image")
        refs = sample.images if self._images is not None else []
        if (num_marks := rendered.text.count(self._processor.image_token)) != len(refs):
            raise Unusable(
                Reason.TEMPLATE_REWRITES, f"the chat template writes {num_marks} of the sample's {len(refs)} images"
            )
        pictures = self._open(refs)
        ids, token_inputs, image_inputs = self._process(rendered.text, pictures)
        if len(ids) > self._max_length:
            size = f"{len(ids)} tokens with its images"
            raise Unusable(Reason.TOO_LONG, f"the sample has {size}, at most {self._max_length} are allowed")
        segment = _counted_from_the_end(tokens, ids)
        expanded = TokenizedSample(ids, segment, tokens.num_segments, token_inputs, tokens.num_characters)
        digests = tuple(sha256 for _, sha256 in pictures)
        # The form of an image may depend on the other images of its sample, so it is part of the key.
        separate = zip(digests, images_apart(image_inputs, len(digests)), strict=False)
        keys = tuple(f"{digest} {_form(image)}" for digest, image in separate)
        return expanded, SampleImages(digests, image_inputs, partial(self._again, refs, rendered.text, digests), keys)

    def _open(self, refs: Sequence[ImageRef]) -> list[tuple[Image.Image, str]]:
        return [] if self._images is None else [self._images.open(ref) for ref in refs]

    def _again(self, refs: Sequence[ImageRef], text: str, digests: tuple[str, ...]) -> ImageInputs:
        """Make the arguments of the same images again; raise if an image has changed."""
        try:
            pictures = self._open(refs)
        except Unusable as error:
            raise DatasetChanged(f"An image can no longer be read: {error.detail}.") from error
        if tuple(sha256 for _, sha256 in pictures) != digests:
            raise DatasetChanged("An image changed while its unit was running. Run the same command again.")
        return self._process(text, pictures)[2]

    def _process(
        self, text: str, pictures: Sequence[tuple[Image.Image, str]]
    ) -> tuple[IntArray, dict[str, IntArray], ImageInputs]:
        """Return the ids, the other arguments per token, and the arguments for images."""
        try:
            images = [[image for image, _ in pictures]] if pictures else None
            options = {"add_special_tokens": self._add_special_tokens, "return_tensors": "pt"}
            made = dict(self._processor(text=[text], images=images, **options))
        except Exception as error:
            if not pictures or devices.is_out_of_memory(error) or isinstance(error, LimitReached):
                raise
            sizes = ", ".join(f"{image.width} x {image.height}" for image, _ in pictures)
            raise Unusable(
                Reason.IMAGE_UNREADABLE, f"the image processor refuses the images ({sizes} pixels): {in_words(error)}"
            ) from None
        ids = made.pop("input_ids")[0].numpy()
        token_inputs: dict[str, IntArray] = {}
        image_inputs: ImageInputs = {}
        for name, values in made.items():
            if name in self._processor.image_processor.model_input_names:
                image_inputs[name] = values.to(self._dtype) if values.is_floating_point() else values
            elif values.shape == (1, len(ids)):
                token_inputs[name] = values[0].numpy().astype(np.int64)
            else:
                raise ModelError(
                    f"{type(self._processor).__name__} returns {name} of shape {tuple(values.shape)}. This shape "
                    f"fits neither the {len(ids)} tokens nor the images. Give another model."
                )
        return ids, token_inputs, image_inputs


def join_images(samples: Sequence[ImageInputs]) -> ImageInputs:
    """Return the images of a batch, sample by sample, padded with zeros to the same number of tiles and pixels.

    Models with padded images also get their sizes, and remove the padding.
    """
    if not (several := [inputs for inputs in samples if inputs]):
        return {}
    return {name: _concatenated([inputs[name] for inputs in several]) for name in several[0]}


def _concatenated(tensors: Sequence[Tensor]) -> Tensor:
    largest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    if all(list(tensor.shape[1:]) == largest for tensor in tensors):
        return torch.cat(list(tensors))
    out = tensors[0].new_zeros((sum(len(tensor) for tensor in tensors), *largest))
    start = 0
    for tensor in tensors:
        out[(slice(start, start + len(tensor)), *(slice(size) for size in tensor.shape[1:]))] = tensor
        start += len(tensor)
    return out


def images_apart(inputs: ImageInputs, number: int) -> list[ImageInputs]:
    """Return the arguments of each image; an empty list if they cannot be assigned to single images."""
    if number == 1:
        return [inputs]
    grids = inputs.get("image_grid_thw")
    sizes = dict.fromkeys(inputs, [1] * number)
    if grids is not None:
        sizes["pixel_values"] = grids.prod(dim=1).tolist()
    if any(len(tensor) != sum(sizes[name]) for name, tensor in inputs.items()):
        return []
    parts = {name: torch.split_with_sizes(tensor, sizes[name]) for name, tensor in inputs.items()}
    return [{name: part[image] for name, part in parts.items()} for image in range(number)]


def _form(image: ImageInputs) -> str:
    """Return a digest of the shapes of an image's arguments and of all values that are not pixels."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in image.items():
        digest.update(f"{name} {tuple(tensor.shape)} ".encode())
        if not tensor.is_floating_point():
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _counted_from_the_end(tokens: TokenizedSample, ids: IntArray) -> IntArray:
    """Return the segments of the processor's ids; tokens has the text's tokens without image tokens."""
    first = int(np.flatnonzero(tokens.segment != NO_SEGMENT)[0])
    num_tail = tokens.num_tokens - first
    if num_tail > len(ids) or not np.array_equal(ids[len(ids) - num_tail :], tokens.ids[first:]):
        raise Unusable(Reason.TEMPLATE_REWRITES, "the processor and its tokenizer give the response different tokens")
    segment = np.full(len(ids), NO_SEGMENT, dtype=np.int64)
    segment[len(ids) - num_tail :] = tokens.segment[first:]
    return segment


def _reserved_words(processor: Any) -> tuple[str, ...]:
    """Return the words for images or videos, by the names in the processor and its tokenizer.

    Words for the beginning, the end or the rows of an image count too, because some models search for them.
    """
    tokenizer = processor.tokenizer
    named = {**vars(processor), **{name: getattr(tokenizer, name, None) for name in tokenizer.special_tokens_map}}
    words = {value for name, value in named.items() if name.endswith("_token") and _OF_IMAGES.search(name)}
    ids = {value for name, value in named.items() if name.endswith("_id") and _OF_IMAGES.search(name)}
    ids |= {*processor.image_token_ids}
    words |= {tokenizer.convert_ids_to_tokens(token) for token in ids if isinstance(token, int)}
    added = (token for token in tokenizer.added_tokens_decoder.values() if token.special)
    words |= {token.content for token in added if _OF_IMAGES.search(token.content)}
    words -= {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token}
    return tuple(sorted(str(word) for word in words if word))
