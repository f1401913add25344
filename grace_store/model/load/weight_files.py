"""What a model's weight files say of themselves: whether they are whole, and whether its configuration could be theirs.

Reads headers only, so that a damaged file or an absurd configuration ends in a sentence before anything is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from safetensors import SafetensorError, safe_open

from grace_store.base.errors import ModelError
from grace_store.model.load.model_folder import ModelFolder

Shapes = dict[str, tuple[int, ...]]
_LAYERS = re.compile(r"(^|_)n(um)?_.*(layer|block|stage)s?$|^(.*_)?(layers|depth|n_layer)$")
_DEPTHS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth")
_MOST_LAYERS, _MOST_EXPERTS = 1000, 1 << 16
"""What no model has more of, unless its weights are more tensors than that."""


def read_shapes(folder: ModelFolder) -> Shapes | None:
    """Return the shape of every tensor in a folder's safetensors, or raise if one is damaged; None for a GGUF."""
    if folder.gguf_file:
        return None
    shapes: Shapes = {}
    for path in folder.weight_files.values():
        try:
            with safe_open(path, framework="numpy") as stored:
                names = stored.keys()
                shapes.update({name: tuple(stored.get_slice(name).get_shape()) for name in names})
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(f"{path} is damaged or cut off ({error}). Copy it anew.") from error
    if not shapes:
        raise ModelError(f"The weight files in {folder.path} hold no tensors. Copy them anew.")
    return shapes


def check_plausible(folder: ModelFolder, config: dict[str, Any], shapes: Shapes | None) -> None:
    """Raise for a configuration that asks for many more parts than the weights have: building it would take forever."""
    most = max(_MOST_LAYERS, len(shapes or ()))
    for key, value in _numbers(config):
        limit = _MOST_EXPERTS if "expert" in key else most if _LAYERS.search(key) else None
        if (limit is not None and value > limit) or (key in _DEPTHS and value < 1):
            raise ModelError(
                f"The configuration in {folder.path} says that {key} is {value}, which its weights cannot have"
                + (f": they are {len(shapes)} tensors in all" if shapes else "")
                + ". One of the two is damaged, or another model's."
            )


def differing_shapes(shapes: Shapes | None, model: Any) -> list[str]:
    """Return in words where tensors have other shapes than those of the same name in a model."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return [
        f"{name} is {_by(shape)}, by config.json {_by(wanted[name])}"
        for name, shape in (shapes or {}).items()
        if wanted.get(name, shape) != shape
    ]


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _numbers(node: Any) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of a configuration with their keys, at any depth."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield str(key), value
