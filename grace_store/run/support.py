"""Collect a report about a failed run: versions, devices, settings and the logs of a store's runs.

The report contains no text of a trace, no path and no secret. It takes only listed variables from the environment, and
only settings, counts and logs from a store. Paths and long quotations are cut out.
"""

import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grace_store import __version__
from grace_store.base.errors import GraceStoreError
from grace_store.base.settings import Frozen
from grace_store.run.doctor.machine_checks import main_memory
from grace_store.run.open_signal import installed
from grace_store.run.status import signal_status
from grace_store.store.backend import RUNS
from grace_store.store.opened import SignalView, Store

NUM_RUNS, NUM_LINES = 3, 200
"""Number of runs to report, the latest ones, and of lines from the end of each run's log."""
DEVICE_SECONDS = 120.0
"""Time limit for all devices to answer."""
PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "accelerate", "peft", "numpy", "zarr", "numcodecs", "obstore",
    "pyarrow", "pydantic", "pillow", "ray", "faiss-cpu", "triton", "flash-attn",
)  # fmt: skip
VARIABLES = re.compile(
    r"\w+_VISIBLE_DEVICES|ZE_AFFINITY_MASK|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|SLURM_(PROCID|LOCALID|NTASKS)|"
    r"OMP_NUM_THREADS|MKL_NUM_THREADS|PYTORCH_\w*ALLOC_CONF|\w+_WORKSPACE_CONFIG|\w+_LAUNCH_BLOCKING"
)
"""Environment variables that change how devices are used; their values are numbers and switches."""
_INPUTS = ("model", "adapter", "images")
"""Keys of a signal's origin that hold paths."""
_LONGEST_QUOTE = 24
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*)://\S+")
_FOLDERS = re.compile(r"(?<![\w.…])~?(?:/[^\s/'\"()\[\],:;]+)*/(?=[^\s/'\"()\[\],:;])")
_QUOTED = re.compile(rf"'[^'\n]{{{_LONGEST_QUOTE},}}'|\"[^\"\n]{{{_LONGEST_QUOTE},}}\"|`[^`\n]{{200,}}`")


class SupportReport(Frozen):
    """A report about a failed run, for the people who maintain this package."""

    grace_store: str
    versions: dict[str, str]
    machine: dict[str, Any]
    devices: dict[str, Any]
    environment: dict[str, str]
    store: dict[str, Any] | None
    runs: list[list[dict[str, Any]]]


def support(store: str | Path | None = None, environment: Mapping[str, str] = os.environ) -> SupportReport:
    """Collect a report about this machine and about the store that the failed run wrote to."""
    about, runs, places = (None, [], []) if store is None else _store_and_runs(store)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = dict(zip(("free_bytes", "total_bytes"), main_memory() or (), strict=False))
    found = {
        "grace_store": __version__,
        "versions": {
            "Python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
            **installed(PACKAGES),
        },
        "machine": {"processor": platform.machine(), "cores": cores, **memory},
        "devices": _ask_devices(),
        "environment": {name: value for name, value in sorted(environment.items()) if VARIABLES.fullmatch(name)},
        "store": about,
        "runs": runs,
    }
    return SupportReport(**_Scrubber(places).cleaned(found))


def _ask_devices() -> dict[str, Any]:
    """Probe the devices in another process, so that a hanging device does not block the report."""
    command = [sys.executable, "-m", "grace_store.model.devices"]
    failure = ""
    try:
        done = subprocess.run(command, capture_output=True, timeout=DEVICE_SECONDS, check=False)
        answer = done.stdout
        if done.returncode:
            lines_of_error = filter(str.strip, reversed(done.stderr.decode(errors="replace").splitlines()))
            failure = next(lines_of_error, "the process ended without a message").strip()
    except subprocess.TimeoutExpired as late:
        answer, failure = late.stdout or b"", f"no answer within {DEVICE_SECONDS:g} seconds"
    lines = [json.loads(line) for line in answer.decode(errors="replace").splitlines() if line.endswith("}")]
    listed = {line["device"]: line for line in lines if "device" in line}
    begun = [line["begins"] for line in lines if "begins" in line and line["begins"] not in listed]
    silent = [{"device": number, "probe": failure} for number in begun]
    about: dict[str, Any] = next((line for line in lines if "num_devices" in line), {})
    return {**about, "listed": [*listed.values(), *silent], **({"failure": failure} if failure else {})}


def _store_and_runs(place: str | Path) -> tuple[dict[str, Any], list[list[dict[str, Any]]], list[str]]:
    """Return a store's settings and counts, the logs of its last runs, and all paths that these may contain.

    For a store that cannot be opened, return the error instead of settings and logs.
    """
    try:
        store = Store.open(place)
        plan = store.plan.model_dump(mode="json", exclude={"files", "samples_sha256"})
        plan["files"] = [file.model_dump(include={"kind", "num_bytes", "num_records"}) for file in store.plan.files]
        views = {name: store.signal(name) for name in store.signal_names}
        about = {"plan": plan, "signals": {name: _signal(view) for name, view in views.items()}}
        runs = []
        for name in store.backend.names(RUNS)[-NUM_RUNS:]:
            lines = (store.backend.read(f"{RUNS}/{name}") or b"").decode(errors="replace").splitlines()
            runs.append([_parsed(line) for line in lines[-NUM_LINES:]])
    except (GraceStoreError, OSError) as error:
        return {"failure": f"{type(error).__name__}: {error}"}, [], [str(place)]
    inputs = [view.signal.origin[key] for view in views.values() for key in _INPUTS if key in view.signal.origin]
    return about, runs, [str(place), store.location, *(file.path for file in store.plan.files), *inputs]


def _parsed(line: str) -> dict[str, Any]:
    """Return an event of a log; a line may be damaged, and the last one incomplete if the run was killed."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    return event if isinstance(event, dict) else {"damaged_line": f"{len(line)} characters"}


def _signal(view: SignalView) -> dict[str, Any]:
    if "system" in (spec := view.signal.spec.model_dump(mode="json", exclude_none=True)):
        spec["system"] = f"{len(spec['system'])} characters"
    splits = {unit: view.commit(unit).split for unit in view.committed_units()[-NUM_LINES:]}
    return {
        "spec": spec,
        "software": {name: value for name, value in view.signal.origin.items() if name not in _INPUTS},
        "counts": signal_status(view).model_dump(mode="json"),
        "split": {str(unit): split for unit, split in splits.items() if split},
    }


class _Scrubber:
    """Removes folders, URLs, the host's name and long quotations from all texts of a report."""

    def __init__(self, places: Sequence[str]) -> None:
        # Folders of known paths are removed by name: a pattern would stop at a space in a folder's name.
        known = {folder for place in places for folder in Path(place).absolute().parents}
        self._folders = sorted(map(str, {*known, Path.home(), Path.cwd()} - {Path("/")}), key=len, reverse=True)
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
