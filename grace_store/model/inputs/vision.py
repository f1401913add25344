"""From a rendered sample with images to all that a vision-language model is given. Knows nothing of devices.

The whole conversation goes through the model's processor once, and every key it returns is passed on: those of
every token and those of the images. The processor puts many tokens where the text has one mark, so the response is
counted from the end, and its tokens are compared with those of the text as it was rendered.
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
from grace_store.model.inputs.tokens import NO_SEGMENT, RenderedSample, TokenizedSample

ImageInputs = dict[str, Tensor]
"""The model's arguments that belong to images, by name; the first dimension counts images or their patches."""

_OF_IMAGES = re.compile(r"(?i)image|img|video|vision|(^|_)[be]oi_")
_AROUND = (("<|vision_start|>", "<|vision_end|>"), ("<vision_start>", "<vision_end>"))


@dataclass(slots=True)
class SampleImages:
    """The images of one sample, ready for the model."""

    digests: tuple[str, ...]
    """SHA-256 of each image's encoded bytes, in reading order."""
    kept: ImageInputs | None
    """None where there was no room to keep them."""
    make: Callable[[], ImageInputs]
    """Makes them anew."""
    keys: tuple[str, ...] = ()
    """What tells each image, as the processor made it, from other images; none where it is not known which of the
    inputs are whose."""

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.kept or {}).values())

    def inputs(self) -> ImageInputs:
        return self.make() if self.kept is None else self.kept

    def told_by(self, *, apart: bool) -> tuple[str, ...]:
        """Return what tells these images from those of other samples: each if they can be apart, or all together."""
        if apart and self.keys:
            return self.keys
        return (" ".join(self.digests),) if self.digests else ()


def image_mark(processor: Any) -> str:
    """Return the text that stands for an image where no template writes it."""
    vocabulary = processor.tokenizer.get_vocab()
    for start, stop in _AROUND:
        if start in vocabulary and stop in vocabulary:
            return f"{start}{processor.image_token}{stop}"
    return str(processor.image_token)


class VisionReader:
    """Puts samples through a processor. Safe to use from several threads."""

    def __init__(
        self,
        processor: Any,
        images: ImageFolder | None,
        *,
        add_special_tokens: bool,
        max_length: int,
        dtype: torch.dtype,
    ) -> None:
        """Take images as None to leave all images out."""
        self._processor = processor
        self._images = images
        self._add_special_tokens = add_special_tokens
        self._max_length = max_length
        self._dtype = dtype
        self.image_ids = frozenset(processor.image_token_ids)
        """The tokens that stand for images."""
        self._reserved = _reserved_words(processor)
        # Left over from whoever used it last, and changed by each call that finds it: not safe between threads.
        processor.tokenizer.backend_tokenizer.no_truncation()
        processor.tokenizer.backend_tokenizer.no_padding()

    def read(
        self, sample: Sample, rendered: RenderedSample, tokens: TokenizedSample
    ) -> tuple[TokenizedSample, SampleImages]:
        """Return a sample's tokens, image tokens among them, and its images; tokens are those of the rendered text."""
        self._check_words(sample)
        refs = sample.images if self._images is not None else []
        num_marks = rendered.text.count(self._processor.image_token)
        if num_marks != len(refs):
            raise Unusable(
                Reason.TEMPLATE_REWRITES, f"the chat template writes {num_marks} of the sample's {len(refs)} images"
            )
        pictures = self._open(refs)
        ids, token_inputs, image_inputs = self._process(rendered.text, pictures)
        if len(ids) > self._max_length:
            raise Unusable(Reason.TOO_LONG, f"{len(ids)} tokens with its images, at most {self._max_length}")
        expanded = TokenizedSample(ids, _counted_from_the_end(tokens, ids), tokens.num_segments, token_inputs)
        digests = tuple(sha256 for _, sha256 in pictures)
        again = partial(self._again, refs, rendered.text, digests)
        return expanded, SampleImages(digests, image_inputs, again, _image_keys(digests, image_inputs))

    def _open(self, refs: Sequence[ImageRef]) -> list[tuple[Image.Image, str]]:
        return [] if self._images is None else [self._images.open(ref) for ref in refs]

    def _again(self, refs: Sequence[ImageRef], text: str, digests: tuple[str, ...]) -> ImageInputs:
        """Return what was made before of the same images, or raise if they are others by now."""
        try:
            pictures = self._open(refs)
        except Unusable as verdict:
            raise DatasetChanged(f"An image cannot be read any more: {verdict.detail}.") from verdict
        if tuple(sha256 for _, sha256 in pictures) != digests:
            raise DatasetChanged("An image was changed while its unit was under way. Run the same command again.")
        return self._process(text, pictures)[2]

    def _check_words(self, sample: Sample) -> None:
        """Raise for texts that hold what the processor would take for an image."""
        texts = [part for turn in sample.turns for part in turn.parts if isinstance(part, str)]
        for word in self._reserved:
            if any(word in text for text in (*texts, sample.response)):
                raise Unusable(Reason.BAD_TEXT, f"the text holds {word}, which the model would take for an image")

    def _process(
        self, text: str, pictures: Sequence[tuple[Image.Image, str]]
    ) -> tuple[IntArray, dict[str, IntArray], ImageInputs]:
        """Return the ids, what else there is for every token, and what belongs to images."""
        try:
            made = dict(
                self._processor(
                    text=[text],
                    images=[[image for image, _ in pictures]] if pictures else None,
                    add_special_tokens=self._add_special_tokens,
                    return_tensors="pt",
                )
            )
        except Exception as error:
            if not pictures or devices.is_out_of_memory(error):
                raise
            sizes = ", ".join(f"{image.width} x {image.height}" for image, _ in pictures)
            raise Unusable(
                Reason.IMAGE_UNREADABLE, f"the image processor refuses it ({sizes} pixels): {in_words(error)}"
            ) from None
        ids = made.pop("input_ids")[0].numpy()
        of_images = {*self._processor.image_processor.model_input_names}
        token_inputs: dict[str, IntArray] = {}
        image_inputs: ImageInputs = {}
        for name, values in made.items():
            if name in of_images:
                image_inputs[name] = values.to(self._dtype) if values.is_floating_point() else values
            elif values.shape == (1, len(ids)):
                token_inputs[name] = values[0].numpy().astype(np.int64)
            else:
                raise ModelError(
                    f"{type(self._processor).__name__} returns {name} of shape {tuple(values.shape)}, which is neither "
                    f"of the {len(ids)} tokens nor of the images. The model cannot be used."
                )
        return ids, token_inputs, image_inputs


def join_images(samples: Sequence[ImageInputs]) -> ImageInputs:
    """Return the images of a batch, sample by sample; differing numbers of tiles or pixels are filled up with zeros.

    Models that take filled up images are also given their sizes, and cut them out again.
    """
    several = [inputs for inputs in samples if inputs]
    if not several:
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
    """Return the inputs of each of some images; none where it is not known which are whose."""
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


def _image_keys(digests: Sequence[str], inputs: ImageInputs) -> tuple[str, ...]:
    """Return the digest of each image with the form that the processor gave it, which may depend on those beside it."""
    return tuple(
        f"{digest} {_form(image)}" for digest, image in zip(digests, images_apart(inputs, len(digests)), strict=False)
    )


def _form(image: ImageInputs) -> str:
    """Return the shape of what an image became, and all of it that is not pixels."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in image.items():
        digest.update(f"{name} {tuple(tensor.shape)} ".encode())
        if not tensor.is_floating_point():
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _counted_from_the_end(tokens: TokenizedSample, ids: IntArray) -> IntArray:
    """Return the segments of the processor's ids, given the tokens of the text before images were put in."""
    first = int(np.flatnonzero(tokens.segment != NO_SEGMENT)[0])
    num_tail = tokens.num_tokens - first
    if num_tail > len(ids) or not np.array_equal(ids[len(ids) - num_tail :], tokens.ids[first:]):
        raise Unusable(Reason.TEMPLATE_REWRITES, "the processor makes other tokens of the response than its tokenizer")
    segment = np.full(len(ids), NO_SEGMENT, dtype=np.int64)
    segment[len(ids) - num_tail :] = tokens.segment[first:]
    return segment


def _reserved_words(processor: Any) -> tuple[str, ...]:
    """Return the words that stand for images or videos, whole or in part, as the processor and its tokenizer name them.

    Those that only mark their beginning, end or rows count too: some models look for them.
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
