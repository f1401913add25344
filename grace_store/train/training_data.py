"""Encode samples for a training: the same tokens and images as in an extraction, and the learnt tokens."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grace_store.base.arrays import Float32Array, FloatArray, Int32Array
from grace_store.base.settings import ExtractSpec
from grace_store.base.states import SetAside
from grace_store.base.training_settings import TrainingSpec
from grace_store.data.sample import Sample
from grace_store.model.inputs.batches import LengthRule, form_batches
from grace_store.model.inputs.encode_samples import SampleReader
from grace_store.model.inputs.vision import SampleImages
from grace_store.model.load.weights import LoadedModel

_SAMPLES_AT_ONCE = 64
_TOO_LONG = "the model may learn little from such long samples. --max-length %d leaves these samples out"


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A conversation's tokens and the positions of the learnt tokens."""

    ids: Int32Array
    learnt: Int32Array
    token_inputs: dict[str, Int32Array]
    """Further arguments of a vision-language model with one value per token."""
    images: SampleImages | None
    segment: Int32Array
    """The segment of each learnt token: the steps, then the answer, then the end of the turn."""
    weight: Float32Array | None = None
    """The weight of each learnt token's loss; None if all weights are 1."""

    @property
    def total_weight(self) -> float:
        """The divisor of a mean over the learnt tokens."""
        return float(len(self.learnt)) if self.weight is None else float(self.weight.sum(dtype=np.float64))


def weigh(sample: TrainingSample, segment_weight: FloatArray) -> TrainingSample:
    """Return a sample with the weights of its segments, the steps and then the answer; the end of the turn has 1."""
    return replace(sample, weight=np.append(segment_weight, 1.0)[sample.segment].astype(np.float32))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples that share a forward and a backward pass."""

    members: tuple[int, ...]
    """Positions of the samples among all samples of the batches."""
    inputs: dict[str, Tensor]
    """The model's arguments, each (samples, longest), padded on the right, which a causal model ignores."""
    kept: Tensor
    """Positions with logits that a sample needs, ascending."""
    row: Tensor
    """The sample of each learnt token."""
    place: Tensor
    """The index in kept of the position that predicts each learnt token."""
    target: Tensor
    weight: Tensor | None = None
    """The weight of each learnt token; None if all weights are 1."""


class TrainingEncoder:
    """An encoder that reads samples as an extraction does, with the end of the turn in the answer if the spec asks."""

    def __init__(self, loaded: LoadedModel, spec: TrainingSpec, images: str | Path | None, num_threads: int) -> None:
        embeddings = loaded.model.get_input_embeddings()  # type: ignore[operator]
        vocab_size = min(loaded.identity.vocab_size, embeddings.weight.shape[0])
        self._reader = SampleReader(loaded, reading_spec(spec), vocab_size, images, _TOO_LONG)
        self._num_threads = num_threads
        self._has_end = spec.train_eos

    def encode(self, samples: Sequence[Sample]) -> list[TrainingSample | SetAside]:
        """Return each sample's tokens, or the reason why it cannot be trained on."""
        parts = [samples[start : start + _SAMPLES_AT_ONCE] for start in range(0, len(samples), _SAMPLES_AT_ONCE)]
        with ThreadPoolExecutor(self._num_threads, thread_name_prefix="encode") as pool:
            return [made for part in pool.map(self._encode, parts) for made in part]

    def _encode(self, samples: Sequence[Sample]) -> list[TrainingSample | SetAside]:
        read = self._reader.read(samples)
        found: dict[int, TrainingSample | SetAside] = {**read.set_aside}
        for position, tokens in read.tokens.items():
            learnt = np.flatnonzero(tokens.segment >= 0).astype(np.int32)
            segment = tokens.segment[learnt].astype(np.int32)
            segment[-1] += self._has_end
            token_inputs = {name: values.astype(np.int32) for name, values in tokens.token_inputs.items()}
            images = read.images.get(position)
            # The pixels of the whole subset would not fit into memory: they are made again for each step.
            images = replace(images, kept=None) if images and images.digests else None
            found[position] = TrainingSample(tokens.ids.astype(np.int32), learnt, token_inputs, images, segment)
        return [found[position] for position in range(len(samples))]


def reading_spec(spec: TrainingSpec) -> ExtractSpec:
    """Return the spec of an extraction that reads samples as the training does."""
    shared = ExtractSpec.model_fields.keys() & TrainingSpec.model_fields.keys()
    return ExtractSpec(include_eos=spec.train_eos, **{name: getattr(spec, name) for name in shared})


def micro_batches(samples: Sequence[TrainingSample], batch_tokens: int, rule: LengthRule) -> list[MicroBatch]:
    """Return batches of at most batch_tokens tokens with padding, the longest samples first."""
    groups = form_batches([len(sample.ids) for sample in samples], batch_tokens, rule)
    return [_collate(group, [samples[i] for i in group]) for group in groups]


def _collate(members: Sequence[int], samples: Sequence[TrainingSample]) -> MicroBatch:
    shape = (len(samples), max(len(sample.ids) for sample in samples))
    inputs = {name: np.zeros(shape, dtype=np.int64) for name in ("input_ids", *samples[0].token_inputs)}
    for row, sample in enumerate(samples):
        for name, values in inputs.items():
            values[row, : len(sample.ids)] = sample.ids if name == "input_ids" else sample.token_inputs[name]
    predecessor = np.concatenate([sample.learnt.astype(np.int64) - 1 for sample in samples])
    kept = np.unique(predecessor)
    weight = None
    if any(sample.weight is not None for sample in samples):
        each = (np.ones(len(one.learnt), np.float32) if one.weight is None else one.weight for one in samples)
        weight = torch.from_numpy(np.concatenate(list(each)))
    return MicroBatch(
        tuple(members),
        {name: torch.from_numpy(values) for name, values in inputs.items()},
        torch.from_numpy(kept),
        torch.from_numpy(np.repeat(np.arange(len(samples)), [len(sample.learnt) for sample in samples])),
        torch.from_numpy(np.searchsorted(kept, predecessor)),
        torch.from_numpy(np.concatenate([sample.ids[sample.learnt].astype(np.int64) for sample in samples])),
        weight,
    )
