"""LoRA on the linear layers of a model's language part: where it goes, how it starts, and what it is called.

The vision tower, the aligner, the embeddings and the output head stay as they are, so the head's W_out is the
base model's. Nothing is ever dropped out: the model stays in evaluation mode, and activations that are computed
twice are the same twice.
"""

import functools
import re
import warnings
from typing import Any, cast

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from grace_store.base.errors import ModelError

ADAPTER = "default"
_FEW = 0.01
_KINDS_SHOWN = 3


def language_part(model: Any) -> nn.Module:
    """Return the decoder of a model, without vision tower, aligner and head."""
    decoder: nn.Module = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    return decoder


def target_names(model: Any) -> list[str]:
    """Return the full names of the decoder's linear layers, GPT-2's Conv1D included."""
    decoder = language_part(model)
    output = model.get_output_embeddings()
    inside = {id(module) for module in decoder.modules() if isinstance(module, nn.Linear | Conv1D)}
    if not (names := [name for name, module in model.named_modules() if id(module) in inside and module is not output]):
        raise ModelError(f"{type(model).__name__} has no linear layers in its language part for LoRA to go on.")
    return names


def say_left_out(model: Any) -> str | None:
    """Say which matrices of the language part get no adapter, such as a mixture's experts; None if few do."""
    targets = {id(model.get_submodule(name).weight) for name in target_names(model)}
    ends = [each for each in model.modules() if isinstance(each, nn.Embedding) or each is model.get_output_embeddings()]
    inside = {id(parameter) for parameter in language_part(model).parameters()}
    inside -= {id(parameter) for end in ends for parameter in end.parameters()}
    sizes = {name: each.numel() for name, each in model.named_parameters() if id(each) in inside and each.dim() > 1}
    left_out = [name for name, parameter in model.named_parameters() if name in sizes and id(parameter) not in targets]
    share = sum(sizes[name] for name in left_out) / max(1, sum(sizes.values()))
    if share < _FEW:
        return None
    kinds = list(dict.fromkeys(re.sub(r"(?<=\.)[0-9]+(?=\.)", "*", name) for name in left_out))
    return (
        f"{share:.0%} of the language part's weights get no adapter, as LoRA goes on linear layers only: "
        f"{', '.join(kinds[:_KINDS_SHOWN])}{', ...' if len(kinds) > _KINDS_SHOWN else ''}."
    )


def attach_fresh_adapter(model: nn.Module, rank: int, alpha: float, seed: int, base: str) -> Any:
    """Put a fresh float32 adapter on a frozen model, in place, and return peft's view of both."""
    names = target_names(model)
    modules = dict(model.named_modules())
    config = LoraConfig(
        r=rank,
        lora_alpha=cast(int, int(alpha) if alpha == int(alpha) else alpha),
        lora_dropout=0.0,
        bias="none",
        target_modules=names,
        fan_in_fan_out=any(isinstance(modules[name], Conv1D) for name in names),
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=base,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, config, adapter_name=ADAPTER)
    adapted.eval()
    start(adapted, seed)
    return adapted


def trainable(adapted: Any) -> dict[str, nn.Parameter]:
    """Return the adapter's parameters under the names they have in adapter_model.safetensors, sorted."""
    learnt = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    return dict(sorted((name.replace(f".{ADAPTER}.", "."), parameter) for name, parameter in learnt.items()))


def start(adapted: Any, seed: int) -> None:
    """Draw A as peft would but from our seed, on the CPU and by name so that all ranks start alike; B is zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in trainable(adapted).items():
            if ".lora_A." in name:
                drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.copy_((2.0 * drawn - 1.0) / parameter.shape[1] ** 0.5)
            else:
                parameter.zero_()


def adapter_config(adapted: Any) -> dict[str, Any]:
    """Return adapter_config.json as peft would write it, with sets in one order."""
    settings = adapted.peft_config[ADAPTER].to_dict()
    settings["inference_mode"] = True
    return {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}


def compute_twice(model: nn.Module) -> int:
    """Have each layer compute its activations again for gradients; transformers' switch would switch dropout on."""
    layers = [module for module in language_part(model).modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    return len(layers)
