"""Open a signal for writing: create it, or make sure that this run would write the same numbers."""

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from grace_store import __version__
from grace_store.base.errors import ResumeMismatch, SettingError
from grace_store.base.metadata import Signal
from grace_store.base.settings import (
    Batching,
    ExtractRequest,
    Frozen,
    RunOptions,
    as_begun,
    short,
    wishes_in,
)
from grace_store.base.text import counted
from grace_store.model.load.adapter_folder import find_adapters
from grace_store.run.model_door import ModelDoor
from grace_store.store.backend import open_backend
from grace_store.store.keys import check_signal_name
from grace_store.store.lock import hold
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import as_store_has_it, check_kind, create_signal

SIGNAL_WAIT_SECONDS = 3600.0
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "peft", "pillow", "zarr", "numpy")

SpecT = TypeVar("SpecT", bound=Frozen)


def choose_signals(
    store: str, signals: Sequence[str], adapters: Sequence[str], model: str | None, request: ExtractRequest
) -> list[tuple[str, str | None]]:
    """Return (signal, adapter) for each signal to write; with nothing said, the store's unfinished ones, else all."""
    if signals or adapters or model or request.kind or open_backend(store).read("zarr.json") is None:
        return name_signals(signals, adapters, request)
    opened = Store.open(store)
    unfinished = [name for name in opened.signal_names if opened.signal(name).completion() is None]
    return [(name, None) for name in unfinished or opened.signal_names or ["base"]]


def name_signals(
    signals: Sequence[str], adapters: Sequence[str], request: ExtractRequest | None = None
) -> list[tuple[str, str | None]]:
    """Return (signal, adapter) for each signal to write; a training's folder stands for its checkpoints.

    Signals without a name get their adapters' folder names, with a suffix for gradients, or "base".
    """
    found = [str(path) for adapter in adapters for path in find_adapters(adapter)]
    suffix = _gradient_suffix(request)
    names = list(signals) or [Path(path).resolve().name + suffix for path in found] or ["base"]
    if len(names) != max(len(found), 1):
        given = f"{counted(len(names), '--signal name')} for {counted(len(found), 'adapter')} ({', '.join(found)})"
        remedy = "Give one for each, in their order, or none to name signals after the adapters' folders."
        raise SettingError(f"{given}. {remedy}")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"Several adapters would be written as signal {repeated[0]!r}. Give a --signal for each.")
    for name in names:
        check_signal_name(name)
    paths: list[str | None] = [*found] or [None]
    return list(zip(names, paths, strict=True))


def _gradient_suffix(request: ExtractRequest | None) -> str:
    if request is None or request.kind != "gradient":
        return ""
    wishes = wishes_in(request.gradient) if request.gradient is not None else {}
    parts = ["adam" if wishes.get("preconditioner") == "adam" else None, "gradient", wishes.get("per")]
    return "".join(f"-{part}" for part in parts if part not in (None, "sample"))


def open_signal(
    store: Store,
    name: str,
    model: str | None,
    request: ExtractRequest,
    options: RunOptions,
    door: ModelDoor,
    adapter: str | None = None,
    images: str | None = None,
) -> tuple[SignalView, str, str | None]:
    """Return the signal, and the model's and the adapter's paths: those given, or those the signal was begun with."""
    check_signal_name(name)
    if name not in store.signal_names:
        if model is None:
            raise SettingError(f"{store.location} has no signal {name!r} yet; say which --model to extract it with.")
        said_batches = any(getattr(request, name) is not None for name in Batching._fields)
        images_as, shares = request.images_as or "processor", bool(request.share_prompts)
        check_kind(store, request.kind or "proxy", images_as, batches=said_batches, shares=shares)
        spec = as_store_has_it(store, door.resolve_spec(model, request, options, adapter=adapter))
        # The plan's lock: while there is no signal yet, the plan may be made anew.
        with hold(store.backend, "plan", wait_seconds=SIGNAL_WAIT_SECONDS):
            store = _same_plan(store)
            if name not in store.signal_names:
                places = {"model": model, "adapter": adapter, "images": images}
                # Absolute, so that the run can go on from any folder.
                origin = {what: str(Path(path).expanduser().absolute()) for what, path in places.items() if path}
                origin |= software()
                signal = Signal(name=name, spec=spec, plan_sha256=store.plan.digest(), origin=origin)
                return create_signal(store, signal), model, adapter
    view = store.signal(name)
    model = model or view.signal.origin["model"]
    adapter = adapter or view.signal.origin.get("adapter")
    check_same(view, model, request, options, door, adapter)
    return view, model, adapter


def _same_plan(store: Store) -> Store:
    """Return the store as it is now; raise if it was planned anew since it was opened."""
    now = Store.open(store.backend)
    if now.plan != store.plan:
        raise ResumeMismatch(f"{store.location} was planned anew while this run started. Run the same command again.")
    return now


def refuse_lone_gradient_options(request: ExtractRequest) -> None:
    """Raise SettingError if gradients are described but not asked for."""
    wishes = wishes_in(request.gradient) if request.gradient is not None else {}
    if wishes and request.kind != "gradient":
        options = ", ".join(f"--{name.replace('_', '-')}" for name in wishes)
        raise SettingError(f"{options} has no meaning for the proxy. Add --kind gradient. Nothing was planned.")


def check_said(view: SignalView, request: ExtractRequest) -> None:
    """Raise ResumeMismatch if a wish differs from what the signal was begun with; looks at no model and no data."""
    frozen = view.signal.spec
    _refuse_differences(view, describe_differences(as_begun(frozen, ExtractRequest()), as_begun(frozen, request)))


def check_same(
    view: SignalView, model: str, request: ExtractRequest, options: RunOptions, door: ModelDoor, adapter: str | None
) -> None:
    """Raise ResumeMismatch, with a readable difference, unless the run would write the same numbers."""
    frozen = view.signal.spec
    now = door.resolve_spec(model, as_begun(frozen, request), options, adapter=adapter)
    # What was said of settings that an older version does not have has been refused by now.
    if not frozen.freezes_batches:
        now = now.without_batches()
    elif frozen.share_prompts is None:
        now = now.without_sharing()
    _refuse_differences(view, describe_differences(frozen, now))


def _refuse_differences(view: SignalView, differences: Sequence[str]) -> None:
    if differences:
        raise ResumeMismatch(
            f"Signal {view.name!r} of {view.store.location} was begun with other settings:\n  "
            + "\n  ".join(differences)
            + "\nLeave those options out to go on as it was begun, or give a new --signal NAME. Nothing was written."
        )


def describe_differences(frozen: SpecT, now: SpecT, options: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return one line for each setting or part of the model that differs; options are names other than the fields'."""
    lines = []
    for name in type(frozen).model_fields:
        then_value, now_value = getattr(frozen, name), getattr(now, name)
        if isinstance(then_value, Frozen) and isinstance(now_value, Frozen):
            for part in type(then_value).model_fields:
                a, b = getattr(then_value, part), getattr(now_value, part)
                if a != b:
                    lines.append(f"{name} {part.replace('_', '-')}: begun with {short(a)}, now {short(b)}")
        elif isinstance(then_value, Frozen) or isinstance(now_value, Frozen):
            continue  # another kind, which is said already
        elif then_value != now_value:
            shown = options.get(name, name.replace("_", "-"))
            lines.append(f"{shown}: begun with {short(then_value)}, now {short(now_value)}")
    return lines


def software() -> dict[str, str]:
    """Return the versions of what runs here."""
    versions = {"grace-store": __version__, "python": platform.python_version()}
    for package in RECORDED_PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
