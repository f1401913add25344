"""Turn tokenised samples into the tensors of one forward pass. Knows nothing of models."""

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
    """Responses that run after the kept keys and values of their prompts; tensors are in host memory."""

    inputs: dict[str, Tensor]
    """Arguments as in a batch, from the last token of each prompt on, without a mask."""
    prompt: Tensor
    """The row of each response's prompt."""
    mask: Tensor | None
    """(samples, longest prompt + longest response): 0 before a shorter prompt; None if all prompts have one length."""
    predecessor: Tensor
    """Indices as in a batch, in the hidden states of this pass."""


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """The prompts of a batch that run once, each for several responses."""

    groups: list[list[int]]
    """Positions in the unit of the samples of each prompt."""
    lengths: Tensor
    """Number of shared tokens of each prompt."""
    shift: Tensor | None
    """(prompts, longest): for each index in prompts aligned at their ends, the index in prompts aligned at their
    starts; None if all prompts have one length."""
    passes: list[ResponsePass]


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples that share a forward pass; tensors are in host memory."""

    members: tuple[int, ...]
    """Positions of the samples in their unit."""
    inputs: dict[str, Tensor]
    """The model's arguments per token, each (samples, longest), padded with zeros on the right: input_ids, and for a
    vision-language model all arguments from its processor. There is no mask, because a causal model does not see later
    tokens. In a packed batch each is (1, tokens), without padding, and position_ids start at 0 in every sample."""
    predecessor: Tensor
    """For each response token, the index in the flattened hidden states of the token that predicts it."""
    target: Tensor
    segment: Tensor
    weight: Tensor
    host_segment: IntArray
    num_segments: tuple[int, ...]
    packed_lengths: tuple[int, ...] = ()
    """Number of tokens of each sample in a packed batch."""
    shared: SharedPrompts | None = None
    """Shared prompts, if any. Then inputs has each prompt once, and predecessor is empty: each pass has its own."""

    @property
    def num_padded_tokens(self) -> int:
        """Number of tokens in memory at the same time."""
        passes = () if self.shared is None else self.shared.passes
        return self.inputs["input_ids"].numel() + max((each.inputs["input_ids"].numel() for each in passes), default=0)

    @property
    def shown(self) -> tuple[int, ...]:
        """The members that the model sees the images of: all, or one for each shared prompt."""
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
    """Return a batch in host memory, ready for the device; members are the samples' positions in the unit."""
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
    """Return the batch of groups of samples with one prompt each; groups has the samples' positions in the unit.

    The responses run in passes of at most pass_tokens tokens.
    """
    row = {member: number for number, group in enumerate(groups) for member in group}
    formed = form_passes(groups, prompt_lengths({member: tokens[member] for member in row}), pass_tokens)
    lengths = np.array([tokens[group[0]].num_prompt_tokens for group in groups])
    prompts = [tokens[group[0]].cut(length)[0] for group, length in zip(groups, lengths.tolist(), strict=True)]
    responses = {member: tokens[member].cut(int(lengths[number]))[1] for member, number in row.items()}
    longest = int(lengths.max())
    missing = longest - lengths
    shift = _tensor((np.arange(longest) - missing[:, None]) % longest, device) if missing.any() else None
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
        shared=SharedPrompts(groups, _tensor(lengths, device), shift, passes),
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
    """Return the arguments per token; each sample begins at its start in the flattened batch."""
    lengths = [sample.num_tokens for sample in samples]
    shape = (1, sum(lengths)) if packed else (len(samples), max(lengths))
    names = ["input_ids", *samples[0].token_inputs]
    if packed:  # models separate packed samples by positions that start at 0, and only if there is no mask
        names = ["position_ids", *(name for name in names if name != "attention_mask")]
    inputs = {name: np.zeros(shape, dtype=np.int64) for name in names}
    for start, sample in zip(starts.tolist(), samples, strict=False):
        own = {"input_ids": sample.ids, "position_ids": np.arange(sample.num_tokens), **sample.token_inputs}
        for name, values in inputs.items():
            values.reshape(-1)[start : start + sample.num_tokens] = own[name]
    return {name: _tensor(values, device) for name, values in inputs.items()}


def _predecessors(samples: Sequence[TokenizedSample], starts: IntArray) -> IntArray:
    places = zip(starts.tolist(), samples, strict=False)
    return np.concatenate([start + sample.response_places - 1 for start, sample in places])


def _responses(samples: Sequence[TokenizedSample], device: torch.device) -> dict[str, Any]:
    """Return a batch's fields about response tokens, sample by sample."""
    target, segment, weight = [], [], []
    first_segment = 0
    for sample in samples:
        position = sample.response_places
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


def _tensor(array: IntArray | Float32Array, device: torch.device) -> Tensor:
    return devices.pin(torch.from_numpy(np.ascontiguousarray(array)), device)


# ---------------------------------------------------------------- samples of a unit with the same prompt
# Samples of one prompt have the same tokens and the same images before their responses. The prompt without its last
# token runs through the model once. Each response runs after it, together with that last token, so that every token
# that predicts a response token is in the pass of the response.


def find_groups(
    tokens: Mapping[int, TokenizedSample], images: Mapping[int, Sequence[str]], image_ids: Collection[int]
) -> list[list[int]]:
    """Return groups of samples with the same prompt, as lists of positions; images has the digests of their images.

    A prompt that ends with an image token is not shared, because an image must not be cut in two.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, sample in tokens.items():
        if not (length := sample.num_prompt_tokens) or int(sample.ids[length]) in image_ids:
            continue
        inputs = tuple((name, values[:length].tobytes()) for name, values in sample.token_inputs.items())
        prompt = sample.ids[:length].tobytes(), inputs, tuple(images.get(position, ()))
        groups.setdefault(prompt, []).append(position)
    return list(groups.values())


def prompt_lengths(tokens: Mapping[int, TokenizedSample]) -> PromptLengths:
    """Return the lengths of the prompts and responses of samples."""
    prompt = {position: sample.num_prompt_tokens for position, sample in tokens.items()}
    return PromptLengths(prompt, {i: sample.num_tokens - prompt[i] for i, sample in tokens.items()})
