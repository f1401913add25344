"""Which parameters a gradient is taken of, in which order, and the moments that Adam keeps of each.

A parameter is called MODULE.lora_A or MODULE.lora_B as in the adapter's own file, whatever the model calls its modules
by now. Its elements are coordinates of the gradient: parameters by name, each in C order (schemas/FORMAT.md).
"""

import hashlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from grace_store.base.errors import ModelError, SettingError
from grace_store.base.settings import canonical_json
from grace_store.model.load.adapters import Adapter, tensor_names
from grace_store.model.lora.checkpoints import MOMENTS, OPTIMIZER
from grace_store.model.lora.layers import ADAPTER


@dataclass(frozen=True, slots=True)
class Coordinates:
    """One parameter's place in the gradient."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return int(torch.Size(self.shape).numel())


def coordinates_of(adapter: Adapter) -> list[Coordinates]:
    """Return the places of an adapter's LoRA parameters; those trained whole (modules_to_save) have none."""
    shapes = {f"{module}.{part}": each.shape for module, parts in adapter.lora.items() for part, each in parts.items()}
    starts = itertools.accumulate((shapes[name].numel() for name in sorted(shapes)), initial=0)
    return [Coordinates(name, tuple(shapes[name]), start) for name, start in zip(sorted(shapes), starts, strict=False)]


def coordinates_sha256(coordinates: list[Coordinates]) -> str:
    """Return the digest over names and shapes, in order."""
    return hashlib.sha256(canonical_json([[each.name, list(each.shape)] for each in coordinates])).hexdigest()


def parameters_of(coordinates: list[Coordinates], layers: dict[str, LoraLayer]) -> dict[str, nn.Parameter]:
    """Return the parameters themselves, from layers by their modules' names in the adapter."""
    places = {each.name: each.name.rpartition(".") for each in coordinates}
    return {name: getattr(layers[module], part)[ADAPTER].weight for name, (module, _, part) in places.items()}


@dataclass(frozen=True, slots=True)
class Moments:
    """AdamW's state after some steps, as it was when the checkpoint was written."""

    exp_avg: dict[str, Tensor]
    exp_avg_sq: dict[str, Tensor]
    beta1: float
    beta2: float
    epsilon: float
    step: int

    def digest(self) -> str:
        """Return the digest of all that a preconditioned gradient depends on."""
        tensors = {
            f"{moment}.{name}": hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
            for moment, members in zip(MOMENTS, (self.exp_avg, self.exp_avg_sq), strict=True)
            for name, tensor in members.items()
        }
        settings = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon, "step": self.step}
        return hashlib.sha256(canonical_json({"tensors": tensors, **settings})).hexdigest()


def read_moments(adapter: Adapter, coordinates: list[Coordinates]) -> Moments:
    """Read the moments beside a checkpoint as float32, or raise an error that says what is wrong with them."""
    path = adapter.folder.path / OPTIMIZER
    if not path.is_file():
        pickled = (adapter.folder.path / "optimizer.pt").is_file()
        raise SettingError(
            f"--preconditioner adam needs the optimiser's moments, and {adapter.folder.path} has no {OPTIMIZER}"
            + (" (its optimizer.pt is a pickle, which could run any code and is not opened)" if pickled else "")
            + ". A checkpoint of `grace-store warmup` has it; --preconditioner none does without."
        )
    try:
        with safe_open(path, framework="pt") as stored:
            adamw = json.loads((stored.metadata() or {})["adamw"])
            tensors = {key: stored.get_tensor(key).float() for key in stored.keys()}  # noqa: SIM118 - it is no mapping
        (beta1, beta2), epsilon, step = adamw["betas"], adamw["eps"], adamw["step"]
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ModelError(f"{path} is no optimiser state of a warm-up ({error}). Run `grace-store warmup`.") from error
    found = [_moment(path, moment, tensors, coordinates) for moment in MOMENTS]
    return Moments(found[0], found[1], float(beta1), float(beta2), float(epsilon), int(step))


def _moment(path: Path, moment: str, tensors: dict[str, Tensor], coordinates: list[Coordinates]) -> dict[str, Tensor]:
    prefix = f"{moment}."
    own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    found = {name: own[key] for key, name in tensor_names(own).items()}
    if wrong := [each.name for each in coordinates if each.name not in found or found[each.name].shape != each.shape]:
        raise ModelError(f"{path} has no {moment} of {wrong[0]} in its shape: it belongs to another adapter.")
    return {each.name: found[each.name] for each in coordinates}


class AdamStep:
    """Preconditions gradients with the moments of a checkpoint, which stay as they are: LESS's feature of a sample.

        m' = b1 m + (1 - b1) g      v' = b2 v + (1 - b2) g^2      G = m' / sqrt(v' + eps)

    Epsilon inside the root and no bias correction, as in the authors' code; their text divides m' and v' by 1 - b^t
    first, t counting the step to be taken.
    """

    def __init__(self, moments: Moments, device: torch.device, *, bias_correction: bool) -> None:
        self._beta1, self._beta2, self._epsilon = moments.beta1, moments.beta2, moments.epsilon
        taken = moments.step + 1
        self._first = 1.0 - self._beta1**taken if bias_correction else 1.0
        self._second = 1.0 - self._beta2**taken if bias_correction else 1.0
        self._exp_avg = {name: tensor.flatten().to(device) for name, tensor in moments.exp_avg.items()}
        self._exp_avg_sq = {name: tensor.flatten().to(device) for name, tensor in moments.exp_avg_sq.items()}

    def __call__(self, name: str, gradient: Tensor) -> Tensor:
        """Return the steps for gradients of one parameter, (rows, elements) float32."""
        first = torch.lerp(gradient, self._exp_avg[name], self._beta1)
        second = torch.lerp(gradient.square(), self._exp_avg_sq[name], self._beta2)
        return first.div_(self._first) / second.div_(self._second).add_(self._epsilon).sqrt_()
