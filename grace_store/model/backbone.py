"""Run and probe a model without its head, and find which sample lengths may share a batch.

Some rotary embeddings scale positions by the length of the longest sample (longrope beyond the original context,
dynamic NTK), and some keep this length from call to call. This module resets them before every call. A probe finds
lengths with differently scaled positions, so that batches never mix them. Knows nothing of texts, samples or heads.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grace_store.base.errors import ModelError
from grace_store.model.inputs.batches import ANY_LENGTHS, ONE_AT_A_TIME, LengthRule

_LOG = logging.getLogger(__name__)

_FEWEST = 4
_NUM_PLACES = 8
_LAST_TOKENS = (1, 2, 5, 11)
_SAME_LENGTHS_ONLY = LengthRule(1, grows=True)
_STEADY = ("default", "linear", "yarn", "llama3", "proportional", "mrope")
"""Kinds of rotary embeddings that depend only on a token's position."""


def run_backbone(model: nn.Module, **inputs: Any) -> Any:
    """Return the output of the model without its head; last_hidden_state is the input of the head."""
    return backbone_of(model)(**{"use_cache": False, **inputs}, return_dict=True)


def backbone_of(model: Any) -> Any:
    """Return the model without its head: the base model, or the only part with embeddings (text-only Llama 4)."""
    if model.base_model is not model:
        return model.base_model
    parts = [part for part in model.children() if hasattr(part, "get_input_embeddings")]
    return parts[0] if len(parts) == 1 else model


def probe_ids(model: Any, count: int, step: int) -> Tensor:
    """Return token ids for a probe, shape (1, count): one sample without repeated tokens."""
    num_ids: int = model.get_input_embeddings().weight.shape[0]
    return (torch.arange(1, count + 1, device=next(model.parameters()).device) * step % num_ids).unsqueeze(0)


def response_states(model: nn.Module, inputs: Mapping[str, Tensor], predecessor: Tensor) -> Tensor:
    """Return the inputs of the head at the given indices of the flattened batch: (indices, d)."""
    hidden: Tensor = run_backbone(model, **inputs).last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, predecessor)


def refuse_not_finite(model: nn.Module) -> None:
    """Raise if a weight of the model, or a frequency of its rotary embeddings, is not finite.

    A forward pass does not show this reliably: some attention kernels turn NaN into zeros.
    """
    frequencies = ((name, buffer) for name, buffer in model.named_buffers() if name.endswith("inv_freq"))
    held = [(name, each) for name, each in (*model.named_parameters(), *frequencies) if each.is_floating_point()]
    is_finite = torch.stack([torch.isfinite(each).all().to(held[0][1].device) for _, each in held])
    if bool(is_finite.all()):
        return
    name, tensor = held[int(is_finite.int().argmin())]
    why = ": the model's files are damaged, or its training failed"
    if tensor.dtype not in (torch.float32, torch.float64):
        why = f" in {tensor.dtype}. Try --dtype float32. If the error stays, the model's files are damaged"
    raise ModelError(f"{name} holds values that are not finite{why}.")


def backbones(model: Any) -> list[nn.Module]:
    """Return the modules that a forward may call as its backbone. OPT calls its decoder directly."""
    found = [backbone_of(model)]
    if hasattr(model, "get_decoder"):
        found.append(model.get_decoder())
    if not (unique := {id(module): module for module in found if module is not model}):
        raise ModelError(f"{type(model).__name__} has no backbone that is separate from its head. Give another model.")
    return list(unique.values())


def forget_lengths(model: nn.Module) -> None:
    """Make every length-dependent rotary module start each call in the state that it was loaded in."""
    for module in model.modules():
        if _is_unsteady(module):
            module.register_forward_pre_hook(_Restored(module))


class _Restored:
    """A hook that resets a module to its state at the hook's creation, on the module's current device."""

    def __init__(self, module: nn.Module) -> None:
        self._attributes = dict(module.__dict__)
        self._buffers = dict(module._buffers)

    def __call__(self, module: nn.Module, _args: Any) -> None:
        device = next((buffer.device for buffer in module._buffers.values() if buffer is not None), None)
        for name in module.__dict__.keys() - self._attributes.keys():
            delattr(module, name)
        module.__dict__.update(self._attributes)
        module._buffers = {name: each if each is None else each.to(device) for name, each in self._buffers.items()}


def find_length_rule(model: nn.Module, max_length: int) -> LengthRule:
    """Return which samples of at most max_length tokens may share a batch."""
    try:
        rule = _find(model, max_length)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        _LOG.info("the model cannot be probed one position at a time: %s", error)
        rule = _SAME_LENGTHS_ONLY if any(_is_unsteady(module) for module in model.modules()) else ANY_LENGTHS
    if rule != ANY_LENGTHS and hasattr(backbone_of(model), "get_rope_index"):
        rule = ONE_AT_A_TIME  # with images, positions are fewer than tokens
    if rule != ANY_LENGTHS:
        _LOG.info("samples share a batch only if their positions are scaled alike: %s", rule)
    return rule


def _find(model: nn.Module, max_length: int) -> LengthRule:
    if max_length <= _FEWEST:
        return ANY_LENGTHS
    limits = sorted(limit for limit in set(numbers_named(model, ("max_position",))) if _FEWEST < limit < max_length)
    if _are_alike(model, (*limits, max_length // 2, max_length - 1), max_length):
        return ANY_LENGTHS
    for number, limit in reversed(list(enumerate(limits))):
        if _are_alike(model, (*limits[:number], limit // 2), limit):
            return LengthRule(limit + 1, grows=not _is_same(model, limit + 1, max_length))
    return _SAME_LENGTHS_ONLY


def _are_alike(model: nn.Module, lengths: Iterable[int], longest: int) -> bool:
    return all(_is_same(model, length, longest) for length in {_FEWEST, *lengths} if length >= _FEWEST)


def _is_unsteady(module: nn.Module) -> bool:
    kinds = getattr(module, "rope_type", None)
    several = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any(isinstance(kind, str) and kind not in _STEADY for kind in several)


def numbers_named(model: Any, words: Sequence[str]) -> Iterator[int]:
    """Yield every number of the configuration with one of the words in its name."""
    waiting: list[Any] = [model.config.to_dict()]
    while waiting:
        for key, value in waiting.pop().items():
            if isinstance(value, dict):
                waiting.append(value)
            elif any(word in str(key) for word in words) and isinstance(value, int | float):
                yield int(value)


def _is_same(model: nn.Module, shorter: int, longer: int) -> bool:
    """Tell whether tokens have the same hidden states with the last token at the end of either length."""
    first = _hidden(model, shorter, shorter)
    difference = float((first - _hidden(model, shorter, longer)).norm())
    if difference == 0:
        return True
    # In a mixture of experts, another last token changes how sums are rounded, though not at every length. This noise
    # sets the tolerance.
    tried = {shorter: first, _FEWEST: _hidden(model, _FEWEST, _FEWEST)}.items()
    noise = max(float((at - _hidden(model, num, num, last)).norm()) for num, at in tried for last in _LAST_TOKENS)
    least = torch.finfo(next(model.parameters()).dtype).eps * float(first.norm())
    return noise > 0 and difference <= 4 * max(noise, least)


def _hidden(model: Any, shorter: int, length: int, last: int = 0) -> Tensor:
    """Return hidden states of tokens spread over the shorter length, with the last token at the end of length."""
    spread = sorted({number * (shorter - 2) // (_NUM_PLACES - 1) for number in range(_NUM_PLACES)})
    ids = probe_ids(model, len(spread) + 1, 31)
    ids[0, -1] = last % model.get_input_embeddings().weight.shape[0]
    places = torch.tensor([[*spread, length - 1]], device=ids.device)
    with torch.inference_mode():
        # Without a mask, the model would take gaps between positions for borders of packed samples.
        made = run_backbone(model, input_ids=ids, position_ids=places, attention_mask=torch.ones_like(ids))
    hidden: Tensor = made.last_hidden_state[0, :-1].float()
    return hidden
