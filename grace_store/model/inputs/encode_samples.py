"""Turn the samples of a unit into tokens and images, or set them aside with a reason. Runs on the CPU."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from grace_store.base.arrays import IntArray
from grace_store.base.errors import GraceStoreError, SettingError
from grace_store.base.settings import ExtractSpec, ImagesAs
from grace_store.base.states import Reason, SetAside, Unusable
from grace_store.data.image_files import ImageFolder
from grace_store.data.sample import Sample
from grace_store.model import devices
from grace_store.model.devices import in_words
from grace_store.model.inputs.bounded_process import LimitReached
from grace_store.model.inputs.collate import Batch
from grace_store.model.inputs.tokens import (
    RenderedSample,
    Renderer,
    SampleTokenizer,
    TokenizedSample,
    place_of_tokens,
    segment_of_places,
    with_plain_offsets,
)
from grace_store.model.inputs.trainer_images import as_trainer
from grace_store.model.inputs.vision import ImageInputs, SampleImages, VisionReader, image_mark, join_images
from grace_store.model.load.weights import LoadedModel

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
U = TypeVar("U")

TOO_LONG = (
    "the vectors of such long samples may mean little. A new --signal with --max-length %d sets these samples aside"
)
"""The end of the warning about samples beyond the model's context, for a signal."""
UNIT_IMAGE_BYTES = 2**30
"""Largest size of the pixels of a waiting unit. Pixels beyond it are made again just before their use."""


@dataclass(slots=True)
class PreparedUnit:
    """The samples of a unit, by position: tokens (and images), or the reason why a sample is set aside."""

    tokens: dict[int, TokenizedSample] = field(default_factory=dict)
    images: dict[int, SampleImages] = field(default_factory=dict)
    """Images of every sample with tokens; empty for a model that reads only text."""
    set_aside: dict[int, SetAside] = field(default_factory=dict)
    num_rows: tuple[int, ...] = ()
    """Number of segments of each sample, set aside or not; empty until the batches are formed."""
    batches: list[Batch] = field(default_factory=list)


class SampleReader:
    """A reader of samples for one spec. Several threads may use it."""

    def __init__(
        self,
        loaded: LoadedModel,
        spec: ExtractSpec,
        vocab_size: int,
        images: str | Path | None = None,
        too_long: str = TOO_LONG,
    ) -> None:
        """Prepare to read samples; images is the folder of relative image paths, by default the current folder.

        too_long is the end of the warning about samples beyond the model's context, with the --max-length that fits.
        """
        self._made_of = (loaded, spec, vocab_size, images)
        self._too_long = too_long
        max_length = loaded.longest(spec.max_length)
        self._context = loaded.context
        self._renderer = Renderer(
            loaded.tokenizer,
            spec.rendering,
            system=spec.system,
            text_only=spec.text_only,
            include_eos=spec.include_eos,
            image_mark=None if loaded.processor is None else image_mark(loaded.processor),
        )
        self._tokenizer = SampleTokenizer(
            loaded.tokenizer,
            add_special_tokens=self._renderer.adds_special_tokens,
            include_eos=spec.include_eos,
            max_length=max_length,
            vocab_size=vocab_size,
        )
        if spec.include_eos and not self._tokenizer.has_marker(self._renderer.suffix):
            raise SettingError(
                "--include-eos has no effect: no end-of-turn token follows a response. Leave --include-eos out."
            )
        self._vision: VisionReader | None = None
        if loaded.processor is not None:
            processor, to_rgb = as_trainer(spec.images_as, loaded.processor, spec.min_pixels, spec.max_pixels)
            self._vision = VisionReader(
                processor,
                None if spec.text_only else ImageFolder(images or Path.cwd(), to_rgb),
                add_special_tokens=self._renderer.adds_special_tokens,
                max_length=max_length,
                dtype=next(loaded.model.parameters()).dtype,
            )

    @property
    def image_ids(self) -> frozenset[int]:
        return frozenset() if self._vision is None else self._vision.image_ids

    def with_images_as(self, images_as: ImagesAs) -> SampleReader:
        """Return a reader that prepares images in another way; raise SettingError if the model does not allow it."""
        loaded, spec, vocab_size, images = self._made_of
        changed = spec.model_copy(update={"images_as": images_as})
        return SampleReader(loaded, changed, vocab_size, images, self._too_long)

    def read(self, samples: Sequence[Sample]) -> PreparedUnit:
        """Return the tokens and images of each sample, or the reason why the sample is set aside."""
        unit = PreparedUnit()
        rendered: dict[int, RenderedSample] = {}
        for position, text in enumerate(_read_each(self._renderer.render, samples, samples)):
            if isinstance(text, Unusable):
                unit.set_aside[position] = text.why
            else:
                rendered[position] = text
        found = _read_each(self._tokenizer.tokenize, list(rendered.values()), [samples[place] for place in rendered])
        for position, made in zip(rendered, found, strict=True):
            if isinstance(made, Unusable):
                unit.set_aside[position] = made.why
            else:
                unit.tokens[position] = made
        if self._vision is not None:
            self._read_images(self._vision, samples, rendered, unit)
        longest = max((sample.num_tokens for sample in unit.tokens.values()), default=0)
        if self._context is not None and longest > self._context:
            # One warning only. Nothing else would show that samples are too long for the model.
            _LOG.warning(
                "samples have up to %d tokens, more than this model's context of %d "
                f"(max_position_embeddings): {self._too_long}",
                longest,
                self._context,
                self._context,
            )
            self._context = None
        return unit

    def _read_images(
        self, vision: VisionReader, samples: Sequence[Sample], rendered: dict[int, RenderedSample], unit: PreparedUnit
    ) -> None:
        room = UNIT_IMAGE_BYTES
        for position in list(unit.tokens):
            given = samples[position], rendered[position], unit.tokens.pop(position)
            (made,) = _read_each(lambda inputs: [vision.read(*each) for each in inputs], [given], [samples[position]])
            if isinstance(made, Unusable):
                unit.set_aside[position] = made.why
                continue
            unit.tokens[position], images = made
            room -= images.num_bytes
            unit.images[position] = images if room >= 0 else replace(images, kept=None)


def _read_each(
    read: Callable[[Sequence[T]], Sequence[U | Unusable]], inputs: Sequence[T], samples: Sequence[Sample]
) -> Sequence[U | Unusable]:
    """Read the inputs together or, if that fails, one by one; a failure that is not a sample's own is raised."""
    try:
        return read(inputs)
    except Exception as error:
        is_alone = len(inputs) == 1
        if is_alone and isinstance(error, LimitReached):
            raise error.about(f"the sample {samples[0].sample_id}") from None
        if devices.is_out_of_memory(error) or devices.is_lost(error):
            raise
        if isinstance(error, GraceStoreError) and not isinstance(error, Unusable | LimitReached):
            raise
        if is_alone:
            text = f"the sample cannot be encoded for this model: {in_words(error)}"
            return [error if isinstance(error, Unusable) else Unusable(Reason.BAD_TEXT, text)]
    return [made for each, sample in zip(inputs, samples, strict=True) for made in _read_each(read, [each], [sample])]


class ImageQueue:
    """A queue of the images of batches. Other threads make and join the images before their batch runs."""

    def __init__(
        self, images: dict[int, SampleImages], pool: ThreadPoolExecutor, device: torch.device = devices.CPU
    ) -> None:
        self._images = images
        self._pool = pool
        self._device = device
        self._coming: dict[tuple[int, ...], Future[ImageInputs]] = {}

    def announce(self, members: Sequence[int]) -> None:
        """Start to make the images of a batch that will run soon."""
        batch = tuple(members)
        several = [self._images[member] for member in batch if member in self._images]
        if not several or batch in self._coming:
            return
        # The pool starts tasks in order: when a join runs, the tasks that it waits for have started before it.
        made = [images.kept if images.kept is not None else self._pool.submit(images.make) for images in several]
        self._coming[batch] = self._pool.submit(self._join, made)

    def take(self, members: Sequence[int]) -> ImageInputs:
        """Return the images of a batch, joined in order; empty if the batch has none."""
        self.announce(members)
        coming = self._coming.pop(tuple(members), None)
        return {} if coming is None else coming.result()

    def _join(self, made: Sequence[ImageInputs | Future[ImageInputs]]) -> ImageInputs:
        joined = join_images([each.result() if isinstance(each, Future) else each for each in made])
        devices.make_current(self._device)  # of this thread of the pool
        return {name: devices.pin(tensor, self._device) for name, tensor in joined.items()}


class TokenCuts:
    """A function that cuts responses before the first token of each segment.

    If such a cut would change tokens (some tokenizers merge two line ends only at the end of a text), the white space
    before it goes to the next segment.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._backend = with_plain_offsets(tokenizer)
        self._known: dict[str, list[int]] = {}
        self.num_unlike = 0
        """Number of samples with parts that have other tokens than the whole for every possible cut."""

    def __call__(self, sample: Sample) -> list[int]:
        """Return the starts of the parts of a response, one for each segment, and the end of the last part."""
        text = sample.response
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids, offsets = encoding.ids, np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        segment = segment_of_places(place_of_tokens(text, offsets[:, 0], offsets[:, 1]), sample.bounds)
        firsts = np.searchsorted(segment, np.arange(1, len(sample.bounds) - 1))
        usual = [0, *(int(offsets[first, 0]) for first in firsts if first < len(ids)), len(text)]
        parts = [text[start:stop] for start, stop in itertools.pairwise(usual)]
        # One call for all parts that are usually needed, because every call takes a while.
        encodings = self._backend.encode_batch(parts, add_special_tokens=False)
        self._known = {part: each.ids for part, each in zip(parts, encodings, strict=True)}
        cuts, made, taken = [0], [], 0
        for number in range(1, len(sample.bounds) - 1):
            first = int(firsts[number - 1])
            token = next(self._places_to_cut(text, ids, offsets, (taken, first)), first)
            cuts.append(int(offsets[token, 0]) if token < len(ids) else len(text))
            made += self._ids(text[cuts[-2] : cuts[-1]])
            taken = token
        cuts.append(len(text))
        self.num_unlike += made + self._ids(text[cuts[-2] :]) != ids
        return cuts

    def _places_to_cut(self, text: str, ids: list[int], offsets: IntArray, tokens: tuple[int, int]) -> Iterator[int]:
        """Yield the tokens before which the text can be cut so that the text since the last cut keeps its tokens.

        tokens has two indices: the first token after the last cut, and the first token of the next segment. The latter
        is tried first, then the tokens before it while they are white space.
        """
        start, token = tokens
        while token > start:
            stop = int(offsets[token, 0]) if token < len(ids) else len(text)
            if self._ids(text[int(offsets[start, 0]) : stop]) == ids[start:token]:
                yield token
            token -= 1
            if text[int(offsets[token, 0]) : int(offsets[token, 1])].strip():
                return

    def _ids(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._backend.encode(text, add_special_tokens=False).ids
        return self._known[text]
