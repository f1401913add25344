"""From a user's choices to a whole ExtractSpec, and from a spec to an extractor. Fills in what was left out."""

from __future__ import annotations

from pathlib import Path

from grace_store.config import Attention, Dtype, ExtractSpec, Rendering, RunOptions, Storage
from grace_store.errors import ModelError, SettingError
from grace_store.model.extractor import ProxyExtractor
from grace_store.model.load import ModelDescription, describe, load_described, resolve_device
from grace_store.model.render import resolve_rendering


def resolve_spec(
    model_path: str | Path,
    *,
    device: str = "auto",
    dtype: Dtype | None = None,
    attention: Attention | None = None,
    rendering: Rendering | None = None,
    storage: Storage = "int8",
    max_length: int = 4096,
    include_eos: bool = False,
    system: str | None = None,
    text_only: bool = False,
) -> ExtractSpec:
    """Return the spec of a signal made with a model; None means the default for the model and the device.

    Weights are read for their digest but not loaded.
    """
    described = describe(model_path)
    return ExtractSpec(
        model=described.identity,
        rendering=resolve_rendering(rendering, described.tokenizer),
        system=system,
        include_eos=include_eos,
        max_length=max_length,
        text_only=text_only,
        dtype=dtype or ("bfloat16" if resolve_device(device).type == "cuda" else "float32"),
        attention=_resolve_attention(attention, described),
        storage=storage,
    )


def open_extractor(model_path: str | Path, spec: ExtractSpec, options: RunOptions) -> ProxyExtractor:
    """Return an extractor that makes exactly what the spec says, or raise where the model is another one."""
    described = describe(model_path)
    found, planned = described.identity.model_dump(), spec.model.model_dump()
    differing = [name for name in planned if planned[name] != found[name]]
    if differing:
        details = ", ".join(f"{name} {_short(found[name])} against {_short(planned[name])}" for name in differing)
        raise ModelError(
            f"{model_path} is not the model this signal was planned with: {details}. "
            "Give the model it was planned with, or a new --signal name."
        )
    loaded = load_described(described, spec.dtype, spec.attention, options.device, options.threads)
    return ProxyExtractor(loaded, spec, options)


def _resolve_attention(requested: Attention | None, described: ModelDescription) -> Attention:
    if requested is None:
        return "sdpa" if described.supports_sdpa else "eager"
    if requested == "sdpa" and not described.supports_sdpa:
        raise SettingError(f"{described.identity.architecture} has no sdpa attention. Use --attention eager.")
    return requested


def _short(value: object) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text
