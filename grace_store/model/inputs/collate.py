"""From tokenised samples to the tensors of one forward pass. Knows nothing of models."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.model import devices
from grace_store.model.closed_form import ResponseTokens
from grace_store.model.inputs.batches import Groups, PromptLengths, form_passes
from grace_store.model.inputs.tokens import TokenizedSample


@dataclass(frozen=True, slots=True)
class ResponsePass:
    """Responses that follow prompts whose keys and values are kept; tensors lie in main memory."""

    inputs: dict[str, Tensor]
    """As a batch's, from the last token of each prompt on, without a mask."""
    prompt: Tensor
    """For each response the row of its prompt."""
    mask: Tensor | None
    """(samples, longest prompt + longest): 0 where a prompt is shorter; None where all are as long."""
    predecessor: Tensor
    """As a batch's, in the hidden states of this pass."""


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """What makes a batch one of prompts that run once, each for several responses."""

    groups: list[list[int]]
    """Positions of the samples of each prompt in their unit."""
    lengths: Tensor
    """Tokens of each prompt that are shared."""
    shift: Tensor | None
    """(prompts, longest): for each place of prompts that end together, where it is in those that begin together; None
    where all are as long."""
    passes: list[ResponsePass]


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples that share a forward pass; tensors lie in main memory."""

    members: tuple[int, ...]
    """Positions of the samples in their unit."""
    inputs: dict[str, Tensor]
    """The model's arguments of every token, each (samples, longest), padded with zeros on the right: input_ids, and
    of a vision-language model all that its processor made. Without a mask, as a causal model does not see what
    follows. Packed: each (1, tokens), without padding, and position_ids that start anew with every sample."""
    predecessor: Tensor
    """For each response token, where in the flattened hidden states its prediction was made."""
    target: Tensor
    segment: Tensor
    weight: Tensor
    host_segment: IntArray
    num_segments: tuple[int, ...]
    """Segments of each sample."""
    packed_lengths: tuple[int, ...] = ()
    """Tokens of each sample, if packed."""
    shared: SharedPrompts | None = None
    """If there, inputs are those of the prompts, each once, and there is no other predecessor than of its passes."""

    @property
    def num_padded_tokens(self) -> int:
        """Tokens that take up memory at a time."""
        passes = () if self.shared is None else self.shared.passes
        largest = max((each.inputs["input_ids"].numel() for each in passes), default=0)
        return self.inputs["input_ids"].numel() + largest

    @property
    def shown(self) -> tuple[int, ...]:
        """The members whose images go through the model."""
        return self.members if self.shared is None else tuple(group[0] for group in self.shared.groups)

    def tokens_on(self, device: torch.device) -> ResponseTokens:
        return ResponseTokens(
            devices.to_device(self.target, device),
            devices.to_device(self.segment, device),
            devices.to_device(self.weight, device),
            self.host_segment,
        )


def collate(
    members: Sequence[int],
    samples: Sequence[TokenizedSample],
    device: torch.device = devices.CPU,
    *,
    packed: bool = False,
) -> Batch:
    """Return the batch of some samples, in main memory but for a device; members are their positions in the unit."""
    lengths = [sample.num_tokens for sample in samples]
    starts = np.cumsum([0, *lengths]) if packed else np.arange(len(samples)) * max(lengths)
    return Batch(
        tuple(members),
        _inputs(samples, starts, device, packed=packed),
        _tensor(_predecessors(samples, starts), device),
        **_responses(samples, device),
        packed_lengths=tuple(lengths) if packed else (),
    )


def collate_shared(
    groups: Groups, tokens: Mapping[int, TokenizedSample], pass_tokens: int, device: torch.device = devices.CPU
) -> Batch:
    """Return the batch of some groups of samples, each of one prompt; they are named by their positions in the unit.

    The responses run in passes of at most pass_tokens tokens.
    """
    members = [member for group in groups for member in group]
    formed = form_passes(groups, prompt_lengths({member: tokens[member] for member in members}), pass_tokens)
    lengths = np.array([tokens[group[0]].num_prompt_tokens for group in groups])
    row = {member: number for number, group in enumerate(groups) for member in group}
    prompts = [tokens[group[0]].cut(length)[0] for group, length in zip(groups, lengths.tolist(), strict=True)]
    responses = {member: tokens[member].cut(int(lengths[number]))[1] for member, number in row.items()}
    longest = int(lengths.max())
    missing = longest - lengths
    shift = (np.arange(longest) - missing[:, None]) % longest
    passes = [
        _response_pass([responses[i] for i in each], np.array([row[i] for i in each]), missing, longest, device)
        for each in formed
    ]
    members = [member for each in formed for member in each]
    return Batch(
        tuple(members),
        _inputs(prompts, np.arange(len(prompts)) * longest, device),
        _tensor(np.zeros(0, dtype=np.int64), device),
        **_responses([responses[member] for member in members], device),
        shared=SharedPrompts(
            groups,
            _tensor(lengths, device),
            _tensor(shift, device) if missing.any() else None,
            passes,
        ),
    )


def _response_pass(
    samples: Sequence[TokenizedSample], row: IntArray, missing: IntArray, longest_prompt: int, device: torch.device
) -> ResponsePass:
    longest = max(sample.num_tokens for sample in samples)
    starts = np.arange(len(samples)) * longest
    mask = np.arange(longest_prompt + longest) >= missing[row][:, None]
    return ResponsePass(
        {name: each for name, each in _inputs(samples, starts, device).items() if name != "attention_mask"},
        _tensor(row, device),
        _tensor(mask.astype(np.int64), device) if missing.any() else None,
        _tensor(_predecessors(samples, starts), device),
    )


def _inputs(
    samples: Sequence[TokenizedSample], starts: IntArray, device: torch.device, *, packed: bool = False
) -> dict[str, Tensor]:
    """Return the arguments of every token, each sample's from its start in the flattened batch on."""
    lengths = [sample.num_tokens for sample in samples]
    shape = (1, sum(lengths)) if packed else (len(samples), max(lengths))
    inputs = {name: np.zeros(shape, dtype=np.int64) for name in _input_names(samples[0], packed=packed)}
    for start, sample in zip(starts.tolist(), samples, strict=False):
        own = {"input_ids": sample.ids, "position_ids": np.arange(sample.num_tokens), **sample.token_inputs}
        for name, values in inputs.items():
            values.reshape(-1)[start : start + sample.num_tokens] = own[name]
    return {name: _tensor(values, device) for name, values in inputs.items()}


def _predecessors(samples: Sequence[TokenizedSample], starts: IntArray) -> IntArray:
    places = zip(starts.tolist(), samples, strict=False)
    return np.concatenate([start + _response_places(sample) - 1 for start, sample in places])


def _responses(samples: Sequence[TokenizedSample], device: torch.device) -> dict[str, Any]:
    """Return what a batch knows of its response tokens, sample by sample."""
    target, segment, weight = [], [], []
    first_segment = 0
    for sample in samples:
        position = _response_places(sample)
        target.append(sample.ids[position])
        segment.append(sample.segment[position] + first_segment)
        weight.append(1.0 / sample.tokens_per_segment()[sample.segment[position]])
        first_segment += sample.num_segments
    host_segment = np.concatenate(segment)
    return {
        "target": _tensor(np.concatenate(target), device),
        "segment": _tensor(host_segment, device),
        "weight": _tensor(np.concatenate(weight).astype(np.float32), device),
        "host_segment": host_segment,
        "num_segments": tuple(sample.num_segments for sample in samples),
    }


def _response_places(sample: TokenizedSample) -> IntArray:
    """Return where a sample's response tokens are, in the order of their segments."""
    # Segments follow each other in the text, but a token may be late (an end of turn): keep them in order.
    position = np.flatnonzero(sample.segment >= 0)
    return position[np.argsort(sample.segment[position], kind="stable")]


def _input_names(sample: TokenizedSample, *, packed: bool) -> list[str]:
    names = ["input_ids", *sample.token_inputs]
    # Models tell packed samples apart by positions that start anew, and only if there is no mask.
    return ["position_ids", *(name for name in names if name != "attention_mask")] if packed else names


def _tensor(array: IntArray | Float32Array, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return devices.pin(tensor, device)


# ---------------------------------------------------------------- which samples of a unit have the same prompt
# Samples of one prompt have the same tokens, and the same images, before their responses. All of these but the last
# token run through the model once; each response follows, that last token before it, so that whatever predicts a token
# of a response is in the pass of the response.


def find_groups(
    tokens: Mapping[int, TokenizedSample], images: Mapping[int, Sequence[str]], image_ids: Collection[int]
) -> list[list[int]]:
    """Return the positions of samples that have the same prompt, group by group; images are digests of each sample's.

    A prompt whose last token stands for an image is not shared: images must not be cut in two.
    """
    groups: dict[bytes, list[int]] = {}
    for position, sample in tokens.items():
        length = sample.num_prompt_tokens
        if length and int(sample.ids[length]) not in image_ids:
            groups.setdefault(_digest(sample, length, images.get(position, ())), []).append(position)
    return list(groups.values())


def prompt_lengths(tokens: Mapping[int, TokenizedSample]) -> PromptLengths:
    """Return the lengths of samples' prompts and responses."""
    prompt = {position: sample.num_prompt_tokens for position, sample in tokens.items()}
    return PromptLengths(prompt, {i: sample.num_tokens - prompt[i] for i, sample in tokens.items()})


def _digest(sample: TokenizedSample, length: int, images: Sequence[str]) -> bytes:
    digest = hashlib.blake2b(np.ascontiguousarray(sample.ids[:length]).tobytes(), digest_size=16)
    for name, values in sample.token_inputs.items():
        digest.update(name.encode() + np.ascontiguousarray(values[:length]).tobytes())
    for image in images:
        digest.update(image.encode())
    return digest.digest()
