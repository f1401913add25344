"""Who a model is, by content: digests of its configuration, weights, tokenizer, chat template and processor."""

import hashlib
import json
from typing import Any

from grace_store.base.fingerprint import files_sha256
from grace_store.base.settings import ModelIdentity, canonical_json
from grace_store.model.load.model_folder import ModelFolder

_VOLATILE = (
    "_name_or_path",
    "name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "_commit_hash",
)
"""Keys of config.json that say where a model came from or how to hold it, not what it computes."""
_NOT_THE_PROCESSORS_OWN = (
    "image_processor", "tokenizer", "video_processor", "chat_template", "processor_class", "image_processor_type",
    "auto_map",
)  # fmt: skip
"""Keys of a processor's configuration that are digested elsewhere, or change nothing."""


def identify(
    folder: ModelFolder, architecture: str, shape: tuple[int, int], tokenizer: Any, processor: Any | None = None
) -> ModelIdentity:
    """Return the identity of a model on disk, whose head has a shape. Reads the weight files but loads nothing."""
    weights = files_sha256(folder.weight_files)
    return ModelIdentity(
        architecture=architecture,
        hidden_size=shape[1],
        vocab_size=shape[0],
        # A GGUF carries its configuration inside the weights' file.
        config=weights if folder.gguf_file else _digest(_without_volatile(folder.config)),
        weights=weights,
        tokenizer=tokenizer_digest(tokenizer),
        template=_digest(tokenizer.chat_template) if tokenizer.chat_template else None,
        processor=None if processor is None else processor_digest(processor),
    )


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a digest of everything that decides which ids a text gets."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    # Left over from whoever used the tokenizer last; neither is in force here.
    state["truncation"] = state["padding"] = None
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return _digest({"tokenizer": state, "special": special, "split_special": bool(tokenizer.split_special_tokens)})


def processor_digest(processor: Any) -> str:
    """Return a digest of everything that decides which pixels and how many tokens an image becomes."""
    images = processor.image_processor
    parts = {}
    for part in (processor, images):
        settings = _without_volatile(part.to_dict()).items()
        # By its class, not by the class that the file names: that may be of another backend, whose pixels are others.
        parts[type(part).__name__] = {name: value for name, value in settings if name not in _NOT_THE_PROCESSORS_OWN}
    return _digest({"backend": images.backend, "parts": parts})


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_volatile(entry) for key, entry in value.items() if key not in _VOLATILE}
    return [_without_volatile(entry) for entry in value] if isinstance(value, list) else value


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()
