"""The door to the model layer: from a user's wishes to a whole ExtractSpec, and from a spec to an extractor."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from grace_store.config import Attention, ExtractRequest, ExtractSpec, ModelIdentity, RunOptions, said, short
from grace_store.errors import ModelError, SettingError
from grace_store.model.adapter_folder import require_peft
from grace_store.model.load import ModelDescription, describe, load_described, resolve_device, skeleton_of
from grace_store.model.processor import with_pixel_limits
from grace_store.model.proxy import ProxyExtractor
from grace_store.model.render import resolve_rendering
from grace_store.model.trials import check_images, check_packing

__all__ = ["ProxyExtractor", "open_extractor", "resolve_spec"]


def resolve_spec(
    model: str, request: ExtractRequest, options: RunOptions, *, adapter: str | None = None
) -> ExtractSpec:
    """Return the spec of a signal made with a model; what was not said is chosen for the model and the device.

    Weights are read for their digest but not loaded.
    """
    described = describe(model)
    _check_pixels(request, described)
    chosen = {
        "model": _identity(described, adapter),
        "rendering": resolve_rendering(request.rendering, described.tokenizer),
        "dtype": request.dtype or ("bfloat16" if resolve_device(options.device).type == "cuda" else "float32"),
        "attention": _resolve_attention(request.attention, described),
    }
    return ExtractSpec(**{**said(request), **chosen})


def open_extractor(
    model: str,
    spec: ExtractSpec,
    options: RunOptions,
    *,
    adapter: str | None = None,
    images: str | Path | None = None,
) -> ProxyExtractor:
    """Return an extractor that makes exactly what the spec says, or raise where the model is another one.

    images is the folder that the samples' image paths are in; by default the current one.
    """
    described = describe(model)
    found, planned = _identity(described, adapter).model_dump(), spec.model.model_dump()
    differing = [name for name in planned if planned[name] != found[name]]
    if differing:
        details = ", ".join(f"{name} {short(found[name])} against {short(planned[name])}" for name in differing)
        raise ModelError(
            f"{model} is not the model this signal was planned with: {details}. "
            "Give the model it was planned with, or a new --signal name."
        )
    loaded = load_described(described, spec.dtype, spec.attention, options.device, options.threads)
    if adapter is not None:
        from grace_store.model.adapters import merge, read_adapter

        loaded = replace(loaded, model=merge(read_adapter(adapter), loaded.model), identity=spec.model)
    extractor = ProxyExtractor(loaded, spec, options, images=images)
    sees_images = described.processor is not None and not spec.text_only
    # Batches large enough to hold all samples of a trial.
    trial, large = partial(ProxyExtractor, loaded, spec, head=extractor.head, images=images), {"batch_tokens": 2**20}
    padded = trial(options.model_copy(update={**large, "packing": False}))
    if sees_images:
        check_images(padded)
    if options.packing:
        check_packing(trial(options.model_copy(update=large)), padded, with_images=sees_images)
    return extractor


def _identity(described: ModelDescription, adapter: str | None) -> ModelIdentity:
    """Return who the model is with the adapter in it; raises if the adapter is another model's."""
    if adapter is None:
        return described.identity
    require_peft()
    from grace_store.model.adapters import check_base, place, read_adapter

    read = read_adapter(adapter)
    check_base(read, described.identity)
    place(read, skeleton_of(described))
    return described.identity.model_copy(update={"adapter": read.digest})


def _check_pixels(request: ExtractRequest, described: ModelDescription) -> None:
    if request.min_pixels is None and request.max_pixels is None:
        return
    if described.processor is None:
        raise SettingError(
            f"--min-pixels and --max-pixels have no meaning: {described.identity.architecture} reads text only."
        )
    with_pixel_limits(described.processor, request.min_pixels, request.max_pixels)


def _resolve_attention(requested: Attention | None, described: ModelDescription) -> Attention:
    """Return the attention kernel to use: as asked, else the fastest that every device has."""
    if requested is None:
        return "sdpa" if described.supports_sdpa else "eager"
    if requested == "sdpa" and not described.supports_sdpa:
        raise SettingError(f"{described.identity.architecture} has no sdpa attention. Use --attention eager.")
    return requested
