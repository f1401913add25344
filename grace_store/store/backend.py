"""The keys of a store, and reading and writing bytes by key: the only code that writes to a store.

Does not interpret the bytes.
"""

import contextlib
import errno
import io
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO

from grace_store.base.errors import SettingError, StorageError
from grace_store.base.files import BUCKET_SCHEMES, read_plain, sync_folder

SAMPLES_GROUP = "samples"
SIGNALS_GROUP = "signals"
LEDGER_GROUP = "ledger"
GROUPS = (SAMPLES_GROUP, SIGNALS_GROUP, LEDGER_GROUP)
COMMITS = f"{LEDGER_GROUP}/commits"
COMPLETIONS = f"{LEDGER_GROUP}/complete"
SHARING = f"{LEDGER_GROUP}/sharing"
RUNS = f"{LEDGER_GROUP}/runs"
LOCKS = f"{LEDGER_GROUP}/locks"
PLAN_COPY = f"{LEDGER_GROUP}/plan.json"
SIGNAL_COPIES = f"{LEDGER_GROUP}/signals"
TMP = f"{LEDGER_GROUP}/tmp"


def check_signal_name(name: str) -> str:
    """Return the name if it is a valid folder name on every system; else raise SettingError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.=+-]{0,99}", name) or name in ("zarr.json", "all", "each"):
        raise SettingError(
            f"{name!r} cannot be the name of a signal. Use up to 100 letters, digits and _ . = + - and start with a "
            "letter or digit. The names all, each and zarr.json are reserved."
        )
    return name


def signal_key(signal: str) -> str:
    return f"{SIGNALS_GROUP}/{signal}"


def commit_key(signal: str, unit: int) -> str:
    return f"{COMMITS}/{signal}/{unit:08d}.json"


def signal_copy_key(signal: str) -> str:
    return f"{SIGNAL_COPIES}/{signal}.json"


def completion_key(signal: str) -> str:
    return f"{COMPLETIONS}/{signal}.json"


def sharing_key(signal: str) -> str:
    return f"{SHARING}/{signal}.json"


def chunk_key(array: str, num_dims: int, unit: int) -> str:
    """Return the key, relative to the group, of a unit's chunk of an array."""
    return "/".join([array, "c", str(unit), *["0"] * (num_dims - 1)])


_ATTEMPTS = 4
_LINKED = re.compile(rf"{LEDGER_GROUP}(/[^/]+){{0,2}}|.+/c(/[0-9]+)*")
"""Folders without a zarr.json that may be links: those of the ledger and of chunks."""
_PART = re.compile(r".+/(c/[0-9/]+|[0-9]{8}\.json|zarr\.json)\.part")
"""Half-written values, which a killed run leaves on another disk."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
"""Errors of a hard link between two disks, or on a file system without hard links (exFAT, many network ones)."""


class Backend(Protocol):
    """The storage of a store. A key is a relative path with forward slashes."""

    location: str

    def read(self, key: str) -> bytes | None: ...

    def read_slice(self, key: str, part: slice) -> bytes | None:
        """Return value[part] of a key without reading the rest; part is a:b, a: or -a:."""

    def read_all(self, keys: Iterable[str]) -> Iterator[bytes | None]:
        """Yield the values of keys in the order of the keys; remote storage is read several keys at a time."""
        return map(self.read, keys)

    def write(self, key: str, value: bytes) -> None:
        """Write the whole value under the key; after any failure, nothing."""

    def write_all(self, values: Mapping[str, bytes]) -> None:
        """Write each value as write does, in any order; after an error only some may be written."""
        for key, value in values.items():
            self.write(key, value)

    def write_new(self, key: str, value: bytes) -> bool:
        """Write the value if the key is free, and return whether it was."""

    def renew(self, key: str, value: bytes) -> bool:
        """Set the time of a value to now; return False, without a change, if the key has another value or none."""

    def flush(self) -> None:
        """Wait until everything written so far would survive a power cut."""

    def size(self, key: str) -> int | None: ...

    def written_at(self, key: str) -> float | None:
        """Return the time of the last write or renewal, in seconds since 1970 by the clock of the storage."""

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield (key, size) of every key below a prefix, from one listing."""

    def names(self, prefix: str) -> list[str]:
        """Return the sorted names directly below a prefix."""

    def walk(self, prefix: str = "") -> Iterator[str]:
        """Yield every key below a prefix."""

    def delete(self, *keys: str) -> None:
        """Delete values; missing keys are ignored."""

    def delete_tree(self, prefix: str) -> None: ...

    def is_ours(self, key: str) -> bool:
        """Return whether a stray file is one of the store, and not a file of somebody else that a link leads to."""
        return True

    def prune(self) -> None:
        """Remove the empty folders of a store, and those above it that are newer than this backend; nothing else."""


class LocalBackend(Backend):
    """A folder. A value is written to a temporary file, synced, then renamed to its key."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)
        self.tmp_label = "0-of-1"
        self._new_parents = [folder for folder in root.parents if not os.path.exists(folder)]  # noqa: PTH110 - never raises
        """Folders above the root that its first file creates, the nearest first."""
        self._unsynced: set[Path] = set()
        self._rooted: set[Path] = set()
        """Folders whose parents up to the root have been synced, or will be with the next flush."""

    def read(self, key: str) -> bytes | None:
        return self.read_slice(key, slice(None))

    def read_slice(self, key: str, part: slice) -> bytes | None:
        try:
            return read_plain(f"{self.location}/{key}", part)  # not a Path, which takes long to create
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def write(self, key: str, value: bytes) -> None:
        def rename(tmp: Path) -> None:
            path = self._prepare(key)
            try:
                os.replace(tmp, path)  # noqa: PTH105 - the tests count this call by its name
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # The folder is a link to another disk. With this fixed name, the next run overwrites a leftover file.
                _write_synced(path.with_name(f"{path.name}.part"), value).replace(path)

        self._place(value, rename)

    def write_new(self, key: str, value: bytes) -> bool:
        path = self._prepare(key)
        try:
            # Unlike rename, link fails if the name exists, also on NFS.
            self._place(value, path.hardlink_to)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create(path, value)
        return True

    def renew(self, key: str, value: bytes) -> bool:
        if self.read(key) != value:
            return False
        try:
            os.utime(self.root / key)  # without times: on a network file system, the server's clock
        except FileNotFoundError:
            return False
        return True

    def flush(self) -> None:
        for folder in list(self._unsynced):
            # The folder above the store may belong to another user and not be readable.
            forbidden = [PermissionError] if folder == self.root.parent else []
            with contextlib.suppress(FileNotFoundError, *forbidden):
                sync_folder(folder)
            self._unsynced.discard(folder)

    def size(self, key: str) -> int | None:
        return None if (found := self._stat(key)) is None else found.st_size

    def written_at(self, key: str) -> float | None:
        return None if (found := self._stat(key)) is None else found.st_mtime

    def _stat(self, key: str) -> os.stat_result | None:
        try:
            return (self.root / key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        for key in self.walk(prefix):
            if (size := self.size(key)) is not None:
                yield key, size

    def names(self, prefix: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / prefix))  # noqa: PTH208 - ten times faster than iterdir
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(self, prefix: str = "") -> Iterator[str]:
        entered = set()
        for folder, subfolders, files in os.walk(self.root / prefix, followlinks=True):
            status = Path(folder).stat()
            if (status.st_dev, status.st_ino) in entered:  # a circular link
                subfolders.clear()
                continue
            entered.add((status.st_dev, status.st_ino))
            # A link may stand for a folder of the format on another disk; other links are not followed.
            paths = [Path(folder, name) for name in sorted(subfolders)]
            subfolders[:] = [path.name for path in paths if not path.is_symlink() or self._is_of_format(path)]
            above = Path(folder).relative_to(self.root).as_posix()
            for name in sorted(files):
                yield name if above == "." else f"{above}/{name}"

    def _is_of_format(self, path: Path) -> bool:
        return _LINKED.fullmatch(path.relative_to(self.root).as_posix()) is not None or (path / "zarr.json").is_file()

    def is_ours(self, key: str) -> bool:
        is_inside = (self.root / key).parent.resolve().is_relative_to(self.root.resolve())
        return is_inside or _PART.fullmatch(key) is not None

    def delete(self, *keys: str) -> None:
        for key in keys:
            path = self.root / key
            path.unlink(missing_ok=True)
            self._unsynced.add(path.parent)

    def delete_tree(self, prefix: str) -> None:
        shutil.rmtree(self.root / prefix, ignore_errors=True)
        self._unsynced.add((self.root / prefix).parent)

    def prune(self) -> None:
        keys = (*(f"{TMP}/{label}" for label in self.names(TMP)), TMP, LOCKS, *GROUPS, "")
        for folder in (*(self.root / key for key in keys), *self._new_parents):
            with contextlib.suppress(OSError):  # missing or not empty
                folder.rmdir()

    def _place(self, value: bytes, place: Callable[[Path], object]) -> None:
        """Write a temporary file and place it; the temporary file is removed in any case."""
        for attempt in range(_ATTEMPTS):
            tmp: Path | None = None
            try:
                tmp = self._write_tmp(value)
                place(tmp)
                return
            except FileNotFoundError:
                # A run that starts deletes the temporary files of runs without a lock, and this run may not have its
                # lock yet.
                if attempt == _ATTEMPTS - 1:
                    raise
            finally:
                if tmp is not None:
                    tmp.unlink(missing_ok=True)

    def _write_tmp(self, value: bytes) -> Path:
        tmp = self.root / TMP / self.tmp_label / uuid.uuid4().hex
        tmp.parent.mkdir(parents=True, exist_ok=True)
        return _write_synced(tmp, value)

    def _prepare(self, key: str) -> Path:
        path = self.root / key
        folder = path.parent
        folder.mkdir(parents=True, exist_ok=True)
        # The names of all folders up to the root must survive too, also if a killed run created them.
        above = folder
        while above not in self._rooted and above != self.root.parent:
            self._rooted.add(above)
            above = above.parent
            self._unsynced.add(above)
        self._unsynced.add(folder)
        return path


def _write_through(stream: BinaryIO, value: bytes) -> None:
    stream.write(value)
    stream.flush()
    os.fsync(stream.fileno())


def _write_synced(path: Path, value: bytes) -> Path:
    """Write a file that survives a power cut; after a failure, leave no file."""
    try:
        with path.open("wb") as stream:
            _write_through(stream, value)
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        error.filename = error.filename or str(path)  # an error of write does not say where
        raise
    return path


def _create(path: Path, value: bytes) -> bool:
    """Create a file without hard links; readers may see it half-written. Return False if the file exists."""
    try:
        stream = path.open("xb")
    except FileExistsError:
        return False
    try:
        with stream:
            _write_through(stream, value)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


def open_backend(location: str | Path) -> Backend:
    if is_url(text := str(location)):
        from grace_store.store.object_backend import ObjectBackend  # needs obstore

        return ObjectBackend(text)
    if text.partition(":/")[0] in BUCKET_SCHEMES:
        raise SettingError(
            f"{text} is neither a path nor a URL. Give {text.replace(':/', '://', 1)} as a string, not as a Path."
        )
    return LocalBackend(Path(text).expanduser().absolute())


def is_url(location: str | Path) -> bool:
    """Return whether the location of a store is a URL of an object store, not a local path."""
    return "://" in str(location)


def run_logs(backend: Backend) -> Iterator[str]:
    """Yield the text of every run's log, oldest first."""
    keys = [f"{RUNS}/{name}" for name in backend.names(RUNS) if name.endswith(".jsonl")]
    return (raw.decode(errors="replace") for raw in backend.read_all(keys) if raw is not None)


@contextmanager
def open_run_log(backend: Backend, name: str) -> Iterator[TextIO]:
    """Yield the log of a run for appending. In a folder, lines are written at once; in a bucket, at the end."""
    if isinstance(backend, LocalBackend):
        path = backend.root / RUNS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as log:
            yield log
        return
    lines = io.StringIO()
    try:
        yield lines
    finally:
        with contextlib.suppress(StorageError):  # a failed log must not hide the error of the run
            backend.write(f"{RUNS}/{name}", lines.getvalue().encode())
