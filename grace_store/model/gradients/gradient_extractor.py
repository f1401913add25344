"""The extractor of projected gradients, with one vector for each sample or segment."""

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from grace_store.base.errors import OutOfMemory
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.states import Reason, SampleSignals, SetAside, UnitOutcome
from grace_store.model import devices
from grace_store.model.closed_form import SegmentMeans
from grace_store.model.gradients import sample_gradients as by_sample
from grace_store.model.gradients.projection import AdamStep, ProjectedRows, coordinates_of, make_projector, read_moments
from grace_store.model.inputs.batches import ONE_AT_A_TIME
from grace_store.model.inputs.collate import Batch
from grace_store.model.inputs.encode_samples import PreparedUnit
from grace_store.model.inputs.vision import ImageInputs
from grace_store.model.load.adapters import ADAPTER, Adapter, attach_adapter
from grace_store.model.load.weights import LoadedModel
from grace_store.model.token_numbers import segment_statistics
from grace_store.model.unit_extractor import PendingSegments, UnitExtractor, UnitInFlight


class PendingSamples(UnitInFlight[SegmentMeans, SampleSignals]):
    """A unit in flight with one vector for each sample."""

    def gather(self) -> SampleSignals:
        num_samples = len(self.prepared.num_rows)
        signals = SampleSignals(
            sample_vector=np.zeros((num_samples, self.vector_size), dtype=np.float32),
            sample_norm=np.zeros(num_samples, dtype=np.float32),
            sample_num_tokens=np.zeros(num_samples, dtype=np.int32),
            sample_loss=np.zeros(num_samples, dtype=np.float32),
        )
        for batch, made in self.results:
            assert made.norm is not None
            counts = [self.prepared.tokens[member].num_response_tokens for member in batch.members]
            losses = segment_statistics(made.numbers.numpy(), np.array(counts))["loss"].tolist()
            for row, (member, loss) in enumerate(zip(batch.members, losses, strict=True)):
                vector, norm = made.vector[row].numpy(), float(made.norm[row])
                if not (np.isfinite(vector).all() and np.isfinite([loss, norm]).all()):
                    signals.set_aside[member] = SetAside(
                        Reason.NOT_FINITE, "the sample's gradient or loss is not finite"
                    )
                    continue
                signals.sample_vector[member] = vector
                signals.sample_norm[member] = norm
                signals.sample_num_tokens[member] = counts[row]
                signals.sample_loss[member] = loss
        return signals


class GradientExtractor(UnitExtractor[SegmentMeans, UnitOutcome]):
    """An extractor of projected gradients: gradients of the loss with respect to a LoRA adapter's parameters."""

    def __init__(
        self,
        loaded: LoadedModel,
        adapter: Adapter,
        spec: ExtractSpec,
        options: RunOptions,
        *,
        images: str | Path | None = None,
    ) -> None:
        """Attach the adapter to a model without adapter."""
        assert spec.gradient is not None
        layers = attach_adapter(adapter, loaded.model)
        super().__init__(loaded, spec, options, images=images)
        self._gradient = spec.gradient
        coordinates = coordinates_of(adapter)
        places = {name: name.rpartition(".") for name in coordinates}
        parameters: dict[str, nn.Parameter] = {
            name: getattr(layers[module], part)[ADAPTER].weight for name, (module, _, part) in places.items()
        }
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        recorder, head_tokens = by_sample.record(layers), self._spec.head_tokens
        chosen = by_sample.choose_source(loaded.model, self.head, recorder, parameters, head_tokens)
        self._source, self.is_recorded = chosen
        if not self.is_recorded:
            self.length_rule = ONE_AT_A_TIME
        precondition = None
        if self._gradient.preconditioner == "adam":
            moments = read_moments(adapter, coordinates)
            precondition = AdamStep(moments, loaded.device, bias_correction=self._gradient.bias_correction)
        self._projected = ProjectedRows(coordinates, make_projector(self._gradient), precondition)
        self._finished: list[SegmentMeans] = []
        self._under_way: Tensor | None = None

    @property
    def vector_size(self) -> int:
        return self._gradient.dimension

    def _pending(self, prepared: PreparedUnit) -> UnitInFlight[SegmentMeans, UnitOutcome]:
        kind = PendingSamples if self._gradient.per == "sample" else PendingSegments
        return kind(prepared, self.vector_size)  # type: ignore[return-value]

    def _run(self, batch: Batch, image_inputs: ImageInputs) -> SegmentMeans:
        per, counts = self._gradient.per, by_sample.row_tokens(batch, self._gradient.per)
        # A unit has the same bytes in every run; no warning from devices that cannot do this.
        with devices.same_every_time(self._device), warnings.catch_warnings(action="ignore"):
            numbers, found = self._source(batch, self.inputs_on_device(batch, image_inputs), per)
            out = torch.zeros((len(counts), self.vector_size), device=self._device)
            self._under_way = out
            for rows, gradients in found:
                tokens = by_sample.on_device(counts[rows], out).unsqueeze(1)
                means = {name: gradient.div_(tokens) for name, gradient in gradients.items()}
                self._projected.add(out, by_sample.on_device(rows, out, torch.int64), means)
        self._under_way = None
        made = SegmentMeans(out, numbers, out.new_zeros(len(out)))
        self._finished.append(made)
        return made

    def _finish(self) -> None:
        """Project the waiting gradients, normalise, and copy all rows of the unit to host memory."""
        try:
            with devices.same_every_time(self._device), warnings.catch_warnings(action="ignore"):
                self._projected.flush()
        except (RuntimeError, MemoryError) as error:
            if not devices.is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"Projecting gradients to {self.vector_size} numbers does not fit on {self._device}. Use a larger or "
                "less busy device, or begin a new --signal with --projection sparse or a smaller --dimension."
            ) from error
        for rows in self._finished:
            norm = torch.linalg.vector_norm(rows.vector, dim=1, dtype=torch.float64)
            if self._gradient.normalise:
                rows.vector.div_(torch.where(norm > 0, norm, 1.0).unsqueeze(1))
            rows.vector, rows.norm = devices.to_host(rows.vector), devices.to_host(norm.float())
            rows.numbers = devices.to_host(rows.numbers)
        self._finished = []

    def _forget(self) -> None:
        if self._under_way is not None:
            self._projected.forget(self._under_way)
            self._under_way = None
