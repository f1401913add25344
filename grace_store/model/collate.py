"""From tokenised samples to the tensors of one forward pass. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace_store.model.head import ResponseTokens
from grace_store.model.tokens import TokenizedSample


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples that share a forward pass; tensors lie in main memory."""

    members: tuple[int, ...]
    """Positions of the samples in their unit."""
    input_ids: Tensor
    """(samples, longest), padded on the right. No mask: a causal model does not see what follows."""
    predecessor: Tensor
    """For each response token, where in the flattened hidden states its prediction was made."""
    target: Tensor
    segment: Tensor
    weight: Tensor
    host_segment: npt.NDArray[np.int64]

    @property
    def num_padded_tokens(self) -> int:
        return self.input_ids.numel()

    def tokens_on(self, device: torch.device) -> ResponseTokens:
        return ResponseTokens(
            self.target.to(device, non_blocking=True),
            self.segment.to(device, non_blocking=True),
            self.weight.to(device, non_blocking=True),
            self.host_segment,
        )


def collate(members: Sequence[int], samples: Sequence[TokenizedSample], *, pin: bool) -> Batch:
    """Return the batch of some samples; members are their positions in the unit, samples their tokens."""
    longest = max(sample.num_tokens for sample in samples)
    ids = np.zeros((len(samples), longest), dtype=np.int64)
    predecessor, target, segment, weight = [], [], [], []
    first_segment = 0
    for row, sample in enumerate(samples):
        ids[row, : sample.num_tokens] = sample.ids
        # Segments follow each other in the text, but a token may be late (an end of turn): keep them in order.
        position = np.flatnonzero(sample.segment >= 0)
        position = position[np.argsort(sample.segment[position], kind="stable")]
        predecessor.append(row * longest + position - 1)
        target.append(sample.ids[position])
        segment.append(sample.segment[position] + first_segment)
        weight.append(1.0 / sample.tokens_per_segment()[sample.segment[position]])
        first_segment += sample.num_segments
    host_segment = np.concatenate(segment)
    return Batch(
        tuple(members),
        _tensor(ids, pin=pin),
        _tensor(np.concatenate(predecessor), pin=pin),
        _tensor(np.concatenate(target), pin=pin),
        _tensor(host_segment, pin=pin),
        _tensor(np.concatenate(weight).astype(np.float32), pin=pin),
        host_segment,
    )


def _tensor(array: npt.NDArray[np.int64] | npt.NDArray[np.float32], *, pin: bool) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory() if pin else tensor
