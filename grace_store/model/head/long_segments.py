"""Means over very long segments: a stretch at a time, so that rounding does not add up over thousands of tokens.

One float32 sum over a segment that repeats itself drifts, as every addition is rounded the same way. Segments of at
most WHOLE_TOKENS are left as they are, to the last bit.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from grace_store.base.arrays import IntArray
from grace_store.model.head.closed_form import OutputHead, ResponseTokens, SegmentMeans

WHOLE_TOKENS = 512
"""Tokens of a segment that may be summed up as one."""
STRETCH_TOKENS = 64
"""Tokens of a longer one that are."""


def means_of_any_length(head: OutputHead, hidden: Tensor, tokens: ResponseTokens, block_tokens: int) -> SegmentMeans:
    """Return a head's means over segments of any length."""
    lengths = np.bincount(tokens.host_segment, minlength=tokens.num_segments)
    long = np.flatnonzero(lengths > WHOLE_TOKENS)
    if not len(long):
        return head.segment_means(hidden, tokens, block_tokens)
    parts = np.ones(len(lengths), dtype=np.int64)
    parts[long] = -(-lengths[long] // STRETCH_TOKENS)
    stop = np.cumsum(parts)
    made = head.segment_means(hidden, _in_stretches(tokens, lengths, parts), block_tokens)
    return SegmentMeans(_summed(made.vector, long, parts, stop), _summed(made.statistics, long, parts, stop))


def _in_stretches(tokens: ResponseTokens, lengths: IntArray, parts: IntArray) -> ResponseTokens:
    """Return the same tokens with each long segment as several; weights stay those of the whole."""
    within = np.arange(len(tokens.host_segment)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    of_long = np.repeat(parts > 1, lengths)
    stretch = np.repeat(np.cumsum(parts) - parts, lengths) + np.where(of_long, within // STRETCH_TOKENS, 0)
    segment = torch.from_numpy(stretch)
    if tokens.segment.device.type == "cuda":
        segment = segment.pin_memory()
    return ResponseTokens(tokens.target, segment.to(tokens.segment.device, non_blocking=True), tokens.weight, stretch)


def _summed(rows: Tensor, long: IntArray, parts: IntArray, stop: IntArray) -> Tensor:
    """Return a row for each segment: its only one, or the sum of its stretches' rows."""
    kept = torch.cat([rows[first : first + 1] for first in (stop - parts).tolist()])
    wide = torch.float32 if rows.device.type == "mps" else torch.float64
    for number in long.tolist():
        kept[number] = rows[stop[number] - parts[number] : stop[number]].sum(dim=0, dtype=wide).to(rows.dtype)
    return kept
