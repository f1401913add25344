"""Find and check the folder of a LoRA adapter in peft's layout; raise an error that says why it cannot be used.

ms-swift writes the same layout, with one regular expression for target_modules and additional files. This module reads
only names and JSON. Knows neither torch nor peft.
"""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grace_store.base.documents import Count, Document, read_document
from grace_store.base.errors import MissingExtra, ModelError, SettingError, UnsafeModel, how_to_install
from grace_store.base.settings import ModelIdentity
from grace_store.model.load.model_folder import ADAPTER_FILES, read_object

CONFIG, TENSORS = ADAPTER_FILES
OPTIMIZER = "optimizer.safetensors"
TRAINING_STATE = "training_state.json"
"""Files that `grace-store warmup` writes in addition."""
MOMENTS = ("exp_avg", "exp_avg_sq")
"""The state that AdamW keeps for each parameter, with the names of optimizer.safetensors."""

CONVERTED = Path("converted", "default")
"""The folder in a checkpoint where ms-swift writes a plain LoRA copy of an adapter that changed its base model."""
INITIAL = "initial_model"
"""The folder beside the checkpoints where ms-swift writes such an adapter before its training, as plain LoRA."""
MERGING = (
    "Merge the adapter with its own tool and give the merged folder as --model. If the model ties its head to its "
    "embeddings, untie the two first: otherwise the merge changes both"
)
INITIALISATIONS = ("gaussian", "orthogonal", "eva", "mica")
"""Values of init_lora_weights, beside true and false, that do not change the base model's weights."""
UNDERSTOOD = (
    "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "fan_in_fan_out", "modules_to_save",
)  # fmt: skip
"""Keys that change the output of a finished adapter and that peft merges exactly."""
CHECKED = ("bias", "init_lora_weights", "peft_type")
"""Keys with only some supported values."""
IMMATERIAL = (
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules",
    "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_dtype",
    "lora_ga_config", "lorap_emb_lr", "lorap_lr_ratio", "megatron_core", "model_key_mapping", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type",
)  # fmt: skip
"""Keys that do not change a finished adapter: they matter only during its training or for its initialisation, or name
its modules, which the names of its tensors do more exactly."""


class WarmupDocument(Document, maker="warmup", remedy="Run `grace-store {maker}` with a new --out."):
    """The base class of all documents of a warm-up."""


class CheckpointState(WarmupDocument, words="the state of a checkpoint"):
    """The position of a checkpoint in its training, and the training's model and recipe."""

    kind: Literal["warmup_checkpoint"] = "warmup_checkpoint"
    step: Count
    num_steps: Count
    fraction: str
    learning_rate: float
    """The learning rate of the checkpoint's last step."""
    mean_learning_rate: float
    """The mean over the steps since the previous checkpoint: the weight of this checkpoint in influence methods."""
    loss: float
    """The mean over the tokens of the steps since the previous checkpoint."""
    heldout_loss: float | None = None
    base: ModelIdentity
    """The base model of the adapter."""
    recipe_sha256: str


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """A LoRA adapter on disk that is safe to open."""

    path: Path
    config: dict[str, Any]
    state: CheckpointState | None
    """The state of the training; None unless `grace-store warmup` wrote the adapter."""

    @property
    def tensors(self) -> Path:
        return self.path / TENSORS

    @property
    def base_name(self) -> str | None:
        """The name of the base model in the adapter's configuration."""
        name = self.config.get("base_model_name_or_path")
        return str(name) if name else None


def open_adapter(path: str | Path) -> AdapterFolder:
    """Return the adapter at a path, or raise ModelError."""
    if not (folder := Path(path).expanduser()).is_dir():
        raise ModelError(f"There is no adapter at {folder}: expected a folder with {CONFIG} and {TENSORS}.")
    if (config := read_object(folder / CONFIG)) is None:
        if (folder / "config.json").is_file():
            raise ModelError(
                f"{folder} is a whole model, not an adapter. Give this folder as --model, and leave --adapter out."
            )
        raise ModelError(f"{folder} has no {CONFIG}, so the folder is not an adapter in peft's layout.")
    if not (folder / TENSORS).is_file():
        if (folder / "adapter_model.bin").is_file():
            raise UnsafeModel(
                f"{folder} holds its adapter as a pickle (adapter_model.bin). A pickle can run code when opened. Load "
                "the adapter once on a machine where that is safe, and save it as safetensors with peft's "
                "save_pretrained."
            )
        raise ModelError(f"{folder} has {CONFIG} but no {TENSORS}. Copy the adapter again.")
    _refuse_unfit(folder, config)
    return AdapterFolder(folder, config, read_state(folder))


def read_state(folder: Path) -> CheckpointState | None:
    """Return the state that `grace-store warmup` wrote for an adapter; None for an adapter of another tool."""
    path = folder / TRAINING_STATE
    is_ours = {"made_by", "recipe_sha256"} & (read_object(path) or {}).keys()
    return read_document(path, CheckpointState) if is_ours else None


def require_peft() -> None:
    """Raise MissingExtra if peft is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise MissingExtra(f"Adapters and warm-up need peft, and peft is not installed. {how_to_install('warmup')}")


def find_adapters(path: str | Path) -> list[Path]:
    """Return an adapter's own folder, or the checkpoint-STEP folders in the output of a training, by step.

    ms-swift adds a folder for each run (output/v0-DATE/checkpoint-STEP). It is searched if there is only one.
    """
    folder = Path(path).expanduser()
    if (folder / CONFIG).is_file() or not folder.is_dir():
        return [folder]
    if found := _checkpoints(folder):
        return found
    below = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    runs = {entry.name: found for entry in below if (found := _checkpoints(entry))}
    if len(runs) > 1:
        raise SettingError(
            f"{folder} holds the checkpoints of several runs: {', '.join(runs)}. Give the folder of one run as "
            "--adapter."
        )
    return next(iter(runs.values()), [folder])


def _checkpoints(folder: Path) -> list[Path]:
    adapters = [entry for entry in folder.iterdir() if (entry / CONFIG).is_file()]
    steps = {int(match[1]): each for each in adapters if (match := re.fullmatch(r"checkpoint-([0-9]+)", each.name))}
    return [steps[step] for step in sorted(steps)]


def _refuse_unfit(folder: Path, config: dict[str, Any]) -> None:
    if (kind := config.get("peft_type")) != "LORA":
        raise ModelError(f"{folder} is an adapter of type {kind}; only LORA is supported. {MERGING}.")
    if config.get("bias", "none") != "none":
        raise ModelError(f"{folder} also trained biases (bias={config['bias']}). Biases are not supported. {MERGING}.")
    # Its initialisation must be known to leave the base model's weights unchanged.
    if folder.name == INITIAL and _checkpoints(folder.absolute().parent):
        raise changed_base(folder, f"{folder} is the beginning of the training beside it.")
    initialisation = config.get("init_lora_weights", True)
    if initialisation not in (True, False, None) and str(initialisation).lower() not in INITIALISATIONS:
        raise changed_base(folder, f"{folder / CONFIG} has init_lora_weights={initialisation}.")
    # A group of settings counts as set even if it is empty, and so leaves them all at their defaults.
    asked = {key for key, value in config.items() if value or (value == {} and key.endswith(("_config", "_bdlora")))}
    if strange := sorted(asked - {*UNDERSTOOD, *IMMATERIAL, *CHECKED}):
        raise ModelError(
            f"{folder / CONFIG} uses {', '.join(strange)}. Such an adapter cannot be merged exactly. {MERGING}."
        )
    _check_types(folder, config)


def changed_base(folder: Path, why: str) -> ModelError:
    """Return the error for an adapter whose initialisation changed its base model, with the folder to give instead."""
    checkpoints = [folder, *reversed(_checkpoints(folder.absolute().parent))]
    if plain := next((each / CONVERTED for each in checkpoints if (each / CONVERTED / CONFIG).is_file()), None):
        remedy = f"Give {plain} as --adapter: ms-swift wrote the adapter there as plain LoRA"
    else:
        remedy = (
            f"Give the adapter as plain LoRA: ms-swift writes plain LoRA to {CONVERTED} of the checkpoint, and peft "
            "writes it with save_pretrained's path_initial_model_for_weight_conversion. Or merge the adapter where it "
            "was trained and give the merged folder as --model"
        )
    return ModelError(
        f"{why} Training may have changed the weights of the base model, so the adapter with the given weights would "
        f"be another model. {remedy}."
    )


def _check_types(folder: Path, config: dict[str, Any]) -> None:
    """Raise unless the keys in UNDERSTOOD have the types that peft writes."""
    patterns = [config.get(key) or {} for key in ("rank_pattern", "alpha_pattern")]
    named = config.get("modules_to_save") or []
    numbers = [config.get("r"), config.get("lora_alpha")]
    sound = (
        all(isinstance(pattern, dict) and all(map(_is_regex, pattern)) for pattern in patterns)
        and all(map(_is_size, [*numbers, *(value for pattern in patterns for value in pattern.values())]))
        and isinstance(named, list)
        and all(isinstance(name, str) for name in named)
    )
    if not sound:
        raise ModelError(
            f"{folder / CONFIG} is damaged: r, lora_alpha and the values of their patterns must be numbers above 0, "
            "and modules_to_save must be a list of names. Copy the adapter again."
        )


def _is_size(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**31


def _is_regex(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True
