"""What lies at a model path: its weight files and configuration, or a sentence why it cannot be used.

Reads names and JSON only; knows neither torch nor transformers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace_store.base.errors import ModelError, UnsafeModel

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".distcp")
_RANK_SHARD = re.compile(r"shard-[0-9]{5}-model-[0-9]{5}-of-[0-9]{5}\.safetensors")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""An adapter in peft's layout: its configuration and its tensors."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on disk that is safe to open."""

    path: Path
    """The folder that holds it."""
    gguf_file: str | None
    """Name of the GGUF file in it, or None for safetensors."""
    weight_files: dict[str, Path]
    """The files whose tensors make up the model, by name."""
    config: dict[str, Any]
    """config.json; empty for a GGUF, which carries its own."""


def open_folder(path: str | Path) -> ModelFolder:
    """Return what lies at a path: a folder of safetensors, a folder with one GGUF, or a GGUF file itself."""
    path = Path(path).expanduser()
    if not path.exists():
        raise ModelError(
            f"There is no model at {path}. Models are read from local folders only: "
            "give a folder with config.json and *.safetensors, or a .gguf file."
        )
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path} is a file but not a .gguf. Give the folder that holds config.json.")
        return _gguf(path.parent, path.name)
    _refuse_adapter(path)
    gguf = sorted(entry.name for entry in path.iterdir() if entry.suffix.lower() == ".gguf")
    if gguf and not (path / "config.json").is_file():
        if len(gguf) > 1:
            raise ModelError(f"{path} holds {len(gguf)} GGUF files ({', '.join(gguf)}). Give the path of one of them.")
        return _gguf(path, gguf[0])
    return _safetensors(path)


def _gguf(folder: Path, name: str) -> ModelFolder:
    return ModelFolder(folder, name, {name: folder / name}, {})


def _safetensors(folder: Path) -> ModelFolder:
    config = _read_json(folder / "config.json", missing="It is not a model folder in the Hugging Face layout.")
    if "transformers_weights" in config:
        raise ModelError(
            f"{folder / 'config.json'} points at other weights (transformers_weights). "
            "Remove that key, or save the model anew with save_pretrained."
        )
    weight_files = _weight_files(folder)
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"{folder} has no tokenizer. Copy tokenizer.json and tokenizer_config.json beside config.json."
        )
    return ModelFolder(folder, None, weight_files, config)


def _weight_files(folder: Path) -> dict[str, Path]:
    names = sorted(entry.name for entry in folder.iterdir())
    if any(_RANK_SHARD.fullmatch(name) for name in names):
        raise ModelError(
            f"{folder} holds a checkpoint saved rank by rank. Save it whole: model.save_pretrained(folder) on one rank."
        )
    if "model.safetensors" in names:
        return {"model.safetensors": folder / "model.safetensors"}
    if "model.safetensors.index.json" in names:
        return _shards(folder)
    if pickles := [name for name in names if name.endswith(_PICKLE_SUFFIXES)]:
        raise UnsafeModel(
            f"{folder} holds its weights as pickles ({', '.join(pickles[:3])}), which can run code when opened. "
            "Convert them: load the model once where you trust it and save_pretrained(folder) writes safetensors."
        )
    raise ModelError(f"{folder} has a config.json but no weights: expected model.safetensors or its index with shards.")


def _shards(folder: Path) -> dict[str, Path]:
    index = _read_json(folder / "model.safetensors.index.json", missing="")
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{folder / 'model.safetensors.index.json'} has no weight_map; copy the file anew.")
    shards = sorted({str(name) for name in weight_map.values()})
    if outside := [name for name in shards if Path(name).name != name or not name.endswith(".safetensors")]:
        raise UnsafeModel(f"The index in {folder} names weights that are no safetensors in the folder: {outside[0]}.")
    here = {entry.name for entry in folder.iterdir() if entry.is_file()}
    if missing := [name for name in shards if name not in here]:
        raise ModelError(f"{folder} lacks {len(missing)} of {len(shards)} weight files: {', '.join(missing[:5])}.")
    return {name: folder / name for name in shards}


def _refuse_adapter(folder: Path) -> None:
    if any((folder / name).is_file() for name in ADAPTER_FILES):
        # transformers would apply it without a word, to weights whose digest does not know of it.
        raise ModelError(f"{folder} holds an adapter. Give its base model with --model and this folder with --adapter.")


def _read_json(path: Path, *, missing: str) -> dict[str, Any]:
    if (content := read_object(path)) is None:
        raise ModelError(f"{path.parent} has no {path.name}. {missing}".rstrip())
    return content


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if there is no such file."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}, expected an object.")
    return content
