"""A warm-up's state on disk: the checkpoints others read, and the one file that a killed run goes on from.

    checkpoint-STEP/adapter_config.json          standard peft
                    adapter_model.safetensors    standard peft, float32
                    optimizer.safetensors        exp_avg.NAME and exp_avg_sq.NAME for each NAME of the adapter's
                                                 tensors, AdamW's moments without bias correction; the metadata
                                                 entry "adamw" is JSON: step, betas, eps, weight_decay, learning_rate
                    training_state.json          CheckpointState
    last.safetensors                             adapter.NAME, exp_avg.NAME, exp_avg_sq.NAME; metadata "state" is JSON

Each appears whole or not at all, and holds nothing that differs from run to run.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import Parameter

from grace_store.base.documents import write_document
from grace_store.base.errors import Corrupt, ResumeMismatch
from grace_store.base.files import sync_file, sync_folder
from grace_store.base.training_settings import TrainingSpec
from grace_store.model.load.adapter_folder import CONFIG, MOMENTS, OPTIMIZER, TENSORS, TRAINING_STATE, CheckpointState

LAST = "last.safetensors"


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The adapter and its moments after some steps, by the adapter's tensor names, on the CPU."""

    step: int
    tensors: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]
    """exp_avg and exp_avg_sq, each by the adapter's tensor names."""


def write_checkpoint(
    out: Path, progress: TrainingState, config: dict[str, Any], spec: TrainingSpec, state: CheckpointState
) -> Path:
    """Write one checkpoint under a temporary name and give it its own once it is whole."""
    final = out / f"checkpoint-{progress.step}"
    part = out / f".{final.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (part / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (part / TENSORS).write_bytes(save(progress.tensors, metadata={"format": "pt"}))
    adamw: dict[str, Any] = {"step": progress.step, "betas": [spec.beta1, spec.beta2], "eps": spec.epsilon}
    adamw |= {"weight_decay": spec.weight_decay, "learning_rate": state.learning_rate}
    # One metadata entry: safetensors writes several in no particular order.
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
    """Replace the state that a killed run goes on from."""
    tensors = _flat({"adapter": progress.tensors, **progress.moments})
    state = json.dumps({"step": progress.step, "recipe_sha256": recipe_sha256}, sort_keys=True)
    part = out / f".{LAST}.part"
    part.write_bytes(save(tensors, metadata={"state": state}))
    sync_file(part)
    part.replace(out / LAST)
    sync_folder(out)


def read_last(out: Path, recipe_sha256: str) -> TrainingState | None:
    """Return the state that was saved last, or None if none was."""
    path = out / LAST
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as stored:
            state = json.loads((stored.metadata() or {})["state"])
            found = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, KeyError, ValueError) as error:
        raise Corrupt(f"{path} is damaged ({error}). Delete it to start the warm-up again.") from error
    if state["recipe_sha256"] != recipe_sha256:
        raise ResumeMismatch(f"{path} belongs to another recipe than the one in {out}. Choose a new --out.")
    groups: dict[str, dict[str, Tensor]] = {"adapter": {}, **{moment: {} for moment in MOMENTS}}
    for key, tensor in found.items():
        group, _, name = key.partition(".")
        groups[group][name] = tensor
    return TrainingState(int(state["step"]), groups.pop("adapter"), groups)


def capture(step: int, parameters: dict[str, Parameter], optimizer: torch.optim.Optimizer) -> TrainingState:
    """Return the present state on the CPU."""

    def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    states = {name: optimizer.state[parameter] for name, parameter in parameters.items()}
    moments = {moment: copied({name: each[moment] for name, each in states.items()}) for moment in MOMENTS}
    return TrainingState(step, copied(parameters), moments)


def restore(progress: TrainingState, parameters: dict[str, Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Put a saved state back, bit for bit."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(progress.tensors[name])
            moments = {moment: progress.moments[moment][name].to(parameter.device) for moment in MOMENTS}
            optimizer.state[parameter] = {"step": torch.tensor(float(progress.step)), **moments}


def _flat(groups: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{group}.{name}": tensor for group, members in groups.items() for name, tensor in members.items()}
