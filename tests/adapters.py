"""Adapters as peft and ms-swift leave them on disk, and the logits that peft itself gives with them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from grace_store.model.load.adapters import merge, read_adapter
from grace_store.model.load.weights import load

SWIFT_REGEX = r"^(model(?=\.).*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj))$"
IDS = torch.arange(3, 40)[None]


def make_adapter(
    base: Path,
    folder: Path,
    *,
    seed: int = 0,
    images: bool = False,
    save_embedding_layers: bool | str = False,
    **settings: Any,
) -> Path:
    """Save an adapter with random values, as peft does it."""
    kind = transformers.AutoModelForImageTextToText if images else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(base)
    chosen = {"r": 4, "lora_alpha": 8, "target_modules": SWIFT_REGEX, "task_type": "CAUSAL_LM", **settings}
    with warnings.catch_warnings():  # of ties, of EVA without data
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, LoraConfig(**chosen))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted.save_pretrained(folder, save_embedding_layers=save_embedding_layers)
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file(change(tensors), folder / "adapter_model.safetensors")


def peft_model(base: Path, adapter: Path) -> Any:
    """Return the model with the adapter beside its weights, as peft loads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), adapter).eval()


def their_logits(base: Path, adapter: Path) -> torch.Tensor:
    with torch.no_grad():
        return peft_model(base, adapter)(input_ids=IDS).logits


def our_logits(base: Path, adapter: Path, dtype: str = "float32") -> torch.Tensor:
    model = merge(read_adapter(adapter), load(base, dtype, "sdpa", "cpu", 1).model)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any("lora" in name for name, _ in model.named_modules())
    with torch.no_grad():
        return model(input_ids=IDS).logits.float()
