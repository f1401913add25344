"""Write files and folders under a temporary name, then rename them, so that they appear whole or not at all."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from grace_store.base.errors import Corrupt, SettingError, StorageError
from grace_store.base.text import json_sha256, without_nan

BUCKET_SCHEMES = ("s3", "gs", "az")
"""Schemes of the URLs of object stores."""


@contextmanager
def whole_file(path: Path, *formats: str, only_new: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to; rename the file to path when it is on the disk. A link stays a link.

    With formats (of ENDINGS), SettingError is raised at once if the name says another format.
    With only_new, FileExistsError is raised at the end if the file exists by then, and the existing file stays.
    """
    if formats:
        check_name(path, *formats)
    given, path = path, path.resolve()
    refuse_file_above(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise SettingError(f"{path} is a folder. Give the name of a file.")
    if path.exists() and not path.is_file():
        raise SettingError(f"{path} is a device or a pipe. Give the name of a file.")
    part = name_beside(path, "part")
    try:
        try:
            part.touch()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise SettingError(f"{given} cannot be written: {error.strerror}. Choose another place.") from error
        yield part
        sync_file(part)
        if only_new:
            _take_free_name(part, path)
        else:
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _take_free_name(part: Path, path: Path) -> None:
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # without hard links, another process may still create the file between check and rename
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        part.replace(path)


def refuse_file_above(path: Path) -> None:
    """Raise SettingError if a parent of the path is a file, or if the path was a URL."""
    if not {f"{scheme}:" for scheme in BUCKET_SCHEMES}.isdisjoint(path.parts):
        raise SettingError(
            f"{path.name} cannot be written to a bucket: only stores can be in a bucket. Give a local path."
        )
    nearest = next((above for above in path.parents if above.exists()), None)
    if nearest is not None and not nearest.is_dir():
        raise SettingError(f"{path} cannot be written: {nearest} is a file, not a folder.")


def name_beside(path: Path, suffix: str) -> Path:
    """Return a hidden path in the same folder that no other process uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.{suffix}")


def sync_folder(folder: Path) -> bool:
    """Make the names in a folder survive a power cut; return False if the file system does not support this."""
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
    """Wait until the content of a file would survive a power cut."""
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


@contextmanager
def whole_folder(path: Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield a temporary folder to fill, then rename it to path; replace an existing folder only if is_ours accepts."""
    check_name(path, FOLDER)
    place = Path(os.path.realpath(path))
    if place.exists() and not (place.is_dir() and (not any(place.iterdir()) or is_ours(place))):
        raise SettingError(f"{path} exists and was not made by this command. Choose another --out.")
    part, old = name_beside(place, "part"), name_beside(place, "old")
    part.mkdir(parents=True)
    try:
        yield part
        for file in part.rglob("*"):
            if file.is_file():
                sync_file(file)
        if place.exists():
            place.rename(old)
        try:
            part.rename(place)
        except OSError:
            if old.exists():
                old.rename(place)
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def overlaps(one: Path, other: Path) -> bool:
    """Return whether two paths are the same place or one lies in the other, after following links."""
    one, other = Path(os.path.realpath(one)), Path(os.path.realpath(other))
    is_inside = any(_is_same(above, other) for above in (one, *one.parents))
    return is_inside or any(_is_same(above, one) for above in other.parents)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:  # one of the paths does not exist
        return False


def write_json(path: Path, value: Any, *, only_new: bool = False) -> None:
    """Write an indented JSON file; with only_new, raise FileExistsError if the file exists."""
    text = json.dumps(without_nan(value), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n", only_new=only_new)


def write_text(path: Path, text: str, *, only_new: bool = False) -> None:
    """Write a text file, which appears only when it is complete."""
    with whole_file(path, only_new=only_new) as partial:
        partial.write_text(text, encoding="utf-8")


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write one record per line."""
    with whole_file(path) as partial, partial.open("wb") as stream:
        for line in lines:
            stream.write(line + b"\n")


def write_json_records(path: Path, records: Iterable[bytes]) -> None:
    """Write JSON records unchanged: one per line or, if the name says JSON, in an array."""
    if format_of(path) != JSON:
        write_lines(path, records)
        return
    with whole_file(path) as partial, partial.open("wb") as stream:
        stream.write(b"[")
        for number, record in enumerate(records):
            stream.write((b",\n" if number else b"\n") + record)
        stream.write(b"\n]\n")


def sidecar_of(path: Path) -> Path:
    """Return the path of the note beside a file."""
    return path.with_name(f"{path.name}.spec.json")


MOST_BYTES = 1 << 32
"""Size of a file that is too large to be read whole."""


def read_plain(path: str | Path, part: slice = slice(None)) -> bytes:
    """Return the bytes of a file, or a part of them; raise Corrupt for a pipe, a device or a file without end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Corrupt(f"{path} is a pipe or a device, but must be a file. Delete it, or put the file back.")
        start, stop, _ = part.indices(status.st_size)
        if stop - start > MOST_BYTES:
            raise Corrupt(
                f"{path} has {status.st_size} bytes, too many for such a file. Delete it, or put the file back."
            )
        stream.seek(start)
        # Not to the end: a file of /proc can have a size of 0 and no end.
        return stream.read(stop - start)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Try to lock a file, which is created if needed; yield whether this process got the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise StorageError(
                f"{path} cannot be locked: {error.strerror or error}. Without locks, two processes would do the same "
                "work. Choose an --out on another disk."
            ) from error
        yield True


_SETTLED_NS = 2_000_000_000
"""The digest of a file that changed less than this time ago is not cached: the file may change again unnoticed."""


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file; read the file again only if it changed since the last time.

    The cache lies in $GRACE_STORE_CACHE, or in the user's cache folder.
    """
    real = Path(path).resolve(strict=True)
    before = _stamp(real)
    if chosen := os.environ.get("GRACE_STORE_CACHE"):
        folder = Path(chosen) / "digests"
    else:  # asked only here: some containers have no home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grace-store" / "digests"
    entry = folder / f"{hashlib.sha256(os.fsencode(real)).hexdigest()[:32]}.json"
    if (remembered := _recall(entry, before)) is not None:
        return remembered
    digest = _read_sha256(real)
    if _stamp(real) == before and time.time_ns() - before["ctime_ns"] > _SETTLED_NS:
        # A cache that cannot be written costs time, but must not end the run.
        with suppress(OSError):
            entry.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("wb", dir=entry.parent, suffix=".part", delete=False) as stream:
                stream.write(json.dumps({**before, "sha256": digest}).encode())
            os.replace(stream.name, entry)  # noqa: PTH105 - stream.name is a str
    return digest


def files_sha256(files: Iterable[str | os.PathLike[str]]) -> str:
    """Return one digest over the contents of files, independent of their names, places and order."""
    return json_sha256(sorted(map(file_sha256, files)))


def _read_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _stamp(path: Path) -> dict[str, Any]:
    stat = path.stat()
    times = {"mtime_ns": stat.st_mtime_ns, "ctime_ns": stat.st_ctime_ns}
    return {"path": str(path), "num_bytes": stat.st_size, "inode": stat.st_ino, **times}


def _recall(entry: Path, stamp: dict[str, Any]) -> str | None:
    """Return the cached digest if the entry is valid and has the same stamp, else None."""
    try:
        known = json.loads(entry.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(known, dict) or any(known.get(key) != value for key, value in stamp.items()):
        return None
    return digest if re.fullmatch("[0-9a-f]{64}", digest := str(known.get("sha256"))) else None


PARQUET, JSON, JSON_LINES, HTML, TEXT, FOLDER = "Parquet", "JSON", "JSON lines", "HTML", "plain text", "a folder"
"""Formats that commands write."""
_OWN_ENDING = ("SVG", "CSV", "TSV", "Avro", "ORC", "Zarr", "safetensors", "TOML", "XML", "PDF", "PNG", "ZIP", "tar")
"""Formats whose file names end in the name of the format."""
ENDINGS = {
    **{name: (f".{name.lower()}",) for name in _OWN_ENDING},
    PARQUET: (".parquet", ".pq"),
    JSON: (".json",),
    JSON_LINES: (".jsonl", ".ndjson"),
    HTML: (".html", ".htm"),
    TEXT: (".txt",),
    "Arrow": (".arrow", ".feather"),
    "Excel": (".xlsx", ".xls"),
    "SQLite": (".sqlite", ".db"),
    "HDF5": (".h5", ".hdf5"),
    "NumPy": (".npy", ".npz"),
    "pickle": (".pkl", ".pickle"),
    "YAML": (".yaml", ".yml"),
    "Markdown": (".md",),
    "JPEG": (".jpg", ".jpeg"),
    "gzip": (".gz", ".tgz"),
    "zstd": (".zst",),
    "bzip2": (".bz2",),
    "xz": (".xz",),
}
"""Endings of file names, by format; a name with another ending says no format."""
_FORMATS = {ending: name for name, endings in ENDINGS.items() for ending in endings}


def format_of(path: Path) -> str | None:
    """Return the format that a file's name says; None if it says none.

    >>> format_of(Path("subset.JSONL")), format_of(Path("subset-0.2"))
    ('JSON lines', None)
    """
    return _FORMATS.get(path.suffix.lower())


def check_name(path: Path, *formats: str) -> None:
    """Raise SettingError if the name of an output says another format than the given ones."""
    if (said := format_of(path)) is None or said in formats:
        return
    endings = [ENDINGS[each][0] for each in formats if each in ENDINGS]
    wanted = f"that ends in {' or '.join(endings)}" if endings else f"without {path.suffix}"
    raise SettingError(
        f"The name {path.name} says {said}, but {' or '.join(formats)} would be written. Choose a name {wanted}."
    )
