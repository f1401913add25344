"""Open a signal for writing: create it, or make sure that this run would write the same numbers."""

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from grace_store import __version__
from grace_store.base.errors import Corrupt, ResumeMismatch, SettingError
from grace_store.base.metadata import SharedImages, Signal
from grace_store.base.settings import ExtractSpec, Frozen, GradientSpec, RunOptions, short
from grace_store.base.text import counted
from grace_store.model.load.adapter_folder import find_adapters
from grace_store.run.extractor_protocol import Extractor, ModelDoor
from grace_store.store.backend import open_backend
from grace_store.store.keys import check_signal_name, sharing_key
from grace_store.store.lock import hold
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import create_signal, keep_sharing

SIGNAL_WAIT_SECONDS = 3600.0
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "peft", "pillow", "zarr", "numpy")

SpecT = TypeVar("SpecT", bound=Frozen)


def choose_signals(
    store: str, signals: Sequence[str], adapters: Sequence[str], model: str | None, request: ExtractSpec
) -> list[tuple[str, str | None]]:
    """Return (signal, adapter) for each signal to write; with nothing said, the store's unfinished ones, else all."""
    is_described = bool(signals or adapters or model) or "kind" in request.model_fields_set
    if is_described or open_backend(store).read("zarr.json") is None:
        return name_signals(signals, adapters, request)
    opened = Store.open(store)
    unfinished = [name for name in opened.signal_names if opened.signal(name).completion() is None]
    return [(name, None) for name in unfinished or opened.signal_names or ["base"]]


def name_signals(
    signals: Sequence[str], adapters: Sequence[str], request: ExtractSpec | None = None
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


def _gradient_suffix(request: ExtractSpec | None) -> str:
    if request is None or request.kind != "gradient":
        return ""
    wanted = request.gradient or GradientSpec()
    parts = [wanted.preconditioner, "gradient", wanted.per]
    return "".join(f"-{part}" for part in parts if part not in ("none", "sample"))


def open_signal(
    store: Store,
    name: str,
    model: str | None,
    request: ExtractSpec,
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
        spec = door.resolve_spec(model, request, options, adapter=adapter)
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


def refuse_lone_gradient_options(request: ExtractSpec) -> None:
    """Raise SettingError if gradients are described but not asked for."""
    if request.kind != "gradient" and request.gradient is not None and (given := request.gradient.given()):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise SettingError(f"{options} has no meaning for the proxy. Add --kind gradient. Nothing was planned.")


def check_given(view: SignalView, request: ExtractSpec) -> None:
    """Raise ResumeMismatch if a given setting is not as the signal was begun; looks at no model and no data."""
    frozen = view.signal.spec
    _refuse_differences(view, describe_differences(ExtractSpec().over(frozen), request.over(frozen)))


def check_same(
    view: SignalView, model: str, request: ExtractSpec, options: RunOptions, door: ModelDoor, adapter: str | None
) -> None:
    """Raise ResumeMismatch, with a readable difference, unless the run would write the same numbers."""
    frozen = view.signal.spec
    now = door.resolve_spec(model, request.over(frozen), options, adapter=adapter)
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


# ---------------------------------------------------------------- sharing prompts and images as the signal was begun
# Whether a model can share is found by a probe when it is loaded, and another machine or library may find otherwise.
# The first run keeps what it found, and all others do the same or none of it.


_LEVELS: tuple[SharedImages | None, ...] = (None, "sample", "image")
"""What is shared of images, from nothing on: a model that can do one can do those before it."""


def begin_sharing(view: SignalView, extractor: Extractor) -> None:
    """Keep what a probe found, if no run did before, and follow what is kept; raise Corrupt where that is lost."""
    if extractor.sharing is not None:
        # In this order: what a run keeps is there before its first commit, so it is lost if it is not there after one.
        if not view.committed_units():
            keep_sharing(view, extractor.sharing)
        elif view.sharing() is None:
            raise Corrupt(
                f"{view.store.location}: {sharing_key(view.name)} is missing, so nothing says whether the units of "
                f"{view.name!r} that are done shared prompts and images. `grace-store verify --repair` does them all "
                "again. Nothing was written."
            )
    follow_sharing(view, extractor)


def follow_sharing(view: SignalView, extractor: Extractor) -> None:
    """Have an extractor share as the units of a signal do; raise ResumeMismatch where it cannot."""
    if (found := extractor.sharing) is None:
        return
    begun = view.sharing() or found
    if begun.prompts and not found.prompts:
        raise _mismatch(view, f"shared prompts, and a probe here finds a fault with them: {found.fault}")
    if _LEVELS.index(begun.images) > _LEVELS.index(found.images):
        why = found.images_fault or "the model sees none"
        raise _mismatch(view, f"images that go through the vision tower once, and a probe here finds a fault: {why}")
    if (begun.prompts, begun.images) != (found.prompts, found.images):
        extractor.share_as(begun)


def _mismatch(view: SignalView, what: str) -> ResumeMismatch:
    return ResumeMismatch(
        f"Signal {view.name!r} of {view.store.location} was begun with {what}. Its vectors must not be of both kinds: "
        "go on with a machine and software like those it was begun with, or give a new --signal NAME. Nothing was "
        "written."
    )
