"""Open a signal for writing: create it, or make sure that this run would write the same numbers."""

from __future__ import annotations

import platform
from importlib import metadata

from grace_store import __version__
from grace_store.config import ExtractRequest, ExtractSpec, RunOptions, said
from grace_store.errors import ResumeMismatch, SettingError
from grace_store.job.extractor import ModelDoor
from grace_store.metadata import Signal
from grace_store.store import SignalView, Store, check_signal_name, create_signal, hold

SIGNAL_WAIT_SECONDS = 3600.0
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "zarr", "numpy")


def open_signal(
    store: Store,
    name: str,
    model: str | None,
    request: ExtractRequest,
    options: RunOptions,
    door: ModelDoor,
) -> tuple[SignalView, str]:
    """Return the signal, and the model's path: the one given or the one the signal was begun with."""
    check_signal_name(name)
    if name not in store.signal_names:
        if model is None:
            raise SettingError(f"{store.location} has no signal {name!r} yet; say which --model to extract it with.")
        spec = door.resolve_spec(model, request, options)
        with hold(store.backend, f"create-{name}", wait_seconds=SIGNAL_WAIT_SECONDS):
            store = Store.open(store.backend)
            if name not in store.signal_names:
                signal = Signal(name=name, spec=spec, plan_sha256=store.plan.digest(), origin=_origin(model))
                return create_signal(store, signal), model
    view = store.signal(name)
    model = model or view.signal.origin["model"]
    check_same(view, model, request, options, door)
    return view, model


def check_same(view: SignalView, model: str, request: ExtractRequest, options: RunOptions, door: ModelDoor) -> None:
    """Raise ResumeMismatch, with a readable difference, unless the run would write the same numbers."""
    frozen = view.signal.spec
    unsaid = {key: value for key, value in frozen.model_dump().items() if key in ExtractRequest.model_fields}
    now = door.resolve_spec(model, ExtractRequest(**{**unsaid, **said(request)}), options)
    differences = describe_differences(frozen, now)
    if differences:
        raise ResumeMismatch(
            f"Signal {view.name!r} of {view.store.location} was begun with other settings:\n  "
            + "\n  ".join(differences)
            + "\nLeave those options out to go on as it was begun, or give a new --signal NAME. Nothing was written."
        )


def describe_differences(frozen: ExtractSpec, now: ExtractSpec) -> list[str]:
    """Return one line for each setting or part of the model that differs."""
    lines = []
    for name in ExtractSpec.model_fields:
        then_value, now_value = getattr(frozen, name), getattr(now, name)
        if name == "model":
            for part in type(frozen.model).model_fields:
                a, b = getattr(frozen.model, part), getattr(now.model, part)
                if a != b:
                    lines.append(f"model {part}: begun with {_short(a)}, now {_short(b)}")
        elif then_value != now_value:
            lines.append(f"{name.replace('_', '-')}: begun with {_short(then_value)}, now {_short(now_value)}")
    return lines


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text


def _origin(model: str) -> dict[str, str]:
    versions = {"grace-store": __version__, "python": platform.python_version()}
    for package in RECORDED_PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {"model": model, **versions}
