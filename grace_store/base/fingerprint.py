"""Digests of files by content, remembered between runs. Knows nothing of what the files hold."""

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grace_store.base.settings import canonical_json

_SETTLED_NS = 2_000_000_000
"""A file touched more recently than this may change again within its clock tick: not remembered."""


def cache_folder() -> Path:
    """Return where digests are remembered: $GRACE_STORE_CACHE, or the user's cache folder."""
    chosen = os.environ.get("GRACE_STORE_CACHE")
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grace-store")


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return the sha256 of a file's bytes, read again only when the file changed since last time."""
    real = Path(path).resolve(strict=True)
    before = _stamp(real)
    entry = cache_folder() / "digests" / f"{hashlib.sha256(os.fsencode(real)).hexdigest()[:32]}.json"
    if (remembered := _recall(entry, before)) is not None:
        return remembered
    digest = _read_sha256(real)
    if _stamp(real) == before and time.time_ns() - before["ctime_ns"] > _SETTLED_NS:
        _remember(entry, {**before, "sha256": digest})
    return digest


def files_sha256(files: Iterable[str | os.PathLike[str]]) -> str:
    """Return one digest over the contents of files, whatever they are called, wherever they lie, in whichever order."""
    return hashlib.sha256(canonical_json(sorted(map(file_sha256, files)))).hexdigest()


def _read_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _stamp(path: Path) -> dict[str, Any]:
    stat = path.stat()
    times = {"mtime_ns": stat.st_mtime_ns, "ctime_ns": stat.st_ctime_ns}
    return {"path": str(path), "num_bytes": stat.st_size, "inode": stat.st_ino, **times}


def _recall(entry: Path, stamp: dict[str, Any]) -> str | None:
    """Return the remembered digest if the entry is whole and is about this very file, else None."""
    try:
        known = json.loads(entry.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(known, dict) or any(known.get(key) != value for key, value in stamp.items()):
        return None
    return digest if re.fullmatch("[0-9a-f]{64}", digest := str(known.get("sha256"))) else None


def _remember(entry: Path, content: dict[str, Any]) -> None:
    # A cache that cannot be written costs time, never the run.
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("wb", dir=entry.parent, suffix=".part", delete=False) as stream:
            stream.write(json.dumps(content).encode())
        os.replace(stream.name, entry)  # noqa: PTH105 - stream.name is a str
    except OSError:
        return
