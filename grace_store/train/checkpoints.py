"""The state of a warm-up on disk: the checkpoints, and the file from which a killed warm-up continues.

    checkpoint-STEP/adapter_config.json          standard peft
                    adapter_model.safetensors    standard peft, float32
                    optimizer.safetensors        exp_avg.NAME and exp_avg_sq.NAME for each NAME of the adapter's
                                                 tensors, AdamW's moments without bias correction; the metadata
                                                 entry "adamw" is JSON: step, betas, eps, weight_decay, learning_rate
                    training_state.json          CheckpointState
    last.safetensors                             adapter.NAME, exp_avg.NAME, exp_avg_sq.NAME; metadata "state" is JSON

Each checkpoint or file is complete as soon as it has its name, and its bytes are the same in every run.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from grace_store.base.documents import write_document
from grace_store.base.errors import Corrupt, ResumeMismatch
from grace_store.base.files import sync_file, sync_folder
from grace_store.base.training_settings import TrainingSpec
from grace_store.model.load.adapter_folder import CONFIG, MOMENTS, OPTIMIZER, TENSORS, TRAINING_STATE, CheckpointState

LAST = "last.safetensors"


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The adapter and AdamW's moments after a step, by the adapter's tensor names, on the CPU."""

    step: int
    tensors: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]
    """exp_avg and exp_avg_sq, each by the adapter's tensor names."""


def write_checkpoint(
    out: Path, progress: TrainingState, config: dict[str, Any], spec: TrainingSpec, state: CheckpointState
) -> Path:
    """Write a checkpoint under a temporary name, and rename it when it is complete."""
    final = out / f"checkpoint-{progress.step}"
    part = out / f".{final.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (part / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (part / TENSORS).write_bytes(save(progress.tensors, metadata={"format": "pt"}))
    adamw: dict[str, Any] = {"step": progress.step, "betas": [spec.beta1, spec.beta2], "eps": spec.epsilon}
    adamw |= {"weight_decay": spec.weight_decay, "learning_rate": state.learning_rate}
    # Only one metadata entry: safetensors does not write several entries in a fixed order.
    (part / OPTIMIZER).write_bytes(save(_flat(progress.moments), metadata={"adamw": json.dumps(adamw, sort_keys=True)}))
    write_document(part / TRAINING_STATE, state)
    for file in part.iterdir():
        sync_file(file)
    sync_folder(part)
    shutil.rmtree(final, ignore_errors=True)
    part.rename(final)
    sync_folder(out)
    return final


def write_last(out: Path, progress: TrainingState, recipe_sha256: str) -> None:
    """Replace the state from which a killed warm-up continues."""
    state = json.dumps({"step": progress.step, "recipe_sha256": recipe_sha256}, sort_keys=True)
    part = out / f".{LAST}.part"
    part.write_bytes(save(_flat({"adapter": progress.tensors, **progress.moments}), metadata={"state": state}))
    sync_file(part)
    part.replace(out / LAST)
    sync_folder(out)


def read_last(out: Path, recipe_sha256: str) -> TrainingState | None:
    """Return the last saved state, or None if there is none."""
    if not (path := out / LAST).is_file():
        return None
    try:
        with safe_open(path, framework="pt") as stored:
            state = json.loads((stored.metadata() or {})["state"])
            found = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, KeyError, ValueError) as error:
        raise Corrupt(f"{path} is damaged ({error}). Delete this file to start the warm-up again.") from error
    if state["recipe_sha256"] != recipe_sha256:
        raise ResumeMismatch(f"{path} does not belong to the recipe in {out}. Choose a new --out.")
    groups: dict[str, dict[str, Tensor]] = {"adapter": {}, **{moment: {} for moment in MOMENTS}}
    for key, tensor in found.items():
        group, _, name = key.partition(".")
        groups[group][name] = tensor
    return TrainingState(int(state["step"]), groups.pop("adapter"), groups)


def _flat(groups: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{group}.{name}": tensor for group, members in groups.items() for name, tensor in members.items()}
