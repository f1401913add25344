"""Load a model from a folder: offline, without foreign code, pickles or messages."""

import importlib.util
import io
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, GgufConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto import modeling_auto as known_models
from transformers.utils import logging as transformers_logging

from grace_store.base.errors import ModelError, UnsafeModel
from grace_store.base.settings import Attention, Dtype, ModelIdentity, default_threads
from grace_store.model import devices
from grace_store.model.backbone import forget_lengths, probe_ids, refuse_not_finite, run_backbone
from grace_store.model.devices import in_words, telling
from grace_store.model.inputs.bounded_process import BoundedTokenizer, try_tokenizer
from grace_store.model.load.model_folder import (
    ModelFolder,
    check_plausible,
    differing_shapes,
    identify,
    open_folder,
    read_object,
    read_shapes,
)
from grace_store.model.load.processor import read_processor

_LOG = logging.getLogger(__name__)
_MESSAGES: Any = transformers_logging
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ModelDescription:
    """Everything known about a model before its weights are loaded."""

    folder: ModelFolder
    config: Any
    tokenizer: Any
    identity: ModelIdentity
    supports_sdpa: bool
    max_positions: int | None
    """Longest input that the model has positions for; None if positions are computed and any length runs."""
    context: int | None = None
    """Longest input by the model's configuration, if longer inputs run too."""
    processor: Any | None = None
    """The processor of a vision-language model; None for a model that reads only text."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel(ModelDescription):
    """A model ready to run, in evaluation mode and without gradients."""

    model: nn.Module
    device: torch.device

    def longest(self, max_length: int) -> int:
        """Return the largest number of tokens of a sample: max_length, or fewer if the model has fewer positions."""
        return min(max_length, self.max_positions or max_length)


def describe_model(path: str | Path) -> ModelDescription:
    """Return the description of a model folder, without loading its weights."""
    files = [entry for entry in open_folder(path).path.iterdir() if entry.is_file()]
    stamp = tuple(sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in files))
    return _describe(str(path), stamp)


@lru_cache(maxsize=2)
def _describe(path: str, _stamp: tuple[tuple[str, int, int], ...]) -> ModelDescription:
    # A run needs the description for its spec and again to load: reading a GGUF's tokenizer twice would cost seconds.
    folder = open_folder(path)
    with _quiet():
        config = _read_config(folder)
        _refuse_unfit(folder, config)
        tokenizer = _read_tokenizer(folder)
        processor = None
        if _sees_images(config):
            files = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
            named = ((read_object(folder.path / name) or {}).get("processor_class") for name in files)
            processor = read_processor(folder.path, named, config, tokenizer)
        check_plausible(folder, config.to_dict() if folder.gguf_file else folder.config, read_shapes(folder))
        skeleton = skeleton_of(folder, config)
    with telling(f"The model in {folder.path} cannot be described"):
        output = skeleton.get_output_embeddings()
        text_config = config.get_text_config()
        shape = tuple(output.weight.shape) if output is not None else (text_config.vocab_size, text_config.hidden_size)
        if min(shape) < 1:
            raise ModelError(
                f"The configuration in {folder.path} describes an output layer of {shape[0]} x {shape[1]} numbers. "
                "The configuration is damaged, or belongs to another model."
            )
        identity = identify(folder, type(skeleton).__name__, shape, tokenizer, processor)
        # The parts for text and for images have their own classes.
        supports_sdpa = all(part._supports_sdpa for part in skeleton.modules() if isinstance(part, PreTrainedModel))
        limit = getattr(text_config, "max_position_embeddings", None)
        length = int(limit) if limit and limit > 0 else None
        # Rotary positions are computed, so they have no end. The configuration still names a length.
        computes = bool(getattr(text_config, "rope_parameters", None) or getattr(text_config, "alibi", False))
        places, context = (None, length) if computes else (length, None)
        return ModelDescription(folder, config, tokenizer, identity, supports_sdpa, places, context, processor)


def load(
    model: ModelDescription | Path, dtype: Dtype, attention: Attention, device: str = "auto", threads: int | None = None
) -> LoadedModel:
    """Return a described model, or the model at a path, with its weights in this dtype on the device."""
    described = model if isinstance(model, ModelDescription) else describe_model(model)
    torch.set_num_threads(threads or default_threads())
    target = devices.resolve(device)
    with devices.watching(target):
        devices.make_current(target)
        if target.type == "cpu" and dtype == "bfloat16" and not _bfloat16_products_work():
            _LOG.warning("this machine's matrix unit cannot be used, so bfloat16 runs slowly")
            torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
        with _quiet():
            loaded = _read_weights(described, dtype, attention, target)
        loaded.eval()
        loaded.requires_grad_(False)
        # Batches have no attention mask (see _check_causal). Some classes would warn about that.
        vars(loaded.config)["pad_token_id"] = None  # some configurations refuse None
        forget_lengths(loaded)
        with telling(f"The model in {described.folder.path} does not run"):
            refuse_not_finite(loaded)
            _check_causal(loaded)
        return LoadedModel(**vars(described), model=loaded, device=target)


@cache
def _bfloat16_products_work() -> bool:
    """Try bfloat16 in another process: some virtual machines report Intel's matrix unit but kill its users."""
    if not torch.cpu._is_amx_tile_supported():
        return True
    probe = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(a, a)"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode >= 0


def _read_config(folder: ModelFolder) -> Any:
    if folder.gguf_file and not (importlib.util.find_spec("gguf") and importlib.util.find_spec("accelerate")):
        raise ModelError(
            f"{folder.gguf_file} is a GGUF file. Install the packages gguf and accelerate to read this file."
        )
    try:
        return AutoConfig.from_pretrained(folder.path, gguf_file=folder.gguf_file, **_LOCAL)
    except Exception as error:
        if folder.config.get("auto_map"):
            raise _foreign_code(folder) from error
        where = folder.path / folder.gguf_file if folder.gguf_file else folder.path
        raise ModelError(f"transformers cannot read the configuration in {where}: {in_words(error)}.") from error


def _refuse_unfit(folder: ModelFolder, config: Any) -> None:
    """Raise if a model is not a causal language model, or has quantised weights."""
    kind = config.model_type
    if getattr(config, "audio_config", None) is not None:
        raise ModelError(f"{folder.path} also reads speech ({kind}). Give a model of text, or of text and images.")
    if config.is_encoder_decoder:
        raise ModelError(f"{folder.path} is an encoder-decoder ({kind}). Give a causal language model.")
    text, images = known_models.MODEL_FOR_CAUSAL_LM_MAPPING, known_models.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if type(config) not in (images if _sees_images(config) else text):
        if folder.config.get("auto_map"):
            raise _foreign_code(folder)
        raise ModelError(
            f"{folder.path} is a {kind}. transformers has no causal language model of this kind. Give another model."
        )
    if kind in known_models.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        raise ModelError(
            f"{folder.path} is an encoder ({kind}) and sees the tokens to predict. Give a causal language model."
        )
    if quantization := folder.config.get("quantization_config"):
        method = quantization.get("quant_method", "?") if isinstance(quantization, dict) else "?"
        raise ModelError(
            f"{folder.path} holds quantised weights ({method}). They would not run in the requested dtype. "
            "Give the unquantised model, or a GGUF file: grace-store dequantises GGUF."
        )


def _sees_images(config: Any) -> bool:
    return getattr(config, "vision_config", None) is not None


def _models(config: Any) -> Any:
    # Any, because transformers has wrong annotations and overloads here.
    return AutoModelForImageTextToText if _sees_images(config) else AutoModelForCausalLM


def _foreign_code(folder: ModelFolder) -> UnsafeModel:
    return UnsafeModel(
        f"{folder.path} needs its own code ({folder.config.get('model_type')}, auto_map in config.json). grace-store "
        "never runs code of a model. Give a model with an architecture that is part of transformers."
    )


def _read_tokenizer(folder: ModelFolder) -> Any:
    if not folder.gguf_file:  # the parts of a GGUF's tokenizer come from transformers
        try_tokenizer(folder.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder.path, gguf_file=folder.gguf_file, **_LOCAL)
    except ImportError as error:
        raise ModelError(f"The tokenizer in {folder.path} needs a package: {in_words(error)}.") from error
    except Exception as error:
        # The tokenizers library raises Exception for files that it cannot parse.
        if "trust_remote_code" in str(error):
            raise UnsafeModel(
                f"The tokenizer in {folder.path} needs its own code. grace-store never runs such code. Add a "
                "tokenizer.json to the folder."
            ) from error
        raise ModelError(f"The tokenizer in {folder.path} cannot be read: {in_words(error)}.") from error
    if not tokenizer.is_fast:
        raise ModelError(
            f"The tokenizer in {folder.path} ({type(tokenizer).__name__}) gives no character offsets. grace-store "
            "needs them to find steps. Give a tokenizer with tokenizer.json."
        )
    tokenizer._tokenizer = BoundedTokenizer(tokenizer.backend_tokenizer)
    return tokenizer


def skeleton_of(folder: ModelFolder, config: Any) -> Any:
    """Return the model on the meta device: its modules and shapes without weights."""
    with _quiet(), telling(f"The model in {folder.path} cannot be built"), torch.device("meta"):
        return _models(config).from_config(config, trust_remote_code=False)


def _read_weights(described: ModelDescription, dtype: Dtype, attention: Attention, device: torch.device) -> Any:
    folder = described.folder
    options = {**_LOCAL, "attn_implementation": attention, "use_safetensors": True, "output_loading_info": True}
    if folder.gguf_file:
        options.update(gguf_file=folder.gguf_file, quantization_config=GgufConfig(dequantize=True))
    if not devices.has_grouped_products(device, dtype):
        # The eager implementation of experts is right in every dtype on every device. Where the device has the grouped
        # product, it is much faster.
        options["experts_implementation"] = "eager"
    if device.type != "cpu" and importlib.util.find_spec("accelerate") and not folder.gguf_file:
        options["device_map"] = {"": device}  # directly to the device, without a copy in host memory
    # The reader of GGUF files always draws a progress bar.
    silence = redirect_stderr(io.StringIO()) if folder.gguf_file else nullcontext()
    try:
        with silence, telling(f"The weights in {folder.path} cannot be loaded"):
            model, report = _models(described.config).from_pretrained(folder.path, dtype=_DTYPES[dtype], **options)
    except ModelError as error:
        # transformers does not say which shapes differ from the configuration.
        if differing := differing_shapes(read_shapes(folder), skeleton_of(folder, described.config)):
            raise ModelError(
                f"The weights in {folder.path} do not fit its config.json: {len(differing)} have another shape "
                f"({'; '.join(differing[:3])}{'; ...' if len(differing) > 3 else ''})."
            ) from error
        if "attention" in str(error):
            error.add_note("Choose another --attention: eager works for all models.")
        raise
    # transformers only warns when it initialises weights at random.
    problems = []
    for key, meaning in (("missing_keys", "are missing"), ("mismatched_keys", "have another shape")):
        if names := sorted(str(name) for name in report.get(key) or ()):
            problems.append(f"{len(names)} {meaning} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})")
    if problems:
        raise ModelError(f"The weights in {folder.path} do not fit its config.json: {'; '.join(problems)}.")
    if unexpected := report.get("unexpected_keys"):
        _LOG.warning("%s holds %d tensors that the model does not use", folder.path, len(unexpected))
    return model.to(device)


def _check_causal(model: Any) -> None:
    """Raise unless hidden states do not depend on later tokens: batches are padded on the right without a mask."""
    ids = probe_ids(model, 8, 31)
    padded = torch.cat((ids[:, :5], torch.zeros_like(ids[:, 5:])), dim=1)
    with torch.inference_mode():
        alone = run_backbone(model, input_ids=ids[:, :5]).last_hidden_state.float()
        batched = run_backbone(model, input_ids=torch.cat((ids, padded))).last_hidden_state[:, :5].float()
    tolerance = 1e-3 if next(model.parameters()).dtype == torch.float32 else 5e-2
    is_finite = bool(torch.isfinite(alone).all() & torch.isfinite(batched).all())
    # Values that are not finite do not count: in half precision, these tokens may overflow.
    if is_finite and not bool((batched - alone).norm() <= tolerance * alone.norm()):
        raise ModelError(
            f"{type(model).__name__} is not causal: its tokens see later tokens. Give a causal language model."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off progress bars and warnings of transformers; the important ones are raised as errors here."""
    verbosity = _MESSAGES.get_verbosity()
    bars = _MESSAGES.is_progress_bar_enabled()
    _MESSAGES.set_verbosity_error()
    _MESSAGES.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        _MESSAGES.set_verbosity(verbosity)
        if bars:
            _MESSAGES.enable_progress_bar()
