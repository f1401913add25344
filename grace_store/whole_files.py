"""Files that appear whole or not at all: written beside their place under another name, then renamed into it."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grace_store.errors import SettingError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a name to write to; the file takes its own name once its bytes are on the disk, if nothing goes wrong.

    A link stays one: what it points to is written.
    """
    given, path = path, path.resolve()
    refuse_file_above(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise SettingError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not path.is_file():
        raise SettingError(f"{path} is a device or pipe, which cannot be written whole; give the name of a file.")
    part = name_beside(path, "part")
    try:
        _try_writing(part, given)
        yield part
        sync_file(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def refuse_file_above(path: Path) -> None:
    """Raise SettingError if what should be a folder on the way to a path is a file, or if the path was a URL."""
    if not {"s3:", "gs:", "az:"}.isdisjoint(path.parts):
        raise SettingError(f"{path.name} cannot be written to a bucket: only stores can be in one. Give a local path.")
    nearest = next((above for above in path.parents if above.exists()), None)
    if nearest is not None and not nearest.is_dir():
        raise SettingError(f"{path} cannot be written: {nearest} is a file, not a folder.")


def _try_writing(part: Path, given: Path) -> None:
    """Fail by the name that the user gave, not by the one beside it."""
    try:
        part.touch()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SettingError(f"{given} cannot be written: {error.strerror}. Choose another place.") from error


def name_beside(path: Path, suffix: str) -> Path:
    """Return a hidden name in the same folder that no other run uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.{suffix}")


def sync_folder(folder: Path) -> bool:
    """Make the names in a folder survive a power cut; False where the file system knows no such thing."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
        return False
    finally:
        os.close(descriptor)
    return True


def sync_file(path: Path) -> None:
    """Return when what was written to a file would survive a power cut."""
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())
