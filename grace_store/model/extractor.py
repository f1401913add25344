"""The door to the model layer: from a user's wishes to a whole ExtractSpec, and from a spec to an extractor."""

from __future__ import annotations

from grace_store.config import Attention, ExtractRequest, ExtractSpec, RunOptions, said
from grace_store.errors import ModelError, SettingError
from grace_store.model.load import ModelDescription, describe, load_described, resolve_device
from grace_store.model.proxy import ProxyExtractor
from grace_store.model.render import resolve_rendering

__all__ = ["ProxyExtractor", "open_extractor", "resolve_spec"]


def resolve_spec(model: str, request: ExtractRequest, options: RunOptions) -> ExtractSpec:
    """Return the spec of a signal made with a model; what was not said is chosen for the model and the device.

    Weights are read for their digest but not loaded.
    """
    described = describe(model)
    chosen = {
        "model": described.identity,
        "rendering": resolve_rendering(request.rendering, described.tokenizer),
        "dtype": request.dtype or ("bfloat16" if resolve_device(options.device).type == "cuda" else "float32"),
        "attention": _resolve_attention(request.attention, described),
    }
    return ExtractSpec(**{**said(request), **chosen})


def open_extractor(model: str, spec: ExtractSpec, options: RunOptions) -> ProxyExtractor:
    """Return an extractor that makes exactly what the spec says, or raise where the model is another one."""
    described = describe(model)
    found, planned = described.identity.model_dump(), spec.model.model_dump()
    differing = [name for name in planned if planned[name] != found[name]]
    if differing:
        details = ", ".join(f"{name} {_short(found[name])} against {_short(planned[name])}" for name in differing)
        raise ModelError(
            f"{model} is not the model this signal was planned with: {details}. "
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
    return f"{text[:12]}…" if len(text) == 64 else text
