"""The extractor of the proxy signal: units of samples in, segment vectors out."""

from __future__ import annotations

from pathlib import Path

import torch

from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.unit import UnitSignals
from grace_store.model.head.closed_form import OutputHead
from grace_store.model.head.long_segments import means_of_any_length
from grace_store.model.inputs.collate import Batch
from grace_store.model.inputs.vision import ImageInputs
from grace_store.model.load.weights import LoadedModel
from grace_store.model.unit_extractor import PendingSegments, PreparedUnit, SegmentRows, UnitExtractor, to_host

PROXY_BATCH_TOKENS = 16384


class ProxyExtractor(UnitExtractor[SegmentRows, UnitSignals]):
    """Turns samples into proxy vectors: dL/dh at the output head, averaged over each segment."""

    def __init__(
        self,
        loaded: LoadedModel,
        spec: ExtractSpec,
        options: RunOptions,
        *,
        head: OutputHead | None = None,
        images: str | Path | None = None,
    ) -> None:
        super().__init__(loaded, spec, options, batch_tokens=PROXY_BATCH_TOKENS, head=head, images=images)

    @property
    def vector_size(self) -> int:
        return self.head.vector_size

    def _pending(self, prepared: PreparedUnit) -> PendingSegments:
        return PendingSegments(prepared, self.vector_size)

    def _run(self, batch: Batch, image_inputs: ImageInputs) -> SegmentRows:
        with torch.inference_mode():
            hidden = self.hidden_states(batch, image_inputs)
            means = means_of_any_length(self.head, hidden, batch.tokens_on(self._device), self._head_tokens)
            return SegmentRows(to_host(means.vector), to_host(means.statistics))
