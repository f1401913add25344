"""Complete the given settings to an ExtractSpec, and load the model of a spec."""

from dataclasses import replace

from grace_store.base.errors import ModelError, SettingError
from grace_store.base.settings import (
    GRADIENT_BATCH_TOKENS,
    SPARSE_ENTRIES,
    Attention,
    ExtractSpec,
    GradientSpec,
    ModelIdentity,
    RunOptions,
    short,
)
from grace_store.model import devices
from grace_store.model.inputs.tokens import resolve_rendering
from grace_store.model.inputs.trainer_images import as_trainer
from grace_store.model.load import weights
from grace_store.model.load.adapter_folder import require_peft
from grace_store.model.load.weights import LoadedModel, ModelDescription, describe_model


def resolve_spec(model: str, request: ExtractSpec, options: RunOptions, *, adapter: str | None = None) -> ExtractSpec:
    """Return the spec of a signal; choose all settings that were not given. Reads the weights only for digests."""
    given = request.given()
    gradient = _resolve_gradient(request, adapter)
    described = describe_model(model)
    architecture = described.identity.architecture
    limits = (request.min_pixels, request.max_pixels)
    if described.processor is not None:
        as_trainer(request.images_as, described.processor, *limits)
    elif limits != (None, None):
        raise SettingError(f"--min-pixels and --max-pixels cannot be used: {architecture} reads only text.")
    attention: Attention = given.get("attention") or ("sdpa" if described.supports_sdpa else "eager")
    chosen = {
        "gradient": gradient,
        "model": _identity(described, adapter),
        "rendering": resolve_rendering(given.get("rendering"), described.tokenizer),
        "dtype": given.get("dtype") or devices.default_dtype(options.device),
        "attention": attention,
        "share_prompts": _resolve_sharing(request),
    }
    if attention == "sdpa" and not described.supports_sdpa:
        raise SettingError(f"{architecture} has no sdpa attention. Use --attention eager.")
    batches = {"batch_tokens": GRADIENT_BATCH_TOKENS} if request.kind == "gradient" else {}
    return ExtractSpec(**{**batches, **given, **chosen}).whole()


def load_planned(
    model: str, spec: ExtractSpec, options: RunOptions, adapter: str | None
) -> tuple[ModelDescription, LoadedModel]:
    """Return the model of a spec; raise if this is another model. Merge the adapter unless gradients need it."""
    described = describe_model(model)
    found, planned = _identity(described, adapter).model_dump(), spec.model.model_dump()
    if differing := [name for name in planned if planned[name] != found[name]]:
        details = ", ".join(f"{name} is {short(found[name])}, planned was {short(planned[name])}" for name in differing)
        raise ModelError(
            f"{model} is not the model that this signal was planned with: {details}. "
            "Give the planned model, or choose a new --signal name."
        )
    loaded = weights.load(described, spec.dtype, spec.attention, options.device, options.threads)
    if spec.gradient is not None:
        # The adapter's parameters, moments and learning rate must be the planned ones too.
        wanted = ExtractSpec(kind="gradient", gradient=GradientSpec().over(spec.gradient))
        own, names = _resolve_gradient(wanted, adapter), GradientSpec.model_fields
        if differing := [name for name in names if getattr(own, name) != getattr(spec.gradient, name)]:
            raise ModelError(
                f"{adapter} does not have the {', '.join(differing).replace('_', ' ')} that this signal was planned "
                "with. Give the planned checkpoint, or choose a new --signal name."
            )
    elif adapter is not None:
        from grace_store.model.load.adapters import merge, read_adapter

        with devices.watching(loaded.device):
            loaded = replace(loaded, model=merge(read_adapter(adapter), loaded.model), identity=spec.model)
    return described, loaded


def _resolve_gradient(request: ExtractSpec, adapter: str | None) -> GradientSpec | None:
    """Return the complete settings of gradients; None for the proxy."""
    wanted = request.gradient or GradientSpec()
    if request.kind != "gradient":
        if given := wanted.given():
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise SettingError(f"{names} cannot be used with --kind proxy. Add --kind gradient.")
        return None
    if adapter is None:
        raise SettingError(
            "--kind gradient computes gradients of the parameters of a LoRA adapter. Give --adapter with a checkpoint "
            "that `grace-store warmup` wrote."
        )
    require_peft()
    from grace_store.model.gradients.projection import coordinates_of, coordinates_sha256, read_moments
    from grace_store.model.load.adapters import read_adapter

    read = read_adapter(adapter)
    coordinates = coordinates_of(read)
    moments = read_moments(read, coordinates).digest() if wanted.preconditioner == "adam" else None
    if wanted.bias_correction and moments is None:
        raise SettingError(
            "--bias-correction works only with --preconditioner adam. Add it, or leave --bias-correction out."
        )
    if wanted.projection == "sparse" and wanted.dimension % SPARSE_ENTRIES:
        raise SettingError(f"--projection sparse needs a --dimension that is a multiple of {SPARSE_ENTRIES}.")
    found = {
        "moments": moments,
        "parameters": coordinates_sha256(coordinates),
        "learning_rate": read.folder.state and read.folder.state.mean_learning_rate,
    }
    return GradientSpec(**{"normalise": wanted.per == "sample", **wanted.given(), **found})


def _identity(described: ModelDescription, adapter: str | None) -> ModelIdentity:
    """Return the identity of the model with the adapter; raise if the adapter belongs to another model."""
    if adapter is None:
        return described.identity
    require_peft()
    from grace_store.model.load.adapters import check_base, place, read_adapter

    read = read_adapter(adapter)
    check_base(read, described.identity)
    place(read, weights.skeleton_of(described.folder, described.config))
    return described.identity.model_copy(update={"adapter": read.digest})


def _resolve_sharing(request: ExtractSpec) -> bool:
    """Return whether samples share prompts: by default yes, but never for gradients or packed batches."""
    if request.share_prompts and request.kind == "gradient":
        raise SettingError("--share-prompts cannot be used with --kind gradient. Leave --share-prompts out.")
    if request.share_prompts and request.packing:
        raise SettingError("--share-prompts and --packing cannot be used together. Leave one of the two out.")
    return request.kind != "gradient" and not request.packing and bool(request.given().get("share_prompts", True))
