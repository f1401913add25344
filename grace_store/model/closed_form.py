"""Compute segment vectors from hidden states through a linear output head, exactly and without a backward pass.

With logits z = cap(scale (W h + b)), dL/dh = scale W' (cap'(z) (p - y)). This is linear in p - y. So the mean over a
segment is computed in vocabulary space, block by block, and then multiplied by W once per segment. Knows nothing of
texts, samples or batches.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from grace_store.base.arrays import IntArray, aranges
from grace_store.model import devices
from grace_store.model.token_numbers import NUM_NUMBERS

MEAN_BUFFER_BYTES = 1 << 29
"""Largest size of the vocabulary-wide means of a group of segments. More segments are computed in several groups."""
PULL_BACK_BYTES = 1 << 28
"""Largest size of a slice of half-precision head weights after its conversion to float32."""
WHOLE_TOKENS = 512
"""Longest segment that is summed at once."""
STRETCH_TOKENS = 64
"""Number of tokens that are summed at once in a longer segment."""
CPU_ROWS = 32
"""Number of rows of logits per block on a CPU, so that every pass after the first finds them in the cache."""


@dataclass(frozen=True, slots=True)
class ResponseTokens:
    """The predicted tokens of a batch, in order of their segments; tensors are (num_tokens,) on the device."""

    target: Tensor
    segment: Tensor
    """Index of each token's segment in the batch, never decreasing and without gaps."""
    weight: Tensor
    """1 / (number of tokens in the token's segment), float32."""
    host_segment: IntArray
    """A copy of segment in host memory: loops over blocks must not wait for the device."""

    @property
    def num_segments(self) -> int:
        return int(self.host_segment[-1]) + 1 if len(self.host_segment) else 0


def alone(target: Tensor) -> ResponseTokens:
    """Return tokens with one segment per token."""
    each = np.arange(len(target))
    ones = torch.ones(len(each), device=target.device)
    return ResponseTokens(target, torch.arange(len(each), device=target.device), ones, each)


@dataclass(slots=True)
class SegmentMeans:
    """Means over each segment's tokens, float32, one row per segment, in the order of a batch's members.

    The numbers of single tokens come with them.
    """

    vector: Tensor
    numbers: Tensor
    """(num_tokens, 4): the numbers of each token (`model.token_numbers`), in the order of the batch's tokens."""
    norm: Tensor | None = None
    """Norm of each vector before normalisation; only for projected gradients."""


class OutputHead(Protocol):
    """An output head that turns hidden states into segment vectors."""

    vector_size: int
    vocab_size: int

    def segment_means(self, hidden: Tensor, tokens: ResponseTokens, block_tokens: int) -> SegmentMeans:
        """Return the segment means of dL/dh and the tokens' numbers; hidden is (num_tokens, vector_size)."""

    def release(self) -> None:
        """Free the memory that is kept between calls."""


def residual_of(logits: Tensor, target: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Write Z (p - y) of float32 logits to out and overwrite logits with logits - max.

    Return 1/Z, the rows' numbers (log p(y), rank, entropy, |p - y|) and their largest logits, (rows, 1). The target's
    entry is minus the sum of the other entries. Computed as p - 1, it would lose all its digits where the model is
    sure, and so would the vector.
    """
    index = target.unsqueeze(1)
    # A sum of booleans takes several times as long; a float32 counts to 16 million.
    rank = torch.gt(logits, logits.gather(1, index), out=out).sum(dim=1).add_(1.0)
    top = logits.amax(dim=1, keepdim=True)
    torch.exp(logits.sub_(top), out=out)
    spread = torch.linalg.vecdot(out, logits)
    target_logit = logits.gather(1, index).squeeze(1)
    target_mass = out.gather(1, index).squeeze(1)
    out.scatter_(1, index, 0.0)
    others = out.sum(dim=1)
    out.scatter_(1, index, -others.unsqueeze(1))
    z = others + target_mass
    log_z = torch.where(target_logit == 0, torch.log1p(others), torch.log(z))
    error = torch.linalg.vector_norm(out, dim=1) / z
    return 1.0 / z, torch.stack((target_logit - log_z, rank, log_z - spread / z, error), dim=1), top


def averaging_matrix(segment: Tensor, weight: Tensor, first: int, stop: int) -> Tensor:
    """Return the (stop - first, tokens) matrix that averages tokens into segments first..stop."""
    rows = torch.arange(first, stop, device=segment.device).unsqueeze(1)
    return torch.where(segment.unsqueeze(0) == rows, weight.unsqueeze(0), 0.0)


class ClosedFormHead:
    """A head of the form cap(scale (W h + b))."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, scale: float = 1.0, cap: float | None = None
    ) -> None:
        self._mixed = weight.dtype != torch.float32 and devices.has_mixed_product(weight)
        self._weight = weight.detach() if self._mixed else weight.detach().float()
        self._inner_scale = scale if cap is None else scale / cap
        self._bias = None if bias is None else bias.detach().float() * self._inner_scale
        self._scale = scale
        self._cap = cap
        self._scratch: dict[str, Tensor] = {}
        self.vocab_size, self.vector_size = map(int, weight.shape)

    def __str__(self) -> str:
        scale = "" if self._scale == 1.0 else f", scale {self._scale:g}"
        cap = "" if self._cap is None else f", soft cap {self._cap:g}"
        return f"closed form{scale}{cap}{'' if self._bias is None else ', bias'}"

    def release(self) -> None:
        self._scratch.clear()

    def segment_means(self, hidden: Tensor, tokens: ResponseTokens, block_tokens: int) -> SegmentMeans:
        num_segments = tokens.num_segments
        vector = hidden.new_empty((num_segments, self.vector_size), dtype=torch.float32)
        numbers = hidden.new_empty((len(hidden), NUM_NUMBERS), dtype=torch.float32)
        group = max(1, MEAN_BUFFER_BYTES // (4 * self.vocab_size))
        for first in range(0, num_segments, group):
            stop = min(first + group, num_segments)
            mean = self._buffer("mean", stop - first, hidden.device).zero_()
            start_token, stop_token = np.searchsorted(tokens.host_segment, (first, stop)).tolist()
            for start in range(start_token, stop_token, block_tokens):
                block = slice(start, min(start + block_tokens, stop_token))
                self._add_block(hidden[block], tokens, block, mean, first, numbers)
            vector[first:stop] = self._pull_back(mean)
        return SegmentMeans(vector, numbers)

    def _add_block(
        self, hidden: Tensor, tokens: ResponseTokens, block: slice, mean: Tensor, offset: int, numbers: Tensor
    ) -> None:
        if self._mixed:
            logits = torch.mm(hidden, self._weight.t(), out_dtype=torch.float32)
            if self._inner_scale != 1.0:
                logits.mul_(self._inner_scale)
        else:
            scaled = hidden.float() if self._inner_scale == 1.0 else hidden.float() * self._inner_scale
            logits = self._buffer("logits", len(hidden), hidden.device)
            torch.mm(scaled, self._weight.t(), out=logits)
        if self._bias is not None:
            logits.add_(self._bias)
        if self._cap is not None:
            logits.tanh_().mul_(self._cap)
        num_rows = CPU_ROWS if logits.device.type == "cpu" else len(logits)
        for start in range(0, len(logits), num_rows):
            rows = slice(start, min(start + num_rows, len(logits)))
            taken = slice(block.start + rows.start, block.start + rows.stop)
            out = self._buffer("residual", rows.stop - rows.start, logits.device)
            inverse_z, numbers[taken], top = residual_of(logits[rows], tokens.target[taken], out)
            if self._cap is not None:  # 1 - (z/cap)^2 in place of z - top
                out.mul_(logits[rows].add_(top).div_(self._cap).square_().neg_().add_(1.0))
            first, stop = int(tokens.host_segment[taken.start]), int(tokens.host_segment[taken.stop - 1]) + 1
            average = averaging_matrix(tokens.segment[taken], tokens.weight[taken], first, stop)
            mean[first - offset : stop - offset].addmm_(average * inverse_z, out)

    def _pull_back(self, mean: Tensor) -> Tensor:
        """Return scale * mean @ W, summed in float32 for any dtype of W."""
        if not self._mixed:
            return torch.mm(mean, self._weight).mul_(self._scale)
        vector = mean.new_zeros((len(mean), self.vector_size))
        step = max(1, PULL_BACK_BYTES // (4 * self.vector_size))
        for start in range(0, self.vocab_size, step):
            part = slice(start, min(start + step, self.vocab_size))
            vector.addmm_(mean[:, part], self._weight[part].float())
        return vector.mul_(self._scale)

    def _buffer(self, name: str, num_rows: int, device: torch.device) -> Tensor:
        """Return an uninitialised (num_rows, vocab) float32 matrix."""
        if (kept := self._scratch.get(name)) is None or len(kept) < num_rows:
            kept = torch.empty((num_rows, self.vocab_size), dtype=torch.float32, device=device)
            if device.type == "cpu":
                # Fresh pages cost as much as the product that fills them. GPUs have torch's caching allocator.
                self._scratch[name] = kept
        return kept[:num_rows]


def means_of_any_length(head: OutputHead, hidden: Tensor, tokens: ResponseTokens, block_tokens: int) -> SegmentMeans:
    """Return a head's means over segments; sum segments above WHOLE_TOKENS in stretches.

    One float32 sum over a long, repetitive segment drifts, because every addition is rounded in the same direction.
    """
    lengths = np.bincount(tokens.host_segment, minlength=tokens.num_segments)
    if not len(long := np.flatnonzero(lengths > WHOLE_TOKENS)):
        return head.segment_means(hidden, tokens, block_tokens)
    parts = np.ones(len(lengths), dtype=np.int64)
    parts[long] = -(-lengths[long] // STRETCH_TOKENS)
    stop = np.cumsum(parts)
    within = np.where(np.repeat(parts > 1, lengths), aranges(lengths) // STRETCH_TOKENS, 0)
    stretch = np.repeat(stop - parts, lengths) + within
    device = tokens.segment.device
    segment = devices.to_device(devices.pin(torch.from_numpy(stretch), device), device)
    # Weights stay relative to the whole segment.
    made = head.segment_means(hidden, ResponseTokens(tokens.target, segment, tokens.weight, stretch), block_tokens)
    rows, wide = made.vector, devices.wide_dtype(made.vector.device)
    # One row per segment: its own row, or the sum of the rows of its stretches.
    summed = torch.cat([rows[first : first + 1] for first in (stop - parts).tolist()])
    for number in long.tolist():
        summed[number] = rows[stop[number] - parts[number] : stop[number]].sum(dim=0, dtype=wide).to(rows.dtype)
    return SegmentMeans(summed, made.numbers)
