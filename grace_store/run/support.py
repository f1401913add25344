"""What to send when a run fails: versions, devices, settings and the logs of a store's runs. No text of any trace.

Nothing is copied that a trace, a path or a secret could be in: packages and devices are asked, the environment is
read by a list of names, and of a store only settings, counts and logs are taken, with paths and quotations cut out.
"""

import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from grace_store import __version__
from grace_store.base.errors import GraceStoreError
from grace_store.base.settings import Frozen
from grace_store.run.doctor.machine_checks import main_memory
from grace_store.run.status import signal_status
from grace_store.store.keys import RUNS
from grace_store.store.opened import SignalView, Store

NUM_RUNS, NUM_LINES = 3, 200
"""The last runs of a store, and the last lines of each."""
DEVICE_SECONDS = 120.0
"""How long all devices may take to answer."""
PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "accelerate", "peft", "numpy", "zarr", "numcodecs", "obstore",
    "pyarrow", "pydantic", "pillow", "ray", "faiss-cpu", "triton", "flash-attn",
)  # fmt: skip
VARIABLES = re.compile(
    r"\w+_VISIBLE_DEVICES|ZE_AFFINITY_MASK|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|SLURM_(PROCID|LOCALID|NTASKS)|"
    r"OMP_NUM_THREADS|MKL_NUM_THREADS|PYTORCH_\w*ALLOC_CONF|\w+_WORKSPACE_CONFIG|\w+_LAUNCH_BLOCKING"
)
"""Of the environment, those that change how devices are used; their values are numbers and switches."""
_INPUTS = ("model", "adapter", "images")
"""Places that a signal's origin names."""
_LONGEST_QUOTE = 24
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*)://\S+")
_FOLDERS = re.compile(r"(?<![\w.…])~?(?:/[^\s/'\"()\[\],:;]+)*/(?=[^\s/'\"()\[\],:;])")
_QUOTED = re.compile(rf"'[^'\n]{{{_LONGEST_QUOTE},}}'|\"[^\"\n]{{{_LONGEST_QUOTE},}}\"|`[^`\n]{{200,}}`")


class SupportReport(Frozen):
    """All that was collected."""

    grace_store: str
    versions: dict[str, str]
    machine: dict[str, Any]
    devices: dict[str, Any]
    environment: dict[str, str]
    store: dict[str, Any] | None
    runs: list[list[dict[str, Any]]]


def support(store: str | Path | None = None, environment: Mapping[str, str] = os.environ) -> SupportReport:
    """Return what a report of a failed run needs, of this machine and of the store that the run wrote into."""
    about, runs, places = (None, [], []) if store is None else _store_and_runs(store)
    found = {
        "grace_store": __version__,
        "versions": _versions(),
        "machine": _machine(),
        "devices": _ask_devices(),
        "environment": {name: value for name, value in sorted(environment.items()) if VARIABLES.fullmatch(name)},
        "store": about,
        "runs": runs,
    }
    return SupportReport(**_Scrubber(places).cleaned(found))


# ---------------------------------------------------------------- the machine


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _machine() -> dict[str, Any]:
    room = main_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = {} if room is None else dict(zip(("free_bytes", "total_bytes"), room, strict=True))
    return {"processor": platform.machine(), "cores": cores, **memory}


def _ask_devices() -> dict[str, Any]:
    """Return what another process tells of the devices: one that hangs must not keep the report."""
    command = [sys.executable, "-m", "grace_store.model.devices"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEVICE_SECONDS, check=False)
        told, failure = done.stdout, "" if done.returncode == 0 else _last_line(done.stderr)
    except subprocess.TimeoutExpired as late:
        told, failure = _text(late.stdout), f"no answer within {DEVICE_SECONDS:g} seconds"
    lines = [json.loads(line) for line in told.splitlines() if line.endswith("}")]
    listed = {line["device"]: line for line in lines if "device" in line}
    begun = [line["begins"] for line in lines if "begins" in line and line["begins"] not in listed]
    silent = [{"device": number, "probe": failure} for number in begun]
    about: dict[str, Any] = next((line for line in lines if "num_devices" in line), {})
    return {**about, "listed": [*listed.values(), *silent], **({"failure": failure} if failure else {})}


def _text(told: bytes | str | None) -> str:
    return told.decode(errors="replace") if isinstance(told, bytes) else told or ""


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it ended without a word")


# ---------------------------------------------------------------- the store


def _store_and_runs(store: str | Path) -> tuple[dict[str, Any], list[list[dict[str, Any]]], list[str]]:
    """Return a store's settings and counts, its last runs' events, and all places that they may name.

    Of a store that cannot be opened, why.
    """
    try:
        opened = Store.open(store)
        return _about(opened), _runs(opened), [str(store), *_places(opened)]
    except (GraceStoreError, OSError) as error:
        return {"failure": f"{type(error).__name__}: {error}"}, [], [str(store)]


def _places(store: Store) -> list[str]:
    origins = [store.signal(name).signal.origin for name in store.signal_names]
    inputs = [origin[what] for origin in origins for what in _INPUTS if what in origin]
    return [store.location, *(file.path for file in store.plan.files), *inputs]


def _about(store: Store) -> dict[str, Any]:
    plan = store.plan.model_dump(mode="json", exclude={"files", "samples_sha256"})
    plan["files"] = [file.model_dump(include={"kind", "num_bytes", "num_records"}) for file in store.plan.files]
    return {"plan": plan, "signals": {name: _signal(store.signal(name)) for name in store.signal_names}}


def _signal(view: SignalView) -> dict[str, Any]:
    spec = view.signal.spec.model_dump(mode="json", exclude_none=True)
    if "system" in spec:
        spec["system"] = f"{len(spec['system'])} characters"
    software = {name: value for name, value in view.signal.origin.items() if name not in _INPUTS}
    splits = {unit: view.commit(unit).split for unit in view.committed_units()[-NUM_LINES:]}
    return {
        "spec": spec,
        "software": software,
        "counts": signal_status(view).model_dump(mode="json"),
        "split": {str(unit): split for unit, split in splits.items() if split},
    }


def _runs(store: Store) -> list[list[dict[str, Any]]]:
    runs = []
    for name in store.backend.names(RUNS)[-NUM_RUNS:]:
        lines = (store.backend.read(f"{RUNS}/{name}") or b"").decode(errors="replace").splitlines()
        # The last line of a run that was killed may be cut short.
        runs.append([json.loads(line) for line in lines[-NUM_LINES:] if line.endswith("}")])
    return runs


# ---------------------------------------------------------------- what must not be in it


class _Scrubber:
    """Cuts folders, places and long quotations out of everything that is text."""

    def __init__(self, places: Sequence[str]) -> None:
        """Take places whose folders are known, as a space in a folder's name would end it."""
        known = {folder for place in places for folder in Path(place).absolute().parents}
        folders = {*known, Path.home(), Path.cwd()} - {Path("/")}
        self._folders = sorted(map(str, folders), key=len, reverse=True)
        self._host = re.compile(rf"\b{re.escape(socket.gethostname())}\b")

    def cleaned(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {self._text(str(key)): self.cleaned(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.cleaned(each) for each in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        for folder in self._folders:
            text = text.replace(f"{folder}/", "/")
        text = _QUOTED.sub("'…'", _FOLDERS.sub("…/", _URL.sub(r"\1:…", text)))
        return self._host.sub("HOST", text)
