"""Compute gradients of LoRA parameters for a batch, one row for each sample or segment, in one of two ways.

Recorded: one forward pass for the batch, then the gradient of each token's loss at its last hidden state, then one
backward pass (or one for the first segments of all samples, one for the second segments, ...) that records the gradient
of every sample. Plain: one sample at a time, with autograd through the model's own forward. The plain way is right for
all models. The recorded way is used if it gives the same gradients in a probe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from grace_store.base.arrays import Float32Array, IntArray
from grace_store.base.settings import Per
from grace_store.model import devices
from grace_store.model.backbone import response_states
from grace_store.model.closed_form import OutputHead, alone, residual_of
from grace_store.model.inputs.collate import Batch, collate
from grace_store.model.inputs.tokens import TokenizedSample
from grace_store.model.load.adapters import ADAPTER

_LOG = logging.getLogger(__name__)

GradientRows = tuple[IntArray, dict[str, Tensor]]
"""Indices of samples or segments in a batch, in host memory, and for each parameter their gradients summed over their
tokens: (rows, elements) float32 on the device."""

GradientSource = Callable[[Batch, dict[str, Tensor], Per], tuple[Tensor, Iterator[GradientRows]]]
"""A function that returns each token's numbers and the gradients of the rows of a batch. The caller must
take the gradients before the next batch runs."""


def recorded_gradients(
    model: nn.Module,
    head: OutputHead,
    recorder: Recorder,
    head_tokens: int,
    batch: Batch,
    inputs: dict[str, Tensor],
    per: Per,
) -> tuple[Tensor, Iterator[GradientRows]]:
    """Return the gradients of a batch with backward passes that all samples share."""
    device = inputs["input_ids"].device
    recorder.start(inputs["input_ids"].shape, batch.packed_lengths)
    try:
        with torch.enable_grad():
            hidden = response_states(model, inputs, devices.to_device(batch.predecessor, device))
        if not hidden.requires_grad:
            raise NotBySample("this batch uses no adapted layer")
        with torch.no_grad():
            each = head.segment_means(hidden.detach(), alone(devices.to_device(batch.target, device)), head_tokens)
    except BaseException:
        recorder.stop()
        raise
    return each.numbers, _recorded_rows(recorder, batch, hidden, each.vector.to(hidden.dtype), per)


def _recorded_rows(recorder: Recorder, batch: Batch, hidden: Tensor, back: Tensor, per: Per) -> Iterator[GradientRows]:
    passes = list(_passes(batch, per))
    try:
        for number, (rows, samples, tokens) in enumerate(passes):
            # A product with 0 or 1, because a selection of rows would wait for the device.
            chosen = back if tokens is None else back * on_device(tokens, back).unsqueeze(1)
            torch.autograd.backward(hidden, chosen, retain_graph=number < len(passes) - 1)
            found = recorder.take()
            if len(samples) < len(batch.members):
                index = on_device(samples, back, torch.int64)
                found = {name: gradient.index_select(0, index) for name, gradient in found.items()}
            yield rows, found
    finally:
        recorder.stop()


def plain_gradients(
    model: nn.Module, parameters: dict[str, nn.Parameter], batch: Batch, inputs: dict[str, Tensor], per: Per
) -> tuple[Tensor, Iterator[GradientRows]]:
    """Return the gradients of a batch of one sample, with autograd through the model's own forward."""
    assert len(batch.members) == 1, "plain gradients need batches of one sample"
    device = inputs["input_ids"].device
    with torch.enable_grad():
        logits: Tensor = model(**inputs, use_cache=False).logits
        predecessor = devices.to_device(batch.predecessor, device)
        chosen = logits.reshape(-1, logits.shape[-1]).index_select(0, predecessor).float()
        target = devices.to_device(batch.target, device)
        losses = nn.functional.cross_entropy(chosen, target, reduction="none")
    # A masked logit is minus infinity. Its product with a probability of 0 would make the entropy NaN.
    finite = chosen.detach().clamp(min=torch.finfo(torch.float32).min)
    _, numbers, _ = residual_of(finite, target, torch.empty_like(finite))
    return numbers, _plain_rows(parameters, batch, losses, per)


def _plain_rows(parameters: dict[str, nn.Parameter], batch: Batch, losses: Tensor, per: Per) -> Iterator[GradientRows]:
    passes = list(_passes(batch, per))
    for number, (rows, _, tokens) in enumerate(passes):
        weight = torch.ones_like(losses) if tokens is None else on_device(tokens, losses)
        found: Sequence[Tensor | None] = [None] * len(parameters)
        if losses.requires_grad:  # not if the adapter is on the vision tower and the sample has no images
            wanted, more = list(parameters.values()), number < len(passes) - 1
            found = torch.autograd.grad(losses, wanted, weight, retain_graph=more, allow_unused=True)
        gradients = {
            name: torch.zeros_like(parameter, dtype=torch.float32) if gradient is None else gradient.float()
            for (name, parameter), gradient in zip(parameters.items(), found, strict=True)
        }
        yield rows, {name: gradient.reshape(1, -1) for name, gradient in gradients.items()}


def choose_source(
    model: nn.Module, head: OutputHead, recorder: Recorder, parameters: dict[str, nn.Parameter], head_tokens: int
) -> tuple[GradientSource, bool]:
    """Return the recorded source if a probe confirms it, else the plain source; and whether it is recorded."""
    recorded = partial(recorded_gradients, model, head, recorder, head_tokens)
    plain = partial(plain_gradients, model, parameters)
    is_exact = _is_exact(recorded, plain, model, parameters)
    for parameter in parameters.values():
        parameter.grad = None  # the probe's gradients of layers that are not recorded
    return recorded if is_exact else plain, is_exact


def _is_exact(
    recorded: GradientSource, plain: GradientSource, model: nn.Module, parameters: dict[str, nn.Parameter]
) -> bool:
    """Tell whether recorded gradients of a few tokens equal autograd's gradients for each sample alone."""
    num_ids = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    probes = []
    for number, length in enumerate((9, 6, 4)):
        # Tokens without repetition; two segments of one token each follow the prompt.
        ids = (np.arange(length, dtype=np.int64) + 1 + 11 * number) * 7919 % num_ids
        probes.append(TokenizedSample(ids, np.repeat([-1, 0, 1], [length - 2, 1, 1]).astype(np.int64), 2))
    try:
        found = _gradients(recorded, collate(range(len(probes)), probes), parameters)
    except NotBySample as error:
        _LOG.info("gradients one sample at a time: %s", error)
        return False
    if missing := [name for name in parameters if name not in found]:
        # Some parts run only for some inputs, such as a vision tower. The probe cannot know their inputs.
        _LOG.info("gradients one sample at a time: a text does not use %s", missing[0])
        return False
    for row, sample in enumerate(probes):
        alone = _gradients(plain, collate([0], [sample]), parameters)
        expected = torch.cat([alone[name][0] for name in parameters])
        difference = torch.cat([found[name][row] for name in parameters]) - expected
        tolerance = 1e-3 if next(model.parameters()).dtype == torch.float32 else 0.1
        if not bool(difference.norm() <= tolerance * expected.norm()):
            _LOG.info("gradients one sample at a time: recorded gradients differ from autograd's")
            return False
    return True


def row_tokens(batch: Batch, per: Per) -> IntArray:
    """Return the number of response tokens of each sample or segment."""
    return np.bincount(batch.host_segment if per == "segment" else _sample_of_tokens(batch)).astype(np.int64)


def _sample_of_tokens(batch: Batch) -> IntArray:
    """Return the index of each response token's sample in the batch."""
    return np.repeat(np.arange(len(batch.members)), batch.num_segments)[batch.host_segment]


def _passes(batch: Batch, per: Per) -> Iterator[tuple[IntArray, IntArray, Float32Array | None]]:
    """Yield for each backward pass its rows, their samples, and a 0/1 mask of tokens (None: all tokens)."""
    all_samples = np.arange(len(batch.members))
    if per == "sample":
        yield all_samples, all_samples, None
        return
    num_segments = np.asarray(batch.num_segments, dtype=np.int64)
    first = np.cumsum(num_segments) - num_segments
    within = batch.host_segment - first[_sample_of_tokens(batch)]
    for number in range(int(num_segments.max())):
        samples = np.flatnonzero(num_segments > number)
        yield first[samples] + number, samples, (within == number).astype(np.float32)


def on_device(values: npt.NDArray[np.generic], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an array as a tensor on the device of like, by default with its dtype, without waiting for the device."""
    # Convert first: a copy that also converts goes through memory that is not pinned.
    tensor = torch.from_numpy(values).to(dtype or like.dtype)
    return devices.to_device(devices.pin(tensor, like.device), like.device)


def _gradients(source: GradientSource, batch: Batch, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    device = next(iter(parameters.values())).device
    _, rows = source(batch, {name: tensor.to(device) for name, tensor in batch.inputs.items()}, "sample")
    return list(rows)[0][1]  # noqa: RUF015 - the source must run to its end


# ---------------------------------------------------------------- gradients of all samples from one backward pass
# A LoRA factor is a linear layer without bias. Its gradient for one sample is the product of its inputs and of the
# gradients at its outputs, summed over the sample's tokens. So both are recorded, and autograd never computes the
# factor's own gradient, which would be a sum over the batch.


class NotBySample(Exception):
    """The input of a layer is not the tokens of each sample."""


class Recorder:
    """A collector of the gradients of all recorded layers, by name, each (samples, elements) in float32."""

    def __init__(self) -> None:
        self.shape: tuple[int, int] | None = None
        """Shape of the inputs (samples, longest); None while the recorder is off."""
        self._lengths: tuple[int, ...] = ()
        self._found: dict[str, Tensor] = {}

    def start(self, shape: Sequence[int], packed_lengths: tuple[int, ...] = ()) -> None:
        """Start to record a batch with inputs of shape (samples, longest), or (1, tokens) for packed samples."""
        self.shape = (shape[0], shape[1])
        self._lengths = packed_lengths
        self._found = {}

    def stop(self) -> None:
        self.shape = None
        self._found = {}

    def take(self) -> dict[str, Tensor]:
        """Return the gradients of the last backward pass, and drop them here."""
        found, self._found = self._found, {}
        return found

    def add(self, name: str, incoming: Tensor, coming_back: Tensor) -> None:
        """Add a layer's gradient. The gradients of a layer that runs twice are summed."""
        x, back = self._by_sample(name, incoming), self._by_sample(name, coming_back)
        if self._lengths:
            parts = [torch.split_with_sizes(tensor[0], list(self._lengths)) for tensor in (back, x)]
            made = torch.stack([left.t().float() @ right.float() for left, right in zip(*parts, strict=True)])
        else:
            made = torch.bmm(back.transpose(1, 2).float(), x.float())
        made = made.flatten(1)
        self._found[name] = self._found[name].add_(made) if name in self._found else made

    def _by_sample(self, name: str, tensor: Tensor) -> Tensor:
        """Return a layer's inputs or outputs as (samples, longest, features)."""
        assert self.shape is not None
        if tuple(tensor.shape[:-1]) not in (self.shape, (self.shape[0] * self.shape[1],)):
            raise NotBySample(f"{name} is given {tuple(tensor.shape)} for a batch of {self.shape} tokens")
        return tensor.reshape(*self.shape, tensor.shape[-1])


class _RecordedProduct(torch.autograd.Function):
    """The product x W' with a backward pass that records the gradient of W for each sample and gives W none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: RecordedLinear) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *coming_back: Tensor) -> tuple[Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.layer.recorder.add(ctx.layer.name, x, coming_back[0])
        return coming_back[0] @ weight if ctx.needs_input_grad[0] else None, None, None


class RecordedLinear(nn.Module):
    """A LoRA factor that replaces peft's own module."""

    def __init__(self, name: str, factor: nn.Linear, recorder: Recorder) -> None:
        super().__init__()
        self.name = name
        self.weight = factor.weight
        self.recorder = recorder

    def forward(self, x: Tensor) -> Tensor:
        if self.recorder.shape is None:
            return nn.functional.linear(x, self.weight)
        product: Tensor = _RecordedProduct.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
        return product


def record(layers: dict[str, LoraLayer]) -> Recorder:
    """Make layers, by their names in the adapter, record the gradients of their factors while the recorder is on."""
    recorder = Recorder()
    for name, layer in layers.items():
        for part in ("lora_A", "lora_B"):
            factors: Any = getattr(layer, part)
            factors[ADAPTER] = RecordedLinear(f"{name}.{part}", factors[ADAPTER], recorder)
    return recorder
