"""Run units on a device, batch by batch: the part that all extractors share."""

import hashlib
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from grace_store.base.arrays import Array, Float32Array, offsets_of
from grace_store.base.errors import GraceStoreError, ModelError, OutOfMemory
from grace_store.base.metadata import Sharing
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.states import TOKEN_COLUMNS, Reason, SetAside, UnitOutcome, UnitSignals
from grace_store.data.sample import Sample
from grace_store.model import devices
from grace_store.model.backbone import find_length_rule, response_states
from grace_store.model.choose_head import choose_head
from grace_store.model.closed_form import OutputHead, SegmentMeans, means_of_any_length
from grace_store.model.devices import in_words
from grace_store.model.inputs.batches import form_batches, form_packs, form_shared
from grace_store.model.inputs.collate import Batch, collate, collate_shared, find_groups, prompt_lengths
from grace_store.model.inputs.encode_samples import ImageQueue, PreparedUnit, SampleReader
from grace_store.model.inputs.tokens import TokenizedSample
from grace_store.model.inputs.vision import ImageInputs, join_images
from grace_store.model.load.weights import LoadedModel
from grace_store.model.shared_pass import KeptFeatures, Shown, VisionTower, packed_positions, shared_states
from grace_store.model.token_numbers import segment_statistics, top_entropy

_LOG = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
OutcomeT = TypeVar("OutcomeT", bound=UnitOutcome)


@dataclass(slots=True)
class UnitInFlight(ABC, Generic[ResultT, OutcomeT]):
    """A unit with results that the device may still be computing or copying."""

    prepared: PreparedUnit
    vector_size: int
    results: list[tuple[Batch, ResultT]] = field(default_factory=list)
    """The result of each batch, complete in host memory after the wait for the mark."""
    is_split: bool = False
    """Whether a batch was split because it did not fit into memory."""
    mark: devices.Mark | None = None
    """The point in the device's work after the copies of all results."""

    def result(self) -> OutcomeT:
        """Wait for the device and return the signals, in the order of the samples."""
        if self.mark is not None:
            self.mark.wait()
        signals = self.gather()
        tokens = self.prepared.tokens
        signals.num_tokens = sum(tokens[member].num_tokens for batch, _ in self.results for member in batch.members)
        signals.set_aside = dict(sorted({**self.prepared.set_aside, **signals.set_aside}.items()))
        images = sorted(self.prepared.images.items())
        digests = [digest for member, each in images if member not in signals.set_aside for digest in each.digests]
        lines = "".join(f"{digest}\n" for digest in digests)
        signals.images_sha256 = hashlib.sha256(lines.encode()).hexdigest() if digests else None
        signals.split = tuple(len(batch.members) for batch, _ in self.results) if self.is_split else None
        return signals

    @abstractmethod
    def gather(self) -> OutcomeT:
        """Return the signals of all batches; set samples aside that have values that are not finite."""


@dataclass(slots=True)
class PendingSegments(UnitInFlight[SegmentMeans, UnitSignals]):
    """A unit with a vector for each segment."""

    has_table: bool = False
    """Whether the numbers of tokens are kept."""

    def gather(self) -> UnitSignals:
        starts = offsets_of(np.array(self.prepared.num_rows))
        vector = np.zeros((starts[-1], self.vector_size), dtype=np.float32)
        signals = UnitSignals.of_vectors(vector, np.zeros(starts[-1], np.int32), len(starts) - 1)
        table: dict[int, Array] = {}
        for batch, made in self.results:
            for member, vectors, numbers in self._members(batch, made):
                tokens = self.prepared.tokens[member]
                found = segment_statistics(numbers, counts := tokens.tokens_per_segment())
                is_finite = np.isfinite(vectors).all(axis=1) & np.isfinite([*found.values()]).all(axis=0)
                if len(bad := np.flatnonzero(~is_finite)):
                    name = "the answer" if bad[0] == len(vectors) - 1 else f"step {bad[0] + 1}"
                    signals.set_aside[member] = SetAside(Reason.NOT_FINITE, f"{name} has a value that is not finite")
                    continue
                rows = slice(starts[member], starts[member + 1])
                signals.segment_vector[rows], signals.segment_num_tokens[rows] = vectors, counts
                for statistic, means in found.items():
                    getattr(signals, f"segment_{statistic}")[rows] = means
                signals.sample_top_entropy[member] = top_entropy(numbers)
                if self.has_table and tokens.num_characters is not None:
                    table[member] = np.column_stack((numbers, tokens.num_characters))
                    signals.sample_num_token_rows[member] = len(numbers)
        if table:
            for name, column in zip(TOKEN_COLUMNS, np.concatenate([table[i] for i in sorted(table)]).T, strict=True):
                setattr(signals, f"token_{name}", column)
        return signals

    def _members(self, batch: Batch, made: SegmentMeans) -> Iterator[tuple[int, Float32Array, Float32Array]]:
        """Yield the vectors of each sample's segments and the numbers of its tokens, with its position in the unit."""
        row = token = 0
        for member in batch.members:
            rows = slice(row, row := row + self.prepared.num_rows[member])
            tokens = slice(token, token := token + self.prepared.tokens[member].num_response_tokens)
            yield member, made.vector[rows].numpy(), made.numbers[tokens].numpy()


class UnitExtractor(ABC, Generic[ResultT, OutcomeT]):
    """An extractor that tokenises units, forms batches and runs them, with smaller batches where memory runs out."""

    def __init__(
        self,
        loaded: LoadedModel,
        spec: ExtractSpec,
        options: RunOptions,
        *,
        head: OutputHead | None = None,
        images: str | Path | None = None,
    ) -> None:
        self.model: nn.Module = loaded.model
        self._device = loaded.device
        self.head = head or choose_head(loaded.model)
        self._spec = spec
        self._too_large: int | None = None
        """The size in tokens of the smallest batch that did not fit into memory."""
        self.sharing: Sharing | None = None
        """Whether samples with the same prompt share it; None before a probe, because not every model can."""
        self.tower: VisionTower | None = None
        """The vision tower for images that several prompts of a unit share; None if a probe did not allow it."""
        self.length_rule = find_length_rule(loaded.model, loaded.longest(spec.max_length))
        embeddings = loaded.model.get_input_embeddings()  # type: ignore[operator]
        self.reader = SampleReader(loaded, spec, min(self.head.vocab_size, embeddings.weight.shape[0]), images)
        self._image_pool = ThreadPoolExecutor(options.loader_threads, thread_name_prefix="images")

    def share_as(self, sharing: Sharing) -> None:
        """Share prompts and images as a probe allows, or as the signal was begun."""
        self.sharing = sharing
        can = sharing.images is not None
        self.tower = VisionTower(self.model, self._device, apart=sharing.images == "image") if can else None
        if not sharing.prompts:
            _LOG.warning("prompts are not shared, so the run takes longer: %s", sharing.fault)

    @property
    @abstractmethod
    def vector_size(self) -> int: ...

    @abstractmethod
    def _run(self, batch: Batch, image_inputs: ImageInputs) -> ResultT:
        """Return the results of a batch; the copy to host memory may still be under way."""

    @abstractmethod
    def _pending(self, prepared: PreparedUnit) -> UnitInFlight[ResultT, OutcomeT]: ...

    def _finish(self) -> None:
        """End a unit: compute everything that is still left."""

    def _forget(self) -> None:
        """Drop the state that a failed batch left behind."""

    def prepare(self, samples: Sequence[Sample]) -> PreparedUnit:
        """Tokenise a unit, open its images and form its batches. Runs on the CPU; several threads may call it."""
        read = self.reader.read(samples)
        with devices.watching(self._device):
            devices.make_current(self._device)  # of this thread
            batches: list[Batch] = []
            if self.sharing is not None and self.sharing.prompts:
                formed = form_shared(self.groups_in(read), prompt_lengths(read.tokens), self._spec.batch_tokens)
                batches = [collate_shared(each, read.tokens, self._spec.batch_tokens, self._device) for each in formed]
            together = {member for batch in batches for member in batch.members}
            others = [position for position in read.tokens if position not in together]
            lengths = [read.tokens[position].num_tokens for position in others]
            form = form_packs if self._spec.packing else form_batches
            groups = form(lengths, self._spec.batch_tokens, self.length_rule)
            batches += [self._collate([others[i] for i in group], read.tokens) for group in groups]
        return replace(read, num_rows=tuple(sample.num_segments for sample in samples), batches=batches)

    def groups_in(self, read: PreparedUnit) -> list[list[int]]:
        """Return groups of samples with the same prompt and images, as lists of their positions."""
        images = {position: each.digests for position, each in read.images.items()}
        return find_groups(read.tokens, images, self.reader.image_ids)

    def compute(self, prepared: PreparedUnit) -> UnitInFlight[ResultT, OutcomeT]:
        """Run the model on a prepared unit. Only one thread may call it."""
        with devices.watching(self._device):
            pending = self._pending(prepared)
            images = ImageQueue(prepared.images, self._image_pool, self._device)
            shown = (each for batch in prepared.batches for each in self._shown(batch, prepared))
            kept = KeptFeatures(self.tower, shown)
            waiting = deque(prepared.batches)
            while waiting:
                batch = waiting.popleft()
                is_too_large = self._too_large is not None and batch.num_padded_tokens >= self._too_large
                if is_too_large and len(batch.members) > 1:
                    waiting.extendleft(reversed(self._halves(batch, prepared.tokens)))
                    pending.is_split = True
                    continue
                features = kept.for_batch(self._shown(batch, prepared))
                made = self._try(batch, images, features, waiting[0].shown if waiting else ())
                if not isinstance(made, Exception):
                    pending.results.append((batch, made))
                elif devices.is_out_of_memory(made) and kept.give_up():
                    devices.release_memory(self._device)
                    waiting.appendleft(batch)
                else:
                    waiting.extendleft(reversed(self._smaller(batch, made, prepared)))
            self._finish()
            pending.mark = devices.Mark(self._device)
            return pending

    def _shown(self, batch: Batch, prepared: PreparedUnit) -> list[Shown]:
        """Return the images of a batch, prompt by prompt."""
        apart = self.tower is not None and self.tower.apart
        images = [prepared.images[member] for member in batch.shown if member in prepared.images]
        return [(each.image_keys(apart=apart), each.inputs) for each in images]

    def _collate(self, members: Sequence[int], tokens: dict[int, TokenizedSample]) -> Batch:
        return collate(members, [tokens[member] for member in members], self._device, packed=self._spec.packing)

    def _try(
        self, batch: Batch, images: ImageQueue, features: AbstractContextManager[None], upcoming: Sequence[int]
    ) -> ResultT | Exception:
        try:
            image_inputs = images.take(batch.shown)
            images.announce(upcoming)
            with features:
                return self._run(batch, image_inputs)
        except GraceStoreError:
            raise
        except Exception as error:
            if devices.is_lost(error):
                raise
            failure = error.with_traceback(None)
        # After the except clause, the tensors of the failed call are freed with its traceback.
        self._forget()
        self.head.release()
        devices.release_memory(self._device)
        return failure

    def _smaller(self, batch: Batch, failure: Exception, prepared: PreparedUnit) -> list[Batch]:
        """Return the batches to run instead of a failed batch; set a sample aside if it fails alone."""
        if devices.is_out_of_memory(failure):
            if len(batch.members) == 1:
                raise OutOfMemory(
                    f"One sample of {batch.num_padded_tokens} tokens does not fit on {self._device}. Use a larger or "
                    "less busy device, or begin a new --signal with a lower --head-tokens, --max-length or "
                    "--max-pixels."
                )
            message = (
                "a batch of %d tokens does not fit on %s. Batches of this size are halved, and the commits note this"
            )
            _LOG.warning(message, batch.num_padded_tokens, self._device)
            self._too_large = batch.num_padded_tokens
            return [batch]
        if len(batch.members) > 1:
            return [self._collate([member], prepared.tokens) for member in batch.members]
        self._check_works(failure)
        _LOG.warning("a sample is set aside because the model fails on this sample: %s", in_words(failure))
        prepared.set_aside[batch.members[0]] = SetAside(
            Reason.BAD_TEXT, f"the model fails on this sample: {in_words(failure)}"
        )
        return []

    def _check_works(self, failure: Exception) -> None:
        """Raise unless the model runs on a few tokens: only then is a failure the sample's fault."""
        ids = np.arange(1, 5) % self.head.vocab_size
        try:
            self._run(collate([0], [TokenizedSample(ids, np.array([-1, -1, 0, 0]), 1)]), {})
        except Exception as error:
            if devices.is_lost(error):
                raise
            raise ModelError(f"{type(self.model).__name__} fails on every sample. {in_words(failure)}") from error

    def hidden_states(self, batch: Batch, image_inputs: ImageInputs) -> Tensor:
        """Return the inputs of the head for each response token, (num_tokens, d), in the order of the segments."""
        inputs = self.inputs_on_device(batch, image_inputs)
        if batch.shared is None:
            return response_states(self.model, inputs, devices.to_device(batch.predecessor, self._device))
        return shared_states(self.model, inputs, {**batch.inputs, **image_inputs}, batch.shared)

    def states_by_member(self, batch: Batch, unit: PreparedUnit) -> dict[int, Tensor]:
        """Return the inputs of the head for each member of a batch, for probes."""
        images = join_images([unit.images[member].inputs() for member in batch.shown if member in unit.images])
        with torch.inference_mode():
            hidden = self.hidden_states(batch, images)
        sizes = [unit.tokens[member].num_response_tokens for member in batch.members]
        return dict(zip(batch.members, torch.split_with_sizes(hidden, sizes), strict=True))

    def image_inputs(self, prepared: PreparedUnit, batch: Batch) -> ImageInputs:
        """Return the model's arguments for the images of a batch."""
        return ImageQueue(prepared.images, self._image_pool).take(batch.shown)

    def inputs_on_device(self, batch: Batch, image_inputs: ImageInputs) -> dict[str, Tensor]:
        """Return all arguments of the model for a batch."""
        inputs = {**batch.inputs, **image_inputs}
        on_device = {name: devices.to_device(tensor, self._device) for name, tensor in inputs.items()}
        if batch.packed_lengths:
            on_device["position_ids"] = packed_positions(self.model, on_device, batch.packed_lengths)
        return on_device

    def _halves(self, batch: Batch, tokens: dict[int, TokenizedSample]) -> list[Batch]:
        if batch.shared is None:
            return [self._collate(part, tokens) for part in _in_halves(batch.members)]
        groups = batch.shared.groups
        halves = _in_halves(groups) if len(groups) > 1 else [[part] for part in _in_halves(groups[0])]
        return [self._collate_groups(half, tokens) for half in halves]

    def _collate_groups(self, groups: list[list[int]], tokens: dict[int, TokenizedSample]) -> Batch:
        """Return the batch of groups that share their prompts; a batch without sharing for a single sample."""
        if len(members := [member for group in groups for member in group]) == 1:
            return self._collate(members, tokens)
        return collate_shared(groups, tokens, self._spec.batch_tokens, self._device)


class ProxyExtractor(UnitExtractor[SegmentMeans, UnitSignals]):
    """An extractor of proxy vectors: dL/dh at the output head, averaged over each segment."""

    @property
    def vector_size(self) -> int:
        return self.head.vector_size

    def _pending(self, prepared: PreparedUnit) -> PendingSegments:
        return PendingSegments(prepared, self.vector_size, has_table=self._spec.has_token_table)

    def _run(self, batch: Batch, image_inputs: ImageInputs) -> SegmentMeans:
        with torch.inference_mode():
            hidden = self.hidden_states(batch, image_inputs)
            means = means_of_any_length(self.head, hidden, batch.tokens_on(self._device), self._spec.head_tokens)
            return SegmentMeans(devices.to_host(means.vector), devices.to_host(means.numbers))


def _in_halves(several: Sequence[ItemT]) -> list[list[ItemT]]:
    middle = (len(several) + 1) // 2
    return [list(several[:middle]), list(several[middle:])]
