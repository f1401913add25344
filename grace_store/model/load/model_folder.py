"""Find and check the files of a model on disk, and compute the model's identity from their content.

Reads names, JSON, the headers of weights, and all bytes for digests, so that a damaged file or an absurd configuration
is refused before a model is built. Knows neither torch nor transformers.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace_store.base.errors import ModelError, UnsafeModel
from grace_store.base.files import files_sha256
from grace_store.base.settings import ModelIdentity
from grace_store.base.text import json_sha256

Shapes = dict[str, tuple[int, ...]]
_LAYERS = re.compile(r"(^|_)n(um)?_.*(layer|block|stage)s?$|^(.*_)?(layers|depth|n_layer)$")
_DEPTHS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth")
_MOST_LAYERS, _MOST_EXPERTS = 1000, 1 << 16
"""Limits on the configured numbers of layers and experts. More layers are allowed if the weights have more tensors."""
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".distcp")
_RANK_SHARD = re.compile(r"shard-[0-9]{5}-model-[0-9]{5}-of-[0-9]{5}\.safetensors")
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""The id of a model on a hub, such as Qwen/Qwen3-VL-2B-Instruct. A relative path may have the same form."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""An adapter in peft's layout: its configuration and its tensors."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on disk that is safe to open."""

    path: Path
    gguf_file: str | None
    """Name of the GGUF file in the folder; None for safetensors."""
    weight_files: tuple[Path, ...]
    """The files with the model's tensors."""
    config: dict[str, Any]
    """config.json; empty for a GGUF, which has its configuration inside."""


def open_folder(path: str | Path) -> ModelFolder:
    """Return the model at a path: a folder of safetensors, a folder with one GGUF file, or a GGUF file itself."""
    given, path = str(path), Path(path).expanduser()
    if not path.exists():
        download = f" To download a model from a hub, run `hf download {given} --local-dir DIR`, and give DIR."
        raise ModelError(
            f"There is no model at {path}. Models are read from local folders only: give a folder with config.json and "
            f"*.safetensors, or a .gguf file.{download if _HUB_ID.fullmatch(given) else ''}"
        )
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path} is a file, but not a .gguf file. Give the folder that holds config.json.")
        return ModelFolder(path.parent, path.name, (path,), {})
    if not path.is_dir():
        raise ModelError(f"{path} is a pipe or a device. Give a folder with config.json and *.safetensors.")
    if special := [entry for entry in path.iterdir() if _is_special(entry)]:
        raise ModelError(f"{special[0]} is a pipe, a device or a file of the system. Copy the model's file again.")
    if any((path / name).is_file() for name in ADAPTER_FILES):
        # transformers would apply the adapter silently, and the digest of the weights would not cover it.
        raise ModelError(f"{path} holds an adapter. Give its base model with --model and this folder with --adapter.")
    gguf = sorted(entry.name for entry in path.iterdir() if entry.suffix.lower() == ".gguf")
    if gguf and not (path / "config.json").is_file():
        if len(gguf) > 1:
            raise ModelError(f"{path} holds {len(gguf)} GGUF files ({', '.join(gguf)}). Give the path of one of them.")
        return ModelFolder(path, gguf[0], (path / gguf[0],), {})
    if (config := read_object(path / "config.json")) is None:
        raise ModelError(f"{path} has no config.json. It is not a model folder in the Hugging Face layout.")
    if "transformers_weights" in config:
        raise ModelError(
            f"{path / 'config.json'} points at other weights (transformers_weights). "
            "Remove that key, or save the model again with save_pretrained."
        )
    weight_files = _weight_files(path)
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"{path} has no tokenizer. Copy the model's tokenizer.json and tokenizer_config.json into the folder."
        )
    return ModelFolder(path, None, weight_files, config)


def _is_special(path: Path) -> bool:
    """Return whether a name leads to something that cannot be read like a file on a disk: it may have no end."""
    is_of_system = path.is_symlink() and path.resolve().parts[:2] in {("/", "proc"), ("/", "sys")}
    return is_of_system or (path.exists() and not (path.is_file() or path.is_dir()))


def _weight_files(folder: Path) -> tuple[Path, ...]:
    names = sorted(entry.name for entry in folder.iterdir())
    if any(_RANK_SHARD.fullmatch(name) for name in names):
        raise ModelError(
            f"{folder} holds one checkpoint file per rank. Save the whole model on one rank: "
            "model.save_pretrained(folder)."
        )
    if "model.safetensors" in names:
        return (folder / "model.safetensors",)
    if "model.safetensors.index.json" in names:
        return _shards(folder)
    if pickles := [name for name in names if name.endswith(_PICKLE_SUFFIXES)]:
        raise UnsafeModel(
            f"{folder} holds its weights as pickles ({', '.join(pickles[:3])}). A pickle can run code when opened. "
            "Load the model once on a machine where that is safe, and save it as safetensors: save_pretrained(folder)."
        )
    raise ModelError(f"{folder} has a config.json but no weights: expected model.safetensors or its index with shards.")


def _shards(folder: Path) -> tuple[Path, ...]:
    index = folder / "model.safetensors.index.json"
    read = read_object(index) or {}
    for key in ("metadata", "weight_map"):  # transformers needs both
        if not isinstance(read.get(key), dict):
            raise ModelError(f"{index} has no {key}. Copy the file again, or save the model with save_pretrained.")
    shards = sorted({str(name) for name in read["weight_map"].values()})
    if outside := [name for name in shards if Path(name).name != name or not name.endswith(".safetensors")]:
        raise UnsafeModel(f"The index in {folder} names a file that is not a safetensors file there: {outside[0]}.")
    here = {entry.name for entry in folder.iterdir() if entry.is_file()}
    if missing := [name for name in shards if name not in here]:
        raise ModelError(
            f"{folder} lacks {len(missing)} of {len(shards)} weight files: {', '.join(missing[:5])}. Copy them again."
        )
    return tuple(folder / name for name in shards)


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}, expected an object.")
    return content


def read_shapes(folder: ModelFolder) -> Shapes | None:
    """Return the shape of every tensor in a folder's safetensors; None for a GGUF.

    Raise if a file is damaged, or if two files have a tensor of the same name: it would not be clear which one counts.
    """
    if folder.gguf_file:
        return None
    from safetensors import SafetensorError, safe_open  # imported here because it is an optional dependency

    shapes: Shapes = {}
    for path in folder.weight_files:
        try:
            with safe_open(path, framework="numpy") as stored:
                found = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(f"{path} is damaged or cut off ({error}). Copy it again.") from error
        if twice := sorted(shapes.keys() & found.keys()):
            raise ModelError(
                f"{path} holds the tensor {twice[0]}, and another weight file in {folder.path} also holds this tensor. "
                "Save the model again with save_pretrained, into an empty folder."
            )
        shapes |= found
    if not shapes:
        raise ModelError(f"The weight files in {folder.path} hold no tensors. Copy them again.")
    return shapes


def check_plausible(folder: ModelFolder, config: dict[str, Any], shapes: Shapes | None) -> None:
    """Raise if a configuration asks for many more parts than the weights have: to build it would take forever."""
    most = max(_MOST_LAYERS, len(shapes or ()))
    for key, value in _numbers(config):
        limit = _MOST_EXPERTS if "expert" in key else most if _LAYERS.search(key) else None
        if (limit is not None and value > limit) or (key in _DEPTHS and value < 1):
            raise ModelError(
                f"The configuration in {folder.path} says that {key} is {value}, but the weights do not fit this value"
                + (f": they have only {len(shapes)} tensors" if shapes else "")
                + ". The configuration or the weights are damaged, or belong to another model."
            )


def differing_shapes(shapes: Shapes | None, model: Any) -> list[str]:
    """Describe the tensors with another shape than the model's tensor of the same name."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    other = {name: shape for name, shape in (shapes or {}).items() if wanted.get(name, shape) != shape}
    return [f"{name} is {_by(shape)}, config.json says {_by(wanted[name])}" for name, shape in other.items()]


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _numbers(node: Any) -> Iterator[tuple[str, int]]:
    """Yield the keys and values of all integers in a configuration, at any depth."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield str(key), value


_VOLATILE = (
    "_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "_commit_hash",
)  # fmt: skip
"""Keys of config.json for a model's origin or storage, which do not change its output."""
_NOT_THE_PROCESSORS_OWN = (
    "image_processor", "tokenizer", "video_processor", "chat_template", "processor_class", "image_processor_type",
    "auto_map",
)  # fmt: skip
"""Keys of a processor's configuration that other digests cover, or that change nothing."""


def identify(
    folder: ModelFolder, architecture: str, shape: tuple[int, int], tokenizer: Any, processor: Any | None = None
) -> ModelIdentity:
    """Return the identity of a model on disk; shape is that of its head. Reads the weight files but loads nothing."""
    weights = files_sha256(folder.weight_files)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    # Settings of the last use of the tokenizer. They have no effect here.
    state["truncation"] = state["padding"] = None
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    tokens = {"tokenizer": state, "special": special, "split_special": bool(tokenizer.split_special_tokens)}
    return ModelIdentity(
        architecture=architecture,
        hidden_size=shape[1],
        vocab_size=shape[0],
        # A GGUF has its configuration in the weight file.
        config=weights if folder.gguf_file else json_sha256(_without_volatile(folder.config)),
        weights=weights,
        tokenizer=json_sha256(tokens),
        template=json_sha256(tokenizer.chat_template) if tokenizer.chat_template else None,
        processor=None if processor is None else processor_digest(processor),
    )


def processor_digest(processor: Any) -> str:
    """Return a digest of everything that changes the pixels or the number of tokens of an image."""
    images = processor.image_processor
    parts = {}
    for part in (processor, images):
        settings = _without_volatile(part.to_dict()).items()
        # Its own class, not the class in the file: the latter may have another backend, which makes other pixels.
        parts[type(part).__name__] = {name: value for name, value in settings if name not in _NOT_THE_PROCESSORS_OWN}
    return json_sha256({"backend": images.backend, "parts": parts})


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_volatile(entry) for key, entry in value.items() if key not in _VOLATILE}
    return [_without_volatile(entry) for entry in value] if isinstance(value, list) else value
