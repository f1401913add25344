"""What lies at an adapter's path: a LoRA adapter in peft's layout, or a sentence why it cannot be used.

ms-swift writes the same layout, with one regular expression for target_modules and files of its own beside. Reads
names and JSON only; knows neither torch nor peft.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace_store.base.errors import MissingExtra, ModelError, UnsafeModel
from grace_store.model.load.model_folder import ADAPTER_FILES, read_object

CONFIG, TENSORS = ADAPTER_FILES
TRAINING_STATE = "training_state.json"

UNDERSTOOD = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "fan_in_fan_out",
              "modules_to_save")  # fmt: skip
"""Keys that change what a finished adapter computes, and that peft merges exactly."""
IMMATERIAL = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules",
    "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout",
    "lora_dtype", "lora_ga_config", "lorap_emb_lr", "lorap_lr_ratio", "megatron_core", "model_key_mapping",
    "peft_type", "peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type",
})  # fmt: skip
"""Keys that only mattered while the adapter was made, or say where it goes, which its tensors say better."""


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """A LoRA adapter on disk that is safe to open."""

    path: Path
    config: dict[str, Any]
    base: dict[str, Any] | None
    """The identity of the model it was trained on, where a warm-up of ours wrote it down."""

    @property
    def tensors(self) -> Path:
        return self.path / TENSORS

    @property
    def base_name(self) -> str | None:
        """What its maker called the model it was trained on."""
        name = self.config.get("base_model_name_or_path")
        return str(name) if name else None


def open_adapter(path: str | Path) -> AdapterFolder:
    """Return the adapter at a path, or raise a sentence."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ModelError(f"There is no adapter at {folder}: expected a folder with {CONFIG} and {TENSORS}.")
    config = read_object(folder / CONFIG)
    if config is None:
        if (folder / "config.json").is_file():
            raise ModelError(f"{folder} is a whole model, not an adapter. Give it with --model, without --adapter.")
        raise ModelError(f"{folder} has no {CONFIG}: it is no adapter in peft's layout.")
    if not (folder / TENSORS).is_file():
        if (folder / "adapter_model.bin").is_file():
            raise UnsafeModel(
                f"{folder} holds its adapter as a pickle (adapter_model.bin), which can run code when opened. "
                "Load it once where you trust it, and peft's save_pretrained writes safetensors."
            )
        raise ModelError(f"{folder} has {CONFIG} but no {TENSORS}.")
    _refuse_unfit(folder, config)
    state = read_object(folder / TRAINING_STATE) or {}
    base = state.get("base")
    return AdapterFolder(folder, config, base if isinstance(base, dict) else None)


def require_peft() -> None:
    """Raise a sentence if the library that knows adapters is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise MissingExtra("Adapters and warm-up need peft: pip install 'grace-store[warmup]'.")


def find_adapters(path: str | Path) -> list[Path]:
    """Return an adapter's own folder, or the checkpoint-STEP folders inside a training's output, by step."""
    folder = Path(path).expanduser()
    if (folder / CONFIG).is_file() or not folder.is_dir():
        return [folder]
    steps = {
        int(found[1]): entry
        for entry in folder.iterdir()
        if (found := re.fullmatch(r"checkpoint-([0-9]+)", entry.name)) and (entry / CONFIG).is_file()
    }
    return [steps[step] for step in sorted(steps)] or [folder]


def _refuse_unfit(folder: Path, config: dict[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{folder} is an adapter of type {kind}; only LORA can be merged. Merge it with its own tool.")
    if config.get("bias", "none") != "none":
        raise ModelError(
            f"{folder} also trained biases (bias={config['bias']}), which is not supported. Merge it first."
        )
    known = {*UNDERSTOOD, *IMMATERIAL, "bias"}
    strange = sorted(key for key, value in config.items() if key not in known and value)
    if strange:
        raise ModelError(
            f"{folder} uses {', '.join(strange)} ({CONFIG}), which cannot be merged exactly here. Merge it with its "
            "own tool and give the merged folder as --model."
        )
