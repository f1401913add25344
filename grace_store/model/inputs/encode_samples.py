"""From the samples of a unit to tokens and images, or to the reason why not. CPU work only."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

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
from grace_store.model.load.weights import LoadedModel, describe_model

_LOG = logging.getLogger(__name__)

TOO_LONG = "their vectors may mean little. A new --signal with --max-length %d sets them aside"
"""What it means for a signal that samples are longer than the model is made for."""
UNIT_IMAGE_BYTES = 2**30
"""What the pixels of a unit may take while it waits; those beyond are made again right before they are needed."""


@dataclass(slots=True)
class PreparedUnit:
    """What became of each sample, by its position in the unit: tokens (and images), or a reason."""

    tokens: dict[int, TokenizedSample] = field(default_factory=dict)
    images: dict[int, SampleImages] = field(default_factory=dict)
    """Of a vision-language model, for every sample that has tokens."""
    set_aside: dict[int, SetAside] = field(default_factory=dict)
    num_rows: tuple[int, ...] = ()
    """Segments of each sample, set aside or not; empty, as the batches, until these are formed."""
    batches: list[Batch] = field(default_factory=list)


class SampleReader:
    """Reads samples as one spec says. Safe to use from several threads."""

    def __init__(
        self,
        loaded: LoadedModel,
        spec: ExtractSpec,
        vocab_size: int,
        images: str | Path | None = None,
        too_long: str = TOO_LONG,
    ) -> None:
        """Take images, the folder that image paths are in; by default the current one.

        too_long says what follows from samples beyond the model's context, and the --max-length that fits it.
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
                "--include-eos has no meaning here: nothing that ends a turn is written after a response."
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
        """The tokens that stand for images."""
        return frozenset() if self._vision is None else self._vision.image_ids

    def with_images_as(self, images_as: ImagesAs) -> SampleReader:
        """Return what reads the same but for its images; raises SettingError where that has no meaning."""
        loaded, spec, vocab_size, images = self._made_of
        changed = spec.model_copy(update={"images_as": images_as})
        return SampleReader(loaded, changed, vocab_size, images, self._too_long)

    def read(self, samples: Sequence[Sample]) -> PreparedUnit:
        """Return what became of each sample."""
        unit = PreparedUnit()
        rendered: dict[int, RenderedSample] = {}
        for position, sample in enumerate(samples):
            with _set_aside(unit, position):
                rendered[position] = self._renderer.render(sample)
        for position, made in zip(rendered, self._tokenize(list(rendered.values())), strict=True):
            if isinstance(made, Unusable):
                unit.set_aside[position] = made.why
            else:
                unit.tokens[position] = made
        if self._vision is not None:
            self._read_images(self._vision, samples, rendered, unit)
        self._warn_of_context(unit.tokens.values())
        return unit

    def _warn_of_context(self, tokens: Iterable[TokenizedSample]) -> None:
        """Say once that samples are longer than the model is said to be made for: nothing else would show it."""
        longest = max((sample.num_tokens for sample in tokens), default=0)
        if self._context is not None and longest > self._context:
            _LOG.warning(
                "samples of up to %d tokens are longer than the %d that this model says it is made for "
                f"(max_position_embeddings): {self._too_long}",
                longest,
                self._context,
                self._context,
            )
            self._context = None

    def _tokenize(self, rendered: Sequence[RenderedSample]) -> list[TokenizedSample | Unusable]:
        try:
            return self._tokenizer.tokenize(rendered)
        except Exception as error:
            if devices.is_out_of_memory(error):
                raise
            if len(rendered) == 1:
                return [Unusable(Reason.BAD_TEXT, f"the tokenizer fails on it: {in_words(error)}")]
        return [made for each in rendered for made in self._tokenize([each])]

    def _read_images(
        self, vision: VisionReader, samples: Sequence[Sample], rendered: dict[int, RenderedSample], unit: PreparedUnit
    ) -> None:
        room = UNIT_IMAGE_BYTES
        for position in list(unit.tokens):
            tokens = unit.tokens.pop(position)
            with _set_aside(unit, position):
                unit.tokens[position], images = vision.read(samples[position], rendered[position], tokens)
                room -= images.num_bytes
                unit.images[position] = images if room >= 0 else replace(images, kept=None)


@contextmanager
def _set_aside(unit: PreparedUnit, position: int) -> Iterator[None]:
    """Set a sample aside whose reading fails, whatever the reason, unless that is none of its own."""
    try:
        yield
    except Unusable as verdict:
        unit.set_aside[position] = verdict.why
    except GraceStoreError:
        raise
    except Exception as error:
        if devices.is_out_of_memory(error) or devices.is_lost(error):
            raise
        unit.set_aside[position] = SetAside(
            Reason.BAD_TEXT, f"it cannot be read as the model is given it: {in_words(error)}"
        )


class ImageQueue:
    """Hands out the images of one batch after the other, made and joined by other threads ahead of their turn."""

    def __init__(
        self, images: dict[int, SampleImages], pool: ThreadPoolExecutor, device: torch.device = devices.CPU
    ) -> None:
        self._images = images
        self._pool = pool
        self._device = device
        self._coming: dict[tuple[int, ...], Future[ImageInputs]] = {}

    def announce(self, members: Sequence[int]) -> None:
        """Start on the images of a batch that will soon be asked for."""
        batch = tuple(members)
        several = [self._images[member] for member in batch if member in self._images]
        if not several or batch in self._coming:
            return
        # The pool takes tasks in turn: whenever one that joins runs, those it waits for have been taken before it.
        made = [images.kept if images.kept is not None else self._pool.submit(images.make) for images in several]
        self._coming[batch] = self._pool.submit(self._join, made)

    def take(self, members: Sequence[int]) -> ImageInputs:
        """Return the images of a batch, joined in order; empty if it has none."""
        self.announce(members)
        coming = self._coming.pop(tuple(members), None)
        return {} if coming is None else coming.result()

    def _join(self, made: Sequence[ImageInputs | Future[ImageInputs]]) -> ImageInputs:
        joined = join_images([each.result() if isinstance(each, Future) else each for each in made])
        devices.make_current(self._device)  # of this thread, which is the pool's
        return {name: devices.pin(tensor, self._device) for name, tensor in joined.items()}


# ---------------------------------------------------------------- parts that have the tokens of the whole


class TokenCuts:
    """Cuts responses at their segments' first tokens, as a model's tokenizer makes them.

    Where that would change tokens (some tokenizers take two line ends for one token only if nothing follows), tokens of
    white space go with the segment after them.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._backend = with_plain_offsets(tokenizer)
        self.num_unlike = 0
        """Samples whose parts have other tokens than the whole, wherever they are cut."""

    @classmethod
    def of_model(cls, model: str) -> Self:
        """Return the cuts of a model's tokenizer; its weights are not loaded."""
        return cls(describe_model(model).tokenizer)

    def __call__(self, sample: Sample) -> list[int]:
        """Return where the parts of a response begin, one for each segment, and where the last one ends."""
        text = sample.response
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids, offsets = encoding.ids, np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        segment = segment_of_places(place_of_tokens(text, offsets[:, 0], offsets[:, 1]), sample.bounds)
        cuts, made, taken = [0], [], 0
        for number in range(1, len(sample.bounds) - 1):
            first = int(np.searchsorted(segment, number))
            token = next(self._places_to_cut(text, ids, offsets, (taken, first)), first)
            cuts.append(int(offsets[token, 0]) if token < len(ids) else len(text))
            made += self._ids(text[cuts[-2] : cuts[-1]])
            taken = token
        cuts.append(len(text))
        self.num_unlike += made + self._ids(text[cuts[-2] :]) != ids
        return cuts

    def _places_to_cut(self, text: str, ids: list[int], offsets: IntArray, tokens: tuple[int, int]) -> Iterator[int]:
        """Yield the tokens before which the text can be cut, so that what lies between two cuts keeps its tokens.

        Two tokens are given: the first one after the last cut, and the first one of the next segment. The latter is
        tried first, then those before it, as long as they are white space.
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
        found: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return found
