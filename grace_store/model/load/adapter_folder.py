"""What lies at an adapter's path: a LoRA adapter in peft's layout, or an error that says why it cannot be used.

ms-swift writes the same layout, with one regular expression for target_modules and files of its own beside. Reads
names and JSON only; knows neither torch nor peft.
"""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from grace_store.base.documents import Count, Document, read_document
from grace_store.base.errors import MissingExtra, ModelError, SettingError, UnsafeModel, how_to_install
from grace_store.base.settings import ModelIdentity
from grace_store.model.load.model_folder import ADAPTER_FILES, read_object

CONFIG, TENSORS = ADAPTER_FILES
OPTIMIZER = "optimizer.safetensors"
TRAINING_STATE = "training_state.json"
"""Files that a warm-up of ours writes beside these."""
MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps of each parameter, as optimizer.safetensors calls it."""

CONVERTED = Path("converted", "default")
"""Where in a checkpoint ms-swift writes an adapter that changed its base a second time, as plain LoRA."""
MERGING = (
    "Merge it with its own tool and give the merged folder as --model; if the model ties its head to its embeddings, "
    "untie them before, or merging into one changes the other"
)
INITIALISATIONS = ("gaussian", "orthogonal", "eva", "mica")
"""Values of init_lora_weights, beside true and false, that leave the base model's weights as they are."""
UNDERSTOOD = (
    "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "fan_in_fan_out", "modules_to_save",
)  # fmt: skip
"""Keys that change what a finished adapter computes, and that peft merges exactly."""
CHECKED = ("bias", "init_lora_weights", "peft_type")
"""Keys of which only some values can be used."""
IMMATERIAL = (
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules",
    "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_dtype",
    "lora_ga_config", "lorap_emb_lr", "lorap_lr_ratio", "megatron_core", "model_key_mapping", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type",
)  # fmt: skip
"""Keys that only mattered while the adapter was made (those of an initialisation count with it alone), or say where it
goes, which its tensors say better."""


class WarmupDocument(Document):
    """What all documents of a warm-up have in common."""

    maker: ClassVar[str] = "warmup"
    remedy: ClassVar[str] = "Run `grace-store {maker}` with a new --out."


class CheckpointState(WarmupDocument):
    """Where in the training a checkpoint stands, and what it was trained on."""

    words: ClassVar[str] = "the state of a checkpoint"

    kind: Literal["warmup_checkpoint"] = "warmup_checkpoint"
    step: Count
    num_steps: Count
    fraction: str
    learning_rate: float
    """Of the step just taken."""
    mean_learning_rate: float
    """Over the steps since the checkpoint before: the weight that influence methods give a checkpoint."""
    loss: float
    """Mean over the tokens of the steps since the checkpoint before."""
    heldout_loss: float | None = None
    base: ModelIdentity
    """The model that the adapter belongs on."""
    recipe_sha256: str


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """A LoRA adapter on disk that is safe to open."""

    path: Path
    config: dict[str, Any]
    state: CheckpointState | None
    """How it was trained and on which model, where a warm-up of ours wrote it down."""

    @property
    def tensors(self) -> Path:
        return self.path / TENSORS

    @property
    def base_name(self) -> str | None:
        """What its maker called the model it was trained on."""
        name = self.config.get("base_model_name_or_path")
        return str(name) if name else None


def open_adapter(path: str | Path) -> AdapterFolder:
    """Return the adapter at a path, or raise ModelError."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ModelError(f"There is no adapter at {folder}: expected a folder with {CONFIG} and {TENSORS}.")
    if (config := read_object(folder / CONFIG)) is None:
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
    return AdapterFolder(folder, config, read_state(folder))


def read_state(folder: Path) -> CheckpointState | None:
    """Return what a warm-up of ours wrote beside an adapter; None for an adapter that another tool made."""
    path = folder / TRAINING_STATE
    is_ours = {"made_by", "recipe_sha256"} & (read_object(path) or {}).keys()
    return read_document(path, CheckpointState) if is_ours else None


def require_peft() -> None:
    """Raise MissingExtra if the library that knows adapters is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise MissingExtra(f"Adapters and warm-up need peft, which is not installed. {how_to_install('warmup')}")


def find_adapters(path: str | Path) -> list[Path]:
    """Return an adapter's own folder, or the checkpoint-STEP folders inside a training's output, by step.

    ms-swift puts a folder for each run between (output/v0-DATE/checkpoint-STEP); the only one is looked into.
    """
    folder = Path(path).expanduser()
    if (folder / CONFIG).is_file() or not folder.is_dir():
        return [folder]
    if found := _checkpoints(folder):
        return found
    below = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    runs = {entry.name: found for entry in below if (found := _checkpoints(entry))}
    if len(runs) > 1:
        raise SettingError(f"{folder} holds the checkpoints of several runs: {', '.join(runs)}. Give one as --adapter.")
    return next(iter(runs.values()), [folder])


def _checkpoints(folder: Path) -> list[Path]:
    adapters = [entry for entry in folder.iterdir() if (entry / CONFIG).is_file()]
    steps = {int(match[1]): each for each in adapters if (match := re.fullmatch(r"checkpoint-([0-9]+)", each.name))}
    return [steps[step] for step in sorted(steps)]


def _refuse_unfit(folder: Path, config: dict[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{folder} is an adapter of type {kind}; only LORA can be read here. {MERGING}.")
    if config.get("bias", "none") != "none":
        raise ModelError(f"{folder} also trained biases (bias={config['bias']}), which is not supported. {MERGING}.")
    _refuse_changed_base(folder, config.get("init_lora_weights", True))
    known = {*UNDERSTOOD, *IMMATERIAL, *CHECKED}
    if strange := sorted(key for key, value in config.items() if key not in known and _is_set(key, value)):
        raise ModelError(f"{folder} uses {', '.join(strange)} ({CONFIG}), which cannot be merged exactly. {MERGING}.")
    _check_types(folder, config)


def _refuse_changed_base(folder: Path, initialisation: Any) -> None:
    """Raise unless the adapter was begun in a way that is known to leave the base model's weights alone."""
    if initialisation in (True, False, None) or str(initialisation).lower() in INITIALISATIONS:
        return
    if (folder / CONVERTED / CONFIG).is_file():
        remedy = f"Give {folder / CONVERTED} as --adapter, where ms-swift wrote it as plain LoRA"
    else:
        remedy = (
            f"Give it as plain LoRA (ms-swift writes it so into {CONVERTED} of the checkpoint, peft with "
            "save_pretrained's path_initial_model_for_weight_conversion), or merge it where it was trained and give "
            "the merged folder as --model"
        )
    raise ModelError(
        f"{folder} was begun with init_lora_weights={initialisation} ({CONFIG}), which is not known to leave the base "
        f"model's weights as they are: on the weights given, it would make another model. {remedy}."
    )


def _is_set(key: str, value: Any) -> bool:
    """Tell whether a key asks for something; a group of settings does, even if it leaves them all at their defaults."""
    return value == {} if not value and key.endswith(("_config", "_bdlora")) else bool(value)


def _check_types(folder: Path, config: dict[str, Any]) -> None:
    """Raise unless what is understood has the types that peft writes."""
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
            f"{folder / CONFIG} is damaged: r and lora_alpha, and those of each pattern, have to be numbers above 0, "
            "and modules_to_save a list of names. Copy the adapter again."
        )


def _is_size(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**31


def _is_regex(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True
