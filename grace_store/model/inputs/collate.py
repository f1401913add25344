"""From tokenised samples to the tensors of one forward pass. Knows nothing of models."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.model import devices
from grace_store.model.head.closed_form import ResponseTokens
from grace_store.model.inputs.tokens import TokenizedSample


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

    @property
    def num_padded_tokens(self) -> int:
        return self.inputs["input_ids"].numel()

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
    shape = (1, sum(lengths)) if packed else (len(samples), max(lengths))
    starts = np.cumsum([0, *lengths]) if packed else np.arange(len(samples)) * max(lengths)
    inputs = {name: np.zeros(shape, dtype=np.int64) for name in _input_names(samples[0], packed=packed)}
    predecessor, target, segment, weight = [], [], [], []
    first_segment = 0
    for start, sample in zip(starts.tolist(), samples, strict=False):
        own = {"input_ids": sample.ids, "position_ids": np.arange(sample.num_tokens), **sample.token_inputs}
        for name, values in inputs.items():
            values.reshape(-1)[start : start + sample.num_tokens] = own[name]
        # Segments follow each other in the text, but a token may be late (an end of turn): keep them in order.
        position = np.flatnonzero(sample.segment >= 0)
        position = position[np.argsort(sample.segment[position], kind="stable")]
        predecessor.append(start + position - 1)
        target.append(sample.ids[position])
        segment.append(sample.segment[position] + first_segment)
        weight.append(1.0 / sample.tokens_per_segment()[sample.segment[position]])
        first_segment += sample.num_segments
    host_segment = np.concatenate(segment)
    return Batch(
        tuple(members),
        {name: _tensor(values, device) for name, values in inputs.items()},
        _tensor(np.concatenate(predecessor), device),
        _tensor(np.concatenate(target), device),
        _tensor(host_segment, device),
        _tensor(np.concatenate(weight).astype(np.float32), device),
        host_segment,
        tuple(sample.num_segments for sample in samples),
        tuple(lengths) if packed else (),
    )


def _input_names(sample: TokenizedSample, *, packed: bool) -> list[str]:
    names = ["input_ids", *sample.token_inputs]
    # Models tell packed samples apart by positions that start anew, and only if there is no mask.
    return ["position_ids", *(name for name in names if name != "attention_mask")] if packed else names


def _tensor(array: IntArray | Float32Array, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return devices.pin(tensor, device)
