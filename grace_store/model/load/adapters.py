"""Read adapters, compute their digests, check that they fit a model, and merge them in memory.

The names of an adapter's tensors decide which modules it changes. Its target_modules (a list, or a regular expression
from ms-swift) is not used.
"""

import hashlib
import logging
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, TaskType, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from grace_store.base.errors import ModelError
from grace_store.base.settings import ModelIdentity
from grace_store.base.text import counted, json_sha256
from grace_store.model.load.adapter_folder import MERGING, UNDERSTOOD, AdapterFolder, changed_base, open_adapter

_LOG = logging.getLogger(__name__)

ADAPTER = "default"
"""peft's name of the only adapter of a model."""

_PREFIXES = ("module.", "base_model.model.")
_LORA_KEY = re.compile(r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_magnitude_vector)(\.default)?(\.weight)?")
_RENAMINGS: tuple[tuple[str, str], ...] = (
    ("", ""),
    ("language_model.model.", "model.language_model."),
    ("model.language_model.", "language_model.model."),
    ("model.", "model.language_model."),
    ("model.language_model.", "model."),
)
"""Prefixes of module names that changed between releases of transformers. The first pair that fits all names counts."""
_NAMES_SHOWN = 3
MOST_COSINE, FEWEST_PAIRS = 2e-3, 8
"""Columns count as orthogonal up to this cosine, by rounding; with fewer pairs of columns, this may be chance."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """The tensors of an adapter by their modules' names, without the prefixes of the tools that wrote them."""

    folder: AdapterFolder
    lora: dict[str, dict[str, Tensor]]
    """For each module: lora_A, lora_B and, with DoRA, lora_magnitude_vector."""
    saved: dict[str, Tensor]
    """Fully trained tensors (modules_to_save)."""
    carried: dict[str, Tensor]
    """Copies of the base model's embeddings or head that peft stores with an adapter and loads into the base model."""
    digest: str


def read_adapter(path: str | Path) -> Adapter:
    """Read an adapter. Its digest is over its tensors and the settings that change numbers, not over paths."""
    folder = open_adapter(path)
    try:
        tensors = {_bare(name): tensor for name, tensor in load_file(folder.tensors).items()}
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{folder.tensors} cannot be read: {error}. Copy the adapter again.") from error
    lora: dict[str, dict[str, Tensor]] = {}
    saved: dict[str, Tensor] = {}
    carried: dict[str, Tensor] = {}
    trained_whole = tuple(folder.config.get("modules_to_save") or ())
    for name, tensor in sorted(tensors.items()):
        if found := _LORA_KEY.fullmatch(name):
            lora.setdefault(found["module"], {})[found["part"]] = tensor
        elif "lora_" in name:
            raise ModelError(f"{folder.tensors} holds {name}. This tensor is not LoRA on a linear layer. {MERGING}.")
        else:
            (saved if name.rpartition(".")[0].endswith(trained_whole) else carried)[name] = tensor
    _check_whole(folder, lora, {**saved, **carried})
    _refuse_untrained(folder, lora)
    flat = {f"{module}.{part}": tensor for module, parts in lora.items() for part, tensor in parts.items()}
    contents = {}
    for name, tensor in {**flat, **saved, **carried}.items():
        raw = tensor.contiguous().flatten().view(torch.uint8).numpy().data
        contents[name] = [str(tensor.dtype), list(tensor.shape), hashlib.sha256(raw).hexdigest()]
    settings = {key: folder.config[key] for key in UNDERSTOOD if folder.config.get(key)}
    return Adapter(folder, lora, saved, carried, json_sha256({"tensors": contents, "settings": settings}))


def check_base(adapter: Adapter, base: ModelIdentity) -> None:
    """Raise if the adapter's state names another base model."""
    if (state := adapter.folder.state) is None:
        return
    parts = ("architecture", "config", "weights")
    if differing := [part for part in parts if getattr(state.base, part) != getattr(base, part)]:
        raise ModelError(
            f"{adapter.folder.path} was trained on another model than --model ({', '.join(differing)} differ). "
            f"Its base model was at {adapter.folder.base_name}. Give that model as --model."
        )


def place(adapter: Adapter, model: nn.Module) -> dict[str, str]:
    """Return {name in the adapter: name in the model}; raise unless all fit. The model may be on the meta device."""
    modules = dict(model.named_modules())
    rename = _renaming(adapter, modules)
    names = {name: rename(name) for name in adapter.lora}
    wrong = []
    for name, parts in adapter.lora.items():
        module, shape = modules[names[name]], None
        if isinstance(module, nn.Linear):
            shape = (module.out_features, module.in_features)
        elif isinstance(module, Conv1D):
            shape = (int(module.weight.shape[1]), int(module.weight.shape[0]))
        if shape != (found := (parts["lora_B"].shape[0], parts["lora_A"].shape[1])):
            size = f"{shape[0]} x {shape[1]}" if shape else "no linear layer"
            wrong.append(f"{names[name]} is {size}, the adapter's layer is {found[0]} x {found[1]}")
    if wrong:
        have = "has" if len(wrong) == 1 else "have"
        raise _misfit(adapter, model, f"{counted(len(wrong), 'layer')} {have} another shape", wrong)
    _check_saved(adapter, model, modules, rename)
    return names


def merge(adapter: Adapter, model: nn.Module) -> nn.Module:
    """Merge the adapter into a loaded model's weights and return the frozen model."""
    with warnings.catch_warnings(action="ignore"):
        merged: Any = _put_on(adapter, model)[0].merge_and_unload()
    merged.eval()
    merged.requires_grad_(False)
    if adapter.folder.state is None and (own_name := Path(adapter.folder.base_name or "").name):
        _LOG.info("%s was trained on a model called %s", adapter.folder.path, own_name)
    return merged  # type: ignore[no-any-return]


def attach_adapter(adapter: Adapter, model: nn.Module) -> dict[str, LoraLayer]:
    """Attach the frozen adapter to a model in place; return the LoRA layers by their names in the adapter."""
    _, names = _put_on(adapter, model)
    model.eval()
    model.requires_grad_(False)
    modules = dict(model.named_modules())
    layers = {name: modules[names[name]] for name in adapter.lora}
    assert all(isinstance(layer, LoraLayer) for layer in layers.values())
    return cast(dict[str, LoraLayer], layers)


def tensor_names(names: Iterable[str]) -> dict[str, str]:
    """Return {name in a file: MODULE.PART} for LoRA tensors; PART is lora_A, lora_B or lora_magnitude_vector."""
    found = {name: _LORA_KEY.fullmatch(_bare(name)) for name in names}
    return {name: f"{match['module']}.{match['part']}" for name, match in found.items() if match}


def _put_on(adapter: Adapter, model: nn.Module) -> tuple[Any, dict[str, str]]:
    names = place(adapter, model)
    modules = dict(model.named_modules())
    rename = _renaming(adapter, modules)
    with torch.no_grad():
        for name, tensor in adapter.carried.items():
            model.get_parameter(rename(name)).copy_(tensor)
    _untie(adapter, model, [modules[name] for name in names.values()])
    state = {
        f"base_model.model.{names[module]}.{part}{'' if part == 'lora_magnitude_vector' else '.weight'}": tensor
        for module, parts in adapter.lora.items()
        for part, tensor in parts.items()
    }
    state.update({f"base_model.model.{rename(name)}": tensor for name, tensor in adapter.saved.items()})
    with warnings.catch_warnings(action="ignore"):
        adapted = get_peft_model(model, _config(adapter, modules, names))
        report: Any = set_peft_model_state_dict(adapted, state)
        lost = [name for name in report.missing_keys if "lora_" in name or "modules_to_save.default" in name]
        if report.unexpected_keys or lost:
            raise _misfit(adapter, model, "peft could not load all tensors", [*report.unexpected_keys, *lost])
    return adapted, names


def lora_scale(adapter: Adapter, module: str) -> float:
    """Return the scale of B A in an adapted weight; module is the name in the adapter."""
    config = adapter.folder.config
    rank = adapter.lora[module]["lora_A"].shape[0]
    alpha = _setting(config, "alpha_pattern", "lora_alpha", module)
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.replace(".modules_to_save.default.", ".").replace(".base_layer.", ".")


def _check_whole(folder: AdapterFolder, lora: dict[str, dict[str, Tensor]], saved: dict[str, Tensor]) -> None:
    if not lora:
        raise ModelError(f"{folder.tensors} holds no LoRA tensors. Copy the adapter again.")
    needed = {"lora_A", "lora_B"} | ({"lora_magnitude_vector"} if folder.config.get("use_dora") else set())
    if halves := [name for name, parts in lora.items() if set(parts) != needed]:
        raise ModelError(f"{folder.tensors} lacks {' or '.join(sorted(needed))} of {halves[0]}.")
    for name, parts in lora.items():
        if any(parts[part].dim() != 2 for part in ("lora_A", "lora_B")):
            raise ModelError(f"{folder.tensors} holds {name}. This tensor is not LoRA on a linear layer. {MERGING}.")
        rank = _setting(folder.config, "rank_pattern", "r", name)
        if not parts["lora_A"].shape[0] == parts["lora_B"].shape[1] == rank:
            found = parts["lora_A"].shape[0]
            raise ModelError(f"{folder.path}: {name} has rank {found}, but the adapter's configuration says {rank}.")
    for tensor in (*saved.values(), *(part for parts in lora.values() for part in parts.values())):
        if not bool(torch.isfinite(tensor.float()).all()):
            raise ModelError(f"{folder.tensors} holds values that are not finite: the adapter's training failed.")


def _refuse_untrained(folder: AdapterFolder, lora: dict[str, dict[str, Tensor]]) -> None:
    """Raise for the beginning of a training that changed its base model, such as PiSSA's folder initial_model.

    PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA begin with orthogonal columns of lora_B in every layer, and tools save that
    state as plain LoRA. Columns that were trained are not orthogonal in all layers.
    """
    num_pairs = 0
    for parts in lora.values():
        columns = parts["lora_B"].float()
        columns = nn.functional.normalize(columns[:, columns.any(dim=0)], dim=0)
        cosines = (columns.T @ columns).triu(diagonal=1)
        if not len(cosines) or float(cosines.abs().max()) > MOST_COSINE:
            return
        num_pairs += math.comb(len(cosines), 2)
    if num_pairs >= FEWEST_PAIRS and folder.config.get("init_lora_weights", True) in (True, False, None):
        why = "holds an adapter before its training, as PiSSA, OLoRA and similar initialisations leave it"
        raise changed_base(folder.path, f"{folder.path} {why}.")


def _setting(config: dict[str, Any], pattern_key: str, key: str, module: str) -> float:
    """Return a module's own rank or alpha, by peft's rules."""
    for pattern, value in (config.get(pattern_key) or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return float(value)
    return float(config[key])


def _renaming(adapter: Adapter, modules: dict[str, nn.Module]) -> Callable[[str], str]:
    """Return a function from the adapter's module names to the model's; raise if the model lacks a module."""
    missing: list[str] = []
    for old, new in _RENAMINGS:

        def rename(name: str, old: str = old, new: str = new) -> str:
            return new + name.removeprefix(old) if name.startswith(old) else name

        if not (absent := [name for name in adapter.lora if rename(name) not in modules]):
            return rename
        missing = missing or absent
    raise ModelError(
        f"{adapter.folder.path} does not fit this model: the model has no {_some(missing)}. {_its_base(adapter)}"
    )


def _check_saved(
    adapter: Adapter, model: nn.Module, modules: dict[str, nn.Module], rename: Callable[[str], str]
) -> None:
    wrong = []
    for name, tensor in {**adapter.saved, **adapter.carried}.items():
        module, _, part = rename(name).rpartition(".")
        there = getattr(modules.get(module), part, None)
        if not isinstance(there, Tensor) or there.shape != tensor.shape:
            wrong.append(rename(name))
    if wrong:
        raise _misfit(adapter, model, "the model has no tensors of this shape for fully trained modules", wrong)
    ends = (model.get_input_embeddings(), model.get_output_embeddings())  # type: ignore[operator]
    if unnamed := [name for name in adapter.carried if modules[rename(name).rpartition(".")[0]] not in ends]:
        raise ModelError(f"{adapter.folder.tensors} holds {_some(unnamed)}, but modules_to_save does not name them.")


def _untie(adapter: Adapter, model: nn.Module, targets: list[nn.Module]) -> None:
    """Give every layer that an adapter changes its own weights, so that no other layer changes too."""
    owners: dict[int, list[nn.Module]] = defaultdict(list)
    for _, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)].append(module)
    for target in targets:
        if (sharing := owners[id(target.weight)]).count(target) > 1:
            raise ModelError(
                f"{adapter.folder.path} changes a layer that {type(model).__name__} uses in several places. Such "
                "adapters are not supported."
            )
        if len(sharing) > 1:
            target.weight = nn.Parameter(cast(Tensor, target.weight).detach().clone(), requires_grad=False)


def _config(adapter: Adapter, modules: dict[str, nn.Module], names: dict[str, str]) -> LoraConfig:
    config = adapter.folder.config
    ranks = {re.escape(names[name]): int(_setting(config, "rank_pattern", "r", name)) for name in names}
    alphas = {re.escape(names[name]): _setting(config, "alpha_pattern", "lora_alpha", name) for name in names}
    return LoraConfig(
        r=int(config["r"]),
        lora_alpha=config["lora_alpha"],
        # Each module has its own entry: a pattern for old names could match other modules under new names.
        rank_pattern=ranks if config.get("rank_pattern") else {},
        alpha_pattern=alphas if config.get("alpha_pattern") else {},
        target_modules=list(names.values()),
        use_rslora=bool(config.get("use_rslora")),
        use_dora=bool(config.get("use_dora")),
        fan_in_fan_out=any(isinstance(modules[name], Conv1D) for name in names.values()),
        modules_to_save=config.get("modules_to_save") or None if adapter.saved else None,
        task_type=TaskType.CAUSAL_LM,
    )


def _misfit(adapter: Adapter, model: nn.Module, what: str, names: list[str]) -> ModelError:
    return ModelError(
        f"{adapter.folder.path} is not an adapter of this {type(model).__name__}: {what} ({_some(names)}). "
        f"{_its_base(adapter)}"
    )


def _its_base(adapter: Adapter) -> str:
    if name := adapter.folder.base_name:
        return f"The adapter was made for {name}. Give that model as --model."
    return "Give the adapter's base model as --model."


def _some(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
