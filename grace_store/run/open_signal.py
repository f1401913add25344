"""Open a signal for writing: create the signal, or check that this run would write the same numbers."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
from grace_store.store.backend import check_signal_name, open_backend, sharing_key
from grace_store.store.lock import hold
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import create_signal, keep_sharing

RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "peft", "pillow", "zarr", "numpy")

SpecT = TypeVar("SpecT", bound=Frozen)


def choose_signals(
    store: str, signals: Sequence[str], adapters: Sequence[str], model: str | None, request: ExtractSpec
) -> list[tuple[str, str | None]]:
    """Return (signal, adapter) for each signal to write.

    Without signals, adapters and model, these are the store's unfinished signals, or all signals if all are finished.
    """
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
    suffix = ""
    if request is not None and request.kind == "gradient":
        wanted = request.gradient or GradientSpec()
        parts = [wanted.preconditioner, "gradient", wanted.per]
        suffix = "".join(f"-{part}" for part in parts if part not in ("none", "sample"))
    names = list(signals) or [Path(path).resolve().name + suffix for path in found] or ["base"]
    if len(names) != max(len(found), 1):
        given = f"{counted(len(names), '--signal name')} for {counted(len(found), 'adapter')} ({', '.join(found)})"
        raise SettingError(f"{given}. Give one --signal for each adapter, in the same order, or leave --signal out.")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"Several adapters would be written as signal {repeated[0]!r}. Give a --signal for each.")
    for name in names:
        check_signal_name(name)
    paths: list[str | None] = [*found] or [None]
    return list(zip(names, paths, strict=True))


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
    """Return the signal and the paths of its model and adapter; paths that are not given come from the signal."""
    check_signal_name(name)
    if name not in store.signal_names:
        if model is None:
            raise SettingError(
                f"{store.location} has no signal {name!r} yet. Give the model with --model to extract this signal."
            )
        spec = door.resolve_spec(model, request, options, adapter=adapter)
        # While the store has no signal yet, another run may plan it anew, so this takes the plan's lock.
        with hold(store.backend, "plan", wait_seconds=3600.0):
            if (now := Store.open(store.backend)).plan != store.plan:
                raise ResumeMismatch(
                    f"{store.location} was planned again while this run started. Run the same command again."
                )
            store = now
            if name not in store.signal_names:
                places = {"model": model, "adapter": adapter, "images": images}
                # Absolute paths, so that the run can be resumed from any folder.
                origin = {what: str(Path(path).expanduser().absolute()) for what, path in places.items() if path}
                origin |= software()
                signal = Signal(name=name, spec=spec, plan_sha256=store.plan.digest(), origin=origin)
                return create_signal(store, signal), model, adapter
    view = store.signal(name)
    return view, *check_same(view, model, request, options, door, adapter)


def check_given(view: SignalView, request: ExtractSpec) -> None:
    """Raise ResumeMismatch if a given setting differs from the signal's; read neither model nor data."""
    frozen = view.signal.spec
    _refuse_differences(view, describe_differences(ExtractSpec().over(frozen), request.over(frozen)))


def check_same(
    view: SignalView, model: str | None, request: ExtractSpec, options: RunOptions, door: ModelDoor, adapter: str | None
) -> tuple[str, str | None]:
    """Raise ResumeMismatch, with the differences in words, unless the run would write the same numbers.

    Return the paths of the model and the adapter; paths that are not given come from the signal.
    """
    frozen, origin = view.signal.spec, view.signal.origin
    model, adapter = model or origin["model"], adapter or origin.get("adapter")
    now = door.resolve_spec(model, request.over(frozen), options, adapter=adapter)
    _refuse_differences(view, describe_differences(frozen, now))
    return model, adapter


def _refuse_differences(view: SignalView, differences: Sequence[str]) -> None:
    if differences:
        raise ResumeMismatch(
            f"Signal {view.name!r} of {view.store.location} began with other settings:\n  "
            + "\n  ".join(differences)
            + "\nLeave these options out to continue the signal, or give a new --signal NAME. Nothing was written."
        )


def describe_differences(frozen: SpecT, now: SpecT, options: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return one line for each setting or part of the model that differs; options renames fields in these lines."""
    lines = []
    for name in type(frozen).model_fields:
        then_value, now_value = getattr(frozen, name), getattr(now, name)
        if isinstance(then_value, Frozen) and isinstance(now_value, Frozen):
            for part in type(then_value).model_fields:
                a, b = getattr(then_value, part), getattr(now_value, part)
                if a != b:
                    lines.append(f"{name} {part.replace('_', '-')}: begun with {short(a)}, now {short(b)}")
        elif isinstance(then_value, Frozen) or isinstance(now_value, Frozen):
            continue  # the line about the kind says this already
        elif then_value != now_value:
            shown = options.get(name, name.replace("_", "-"))
            lines.append(f"{shown}: begun with {short(then_value)}, now {short(now_value)}")
    return lines


def software() -> dict[str, str]:
    """Return the versions of grace-store, Python and the packages that can change numbers."""
    return {"grace-store": __version__, "python": platform.python_version(), **installed(RECORDED_PACKAGES)}


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    versions = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


# ---------------------------------------------------------------- sharing prompts and images in all runs of a signal
# A probe at load finds whether a model can share prompts and images, and the result may differ between machines and
# libraries. The first run stores its result with the signal, and every later run shares in the same way or stops.


_LEVELS: tuple[SharedImages | None, ...] = (None, "sample", "image")
"""Ways of sharing images, in ascending order: a model that can share one way can share in the ways before it."""


def begin_sharing(view: SignalView, extractor: Extractor) -> None:
    """Store the probe's result if no run did so before, and share as stored; raise Corrupt if the result is lost."""
    if extractor.sharing is not None:
        # A run stores the result before its first commit, so it is lost if there is a commit but no result.
        if not view.committed_units():
            keep_sharing(view, extractor.sharing)
        elif view.sharing() is None:
            raise Corrupt(
                f"{view.store.location}: {sharing_key(view.name)} is missing. It recorded whether the committed "
                f"units of {view.name!r} shared prompts and images. `grace-store verify --repair` extracts these units "
                "again. Nothing was written."
            )
    follow_sharing(view, extractor)


def follow_sharing(view: SignalView, extractor: Extractor) -> None:
    """Let an extractor share as the units of a signal do; raise ResumeMismatch if it cannot."""
    if (found := extractor.sharing) is None:
        return
    begun = view.sharing() or found
    if begun.prompts and not found.prompts:
        raise _mismatch(view, f"shared prompts, but a probe of shared prompts fails on this machine: {found.fault}")
    if _LEVELS.index(begun.images) > _LEVELS.index(found.images):
        why = found.images_fault or "the model sees no images"
        raise _mismatch(view, f"shared images, but a probe of shared images fails on this machine: {why}")
    if (begun.prompts, begun.images) != (found.prompts, found.images):
        extractor.share_as(begun)


def _mismatch(view: SignalView, what: str) -> ResumeMismatch:
    return ResumeMismatch(
        f"Signal {view.name!r} of {view.store.location} began with {what}. All vectors of a signal must be made in the "
        "same way. Continue on a machine with the same software as the first run, or give a new --signal NAME. "
        "Nothing was written."
    )
