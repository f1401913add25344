"""The extractor of the proxy signal: units of samples in, segment vectors out."""

import numpy as np
import torch
from torch import Tensor

from grace_store.base.arrays import IntArray
from grace_store.base.states import UnitSignals
from grace_store.model import devices
from grace_store.model.head.closed_form import OutputHead, ResponseTokens, SegmentMeans
from grace_store.model.inputs.collate import Batch
from grace_store.model.inputs.encode_samples import PreparedUnit
from grace_store.model.inputs.vision import ImageInputs
from grace_store.model.unit_extractor import PendingSegments, UnitExtractor

WHOLE_TOKENS = 512
"""Tokens of a segment that may be summed up as one."""
STRETCH_TOKENS = 64
"""Tokens of a longer one that are."""


class ProxyExtractor(UnitExtractor[SegmentMeans, UnitSignals]):
    """Turns samples into proxy vectors: dL/dh at the output head, averaged over each segment."""

    @property
    def vector_size(self) -> int:
        return self.head.vector_size

    def _pending(self, prepared: PreparedUnit) -> PendingSegments:
        return PendingSegments(prepared, self.vector_size)

    def _run(self, batch: Batch, image_inputs: ImageInputs) -> SegmentMeans:
        with torch.inference_mode():
            hidden = self.hidden_states(batch, image_inputs)
            tokens = batch.tokens_on(self._device)
            means = means_of_any_length(self.head, hidden, tokens, self._spec.head_tokens)
            return SegmentMeans(devices.to_host(means.vector), devices.to_host(means.statistics))


def means_of_any_length(head: OutputHead, hidden: Tensor, tokens: ResponseTokens, block_tokens: int) -> SegmentMeans:
    """Return a head's means over segments, those above WHOLE_TOKENS a stretch at a time.

    One float32 sum over a long segment that repeats itself drifts, as every addition is rounded the same way.
    """
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
    device = tokens.segment.device
    segment = devices.to_device(devices.pin(torch.from_numpy(stretch), device), device)
    return ResponseTokens(tokens.target, segment, tokens.weight, stretch)


def _summed(rows: Tensor, long: IntArray, parts: IntArray, stop: IntArray) -> Tensor:
    """Return a row for each segment: its only one, or the sum of its stretches' rows."""
    kept = torch.cat([rows[first : first + 1] for first in (stop - parts).tolist()])
    wide = devices.wide_dtype(rows.device)
    for number in long.tolist():
        kept[number] = rows[stop[number] - parts[number] : stop[number]].sum(dim=0, dtype=wide).to(rows.dtype)
    return kept
