"""The machine a run is to go on: does its file system or bucket do what stores rely on, and what room is left."""

from __future__ import annotations

import os
import shutil
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from grace_store.base.errors import StorageError
from grace_store.base.files import sync_file, sync_folder
from grace_store.store.backend import Backend, open_backend

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a place does not do: nothing, less than could be wished, or too little to hold a store."""

    folder: Path | str
    slight: str = ""
    fatal: str = ""


def existing_folder(place: Path) -> Path:
    """Return the folder nearest above a place that is there."""
    return next(folder for folder in place.parents if folder.exists())


def disk_room(place: Path) -> Room:
    """Return the room on the disk that a place is, or will be, on."""
    found = shutil.disk_usage(place if place.exists() else existing_folder(place))
    return Room(found.free, found.total)


def main_memory() -> Room | None:
    """Return the memory that this process may still take, by the machine and by its control group; None if unknown."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free, total = (int(lines[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return Room(free, total)
    return Room(min(free, max(limit - used, 0)), min(total, limit))


def try_storage(url: str) -> Trouble:
    """Try in a bucket, by an object that is gone afterwards, what a store does there."""
    backend = open_backend(url)
    key = f".doctor-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        try:
            return _try_object(backend, key)
        finally:
            backend.delete(key)
    except StorageError as error:
        return Trouble(url, fatal=str(error))


def _try_object(backend: Backend, key: str) -> Trouble:
    url = backend.location
    is_new = backend.write_new(key, b"1")
    is_new_again = backend.write_new(key, b"2")
    found, names = backend.read(key), backend.names("")
    if not is_new or key not in names or found is None:
        return Trouble(url, fatal=f"{url} does not give back at once what was put there")
    if is_new_again:
        return Trouble(url, slight=f"{url} replaces objects that it was told not to, so runs may not see each other")
    if not _can_renew(backend, key, found):
        return Trouble(url, slight=f"{url} does not let a lock be renewed, so a long run may be taken for a dead one")
    return Trouble(url)


def _can_renew(backend: Backend, key: str, value: bytes) -> bool:
    try:
        return backend.renew(key, value)
    except StorageError:
        return False


def try_place(place: Path) -> Trouble:
    """Try, in files beside a store's place that are gone afterwards, what a store does: it has no other way to be sure.

    A file appears whole under its name (rename), is never made twice (link), and survives a power cut (sync).
    """
    folder = existing_folder(place)
    name = f".{place.name}.doctor-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    first, second = folder / f"{name}.a", folder / f"{name}.b"
    try:
        for path, content in ((first, b"1"), (second, b"2")):
            path.write_bytes(content)
            sync_file(path)
        os.replace(first, second)  # noqa: PTH105 - what the store calls
        if second.read_bytes() != b"1":
            return Trouble(folder, fatal=f"{folder} does not replace a file by a rename")
        keeps_names = sync_folder(folder)
        trouble = _try_link(folder, first, second)
        if not keeps_names and not trouble.fatal:
            lost = f"{folder} cannot sync folders, so a power cut may take what was just written"
            trouble = replace(trouble, slight="; ".join(filter(None, (lost, trouble.slight))))
        return trouble
    except OSError as error:
        return Trouble(folder, fatal=f"{folder} cannot be written to as a store is: {error.strerror or error}")
    finally:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)


def _try_link(folder: Path, free: Path, taken: Path) -> Trouble:
    try:
        free.hardlink_to(taken)
    except OSError as error:
        text = f"{folder} has no hard links ({error.strerror}), so locks are made in a weaker way"
        return Trouble(folder, slight=text)
    try:
        free.hardlink_to(taken)
    except FileExistsError:
        return Trouble(folder)
    return Trouble(folder, fatal=f"{folder} lets two runs make the same file, so they could mix")
