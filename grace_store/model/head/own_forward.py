"""From hidden states to segment vectors through any head: the model's own forward with its backbone replaced.

Exact on whatever the model does between its last hidden state and its logits, at the price of a backward pass
through the head. Knows nothing of texts, samples or batches.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grace_store.base.errors import ModelError
from grace_store.model.head.closed_form import ResponseTokens, SegmentMeans, averaging_matrix, residual_of


def run_backbone(model: nn.Module, **inputs: Any) -> Any:
    """Return the output of the model without its head; last_hidden_state is what the head is given."""
    return backbone_of(model)(**{"use_cache": False, **inputs}, return_dict=True)


def backbone_of(model: Any) -> Any:
    """Return the model without its head: where a class names none (Llama 4 of texts), its only part with embeddings."""
    if model.base_model is not model:
        return model.base_model
    parts = [part for part in model.children() if hasattr(part, "get_input_embeddings")]
    return parts[0] if len(parts) == 1 else model


def probe_ids(model: Any, count: int, step: int) -> Tensor:
    """Return a batch of one sample of some tokens, no two alike, to try a model on: (1, count)."""
    num_ids: int = model.get_input_embeddings().weight.shape[0]
    return (torch.arange(1, count + 1, device=next(model.parameters()).device) * step % num_ids).unsqueeze(0)


def response_states(model: nn.Module, inputs: Mapping[str, Tensor], predecessor: Tensor) -> Tensor:
    """Return what the head is given at some places of the flattened batch: (places, d)."""
    hidden: Tensor = run_backbone(model, **inputs).last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, predecessor)


def refuse_not_finite(model: nn.Module) -> None:
    """Raise if any weight of a model, or any frequency of its positions, is not a finite number.

    What a model makes of a few tokens does not tell: some attention kernels turn what is not a number into zeros.
    """
    frequencies = ((name, buffer) for name, buffer in model.named_buffers() if name.endswith("inv_freq"))
    held = [(name, each) for name, each in (*model.named_parameters(), *frequencies) if each.is_floating_point()]
    is_finite = torch.stack([torch.isfinite(each).all().to(held[0][1].device) for _, each in held])
    if bool(is_finite.all()):
        return
    name, tensor = held[int(is_finite.int().argmin())]
    wide = tensor.dtype in (torch.float32, torch.float64)
    raise ModelError(
        f"{name} holds values that are not finite"
        + (": the model's files are damaged, or its training failed." if wide else f" in {tensor.dtype}.")
        + ("" if wide else " Try --dtype float32; if that says the same, the model's files are damaged.")
    )


class OwnForward:
    """The model's own head as a function of hidden states, in float32 whatever the model's dtype."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._stand_ins = backbones(model)
        self._parameters = _head_tensors(model, self._stand_ins)
        with torch.no_grad():
            self._output = run_backbone(model, input_ids=probe_ids(model, 4, 1))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits (tokens, vocab) of hidden states (tokens, d)."""
        ids = torch.zeros((1, len(hidden)), dtype=torch.long, device=hidden.device)
        output = type(self._output)(**{**self._output, "last_hidden_state": hidden.unsqueeze(0)})
        with _replaced(self._stand_ins, output):
            result: Any = torch.func.functional_call(
                self._model, self._parameters, kwargs={"input_ids": ids, "use_cache": False, "return_dict": True}
            )
        logits: Tensor = result.logits[0].float()
        return logits


class VjpHead:
    """A head of any form: vector-Jacobian products of the model's own forward."""

    def __init__(self, own: OwnForward, vector_size: int, vocab_size: int) -> None:
        self._own = own
        self.vector_size = vector_size
        self.vocab_size = vocab_size

    def __str__(self) -> str:
        return "vector-Jacobian products of the model's own head"

    def release(self) -> None:
        return

    def segment_means(self, hidden: Tensor, tokens: ResponseTokens, block_tokens: int) -> SegmentMeans:
        vector = hidden.new_zeros((tokens.num_segments, self.vector_size), dtype=torch.float32)
        statistics = hidden.new_zeros((tokens.num_segments, 3), dtype=torch.float32)
        for start in range(0, len(hidden), block_tokens):
            block = slice(start, min(start + block_tokens, len(hidden)))
            gradient, block_statistics = self._token_gradients(hidden[block], tokens.target[block])
            first, stop = int(tokens.host_segment[block.start]), int(tokens.host_segment[block.stop - 1]) + 1
            average = averaging_matrix(tokens.segment[block], tokens.weight[block], first, stop)
            vector[first:stop].addmm_(average, gradient)
            statistics[first:stop].addmm_(average, block_statistics)
        return SegmentMeans(vector, statistics)

    def _token_gradients(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            # A clone made here is an ordinary tensor, even of one made in inference mode.
            given = hidden.clone().float().requires_grad_(True)
            logits = self._own.logits(given)
            # A masked logit is minus infinity, and 0 times that would be no entropy.
            finite = logits.detach().clamp(min=torch.finfo(torch.float32).min)
            residual = torch.empty_like(finite)
            inverse_z, statistics, _ = residual_of(finite, target.clone(), residual)
            (gradient,) = torch.autograd.grad(logits, given, residual * inverse_z.unsqueeze(1))
        return gradient, statistics


def backbones(model: Any) -> list[nn.Module]:
    """Return the modules that a forward may call as its backbone: OPT's goes straight to its decoder."""
    found = [backbone_of(model)]
    if hasattr(model, "get_decoder"):
        found.append(model.get_decoder())
    if not (unique := {id(module): module for module in found if module is not model}):
        raise ModelError(f"{type(model).__name__} has no backbone apart from its head; it cannot be used.")
    return list(unique.values())


def _head_tensors(model: Any, backbones: list[nn.Module]) -> dict[str, Tensor]:
    """Return float32 forms of everything outside the backbone, by name; a tied head counts as outside."""
    inside = {id(tensor) for module in backbones for tensor in (*module.parameters(), *module.buffers())}
    output = model.get_output_embeddings()
    tied = set() if output is None else {id(tensor) for tensor in output.parameters()}
    # Each tensor once: functional_call gives it to all the names that share it.
    return {
        name: tensor.detach().float() if tensor.is_floating_point() else tensor
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if id(tensor) in tied or id(tensor) not in inside
    }


@contextmanager
def _replaced(modules: list[nn.Module], output: Any) -> Iterator[None]:
    """Have the modules return the given output instead of running."""
    for module in modules:
        module.forward = lambda *_args, **_kwargs: output
    try:
        yield
    finally:
        for module in modules:
            del module.forward
