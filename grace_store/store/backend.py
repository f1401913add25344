"""Bytes by key at one location: the only code that writes to a store. Knows nothing of what the bytes mean."""

import contextlib
import errno
import io
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO

from grace_store.base.errors import SettingError, StorageError
from grace_store.base.files import BUCKET_SCHEMES, sync_folder
from grace_store.store.layout import GROUPS, LOCKS, RUNS, TMP

_ATTEMPTS = 4
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
"""What two disks say when asked for a hard link, and file systems without: exFAT, many network and user-space ones."""


class Backend(Protocol):
    """Where a store lives. A key is a relative path with forward slashes."""

    location: str

    def read(self, key: str) -> bytes | None: ...

    def read_slice(self, key: str, part: slice) -> bytes | None:
        """Return value[part] of a key without reading the rest; part is a:b, a: or -a:."""

    def read_all(self, keys: Iterable[str]) -> Iterator[bytes | None]:
        """Yield the values of keys, in the order of the keys; several at a time where each one takes a round trip."""
        return map(self.read, keys)

    def write(self, key: str, value: bytes) -> None:
        """Put the whole value under the key or, whatever happens, nothing."""

    def write_all(self, values: Mapping[str, bytes]) -> None:
        """Write each value as write does, in any order; after an error some are written and some are not."""
        for key, value in values.items():
            self.write(key, value)

    def write_new(self, key: str, value: bytes) -> bool:
        """Like write, but only if the key is free; False if it was taken."""

    def renew(self, key: str, value: bytes) -> bool:
        """Let a value count as written now; False, and nothing written, if another value or none is there."""

    def flush(self) -> None:
        """Return when everything written so far would survive a power cut."""

    def size(self, key: str) -> int | None: ...

    def written_at(self, key: str) -> float | None:
        """Return when a value was written or renewed, in seconds since 1970 by the clock of the storage."""

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield (key, size) of everything below a prefix, from one listing."""

    def names(self, prefix: str) -> list[str]:
        """Return the sorted names directly below a prefix."""

    def walk(self, prefix: str = "") -> Iterator[str]:
        """Yield every key below a prefix."""

    def delete(self, *keys: str) -> None:
        """Delete values; those that are not there are no error."""

    def delete_tree(self, prefix: str) -> None: ...

    def prune(self) -> None:
        """Remove the folders of a store that has nothing in it, and those only."""


class LocalBackend(Backend):
    """A folder. Values are written beside their place, synced, then renamed into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)
        self.tmp_label = "0-of-1"
        self._unsynced: set[Path] = set()
        self._rooted: set[Path] = set()
        """Folders whose way up to the root is synced with the next flush, or was."""

    def read(self, key: str) -> bytes | None:
        try:
            # A path is a text here: making a Path takes as long as reading a small file.
            with open(f"{self.location}/{key}", "rb", buffering=0) as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def read_slice(self, key: str, part: slice) -> bytes | None:
        try:
            with open(self.root / key, "rb") as stream:
                start, stop, _ = part.indices(os.fstat(stream.fileno()).st_size)
                stream.seek(start)
                return stream.read(stop - start)
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
                # The folder is a link to another disk. Named for its place, so that the next run leaves none behind.
                part = _write_synced(path.with_name(f"{path.name}.part"), value)
                part.replace(path)

        self._place(value, rename)

    def write_new(self, key: str, value: bytes) -> bool:
        path = self._prepare(key)
        try:
            # link, unlike rename, refuses an existing name, also on NFS.
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
            # What is above the store may be somebody else's, who lets nobody list it.
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
            if (status.st_dev, status.st_ino) in entered:  # a link that leads back
                subfolders.clear()
                continue
            entered.add((status.st_dev, status.st_ino))
            subfolders[:] = sorted(name for name in subfolders if _is_ours(Path(folder, name)))
            above = Path(folder).relative_to(self.root).as_posix()
            for name in sorted(files):
                yield name if above == "." else f"{above}/{name}"

    def delete(self, *keys: str) -> None:
        for key in keys:
            path = self.root / key
            path.unlink(missing_ok=True)
            self._unsynced.add(path.parent)

    def delete_tree(self, prefix: str) -> None:
        shutil.rmtree(self.root / prefix, ignore_errors=True)
        self._unsynced.add((self.root / prefix).parent)

    def prune(self) -> None:
        for key in (*(f"{TMP}/{label}" for label in self.names(TMP)), TMP, LOCKS, *GROUPS, ""):
            with contextlib.suppress(OSError):  # not there, or not empty: it stays
                (self.root / key).rmdir()

    def _place(self, value: bytes, place: Callable[[Path], object]) -> None:
        """Write a temporary file and put it in its place; it is gone afterwards, whatever happens."""
        for attempt in range(_ATTEMPTS):
            tmp: Path | None = None
            try:
                tmp = self._write_tmp(value)
                place(tmp)
                return
            except FileNotFoundError:
                # Every run that starts sweeps the temporary files of runs without a lock; one that is
                # just taking its lock has none yet.
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
        # A folder's own name must survive too, all the way up, also of folders that a run made which was then killed.
        above = folder
        while above not in self._rooted and above != self.root.parent:
            self._rooted.add(above)
            above = above.parent
            self._unsynced.add(above)
        self._unsynced.add(folder)
        return path


def _is_ours(folder: Path) -> bool:
    """Return whether to look into a folder: a link may stand for a group on another disk, and for nothing else."""
    return not folder.is_symlink() or (folder / "zarr.json").is_file()


def _write_through(stream: BinaryIO, value: bytes) -> None:
    stream.write(value)
    stream.flush()
    os.fsync(stream.fileno())


def _write_synced(path: Path, value: bytes) -> Path:
    """Write a file that survives a power cut, or leave none."""
    try:
        with path.open("wb") as stream:
            _write_through(stream, value)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    return path


def _create(path: Path, value: bytes) -> bool:
    """Write a new file in its place, where there are no links: a reader may see it half-written, nobody twice."""
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
    """Return the backend for a path or URL."""
    text = str(location)
    if is_url(text):
        from grace_store.store.object_backend import ObjectBackend  # needs obstore, which a folder does not

        return ObjectBackend(text)
    if text.partition(":/")[0] in BUCKET_SCHEMES:
        raise SettingError(f"{text} is neither a path nor a URL: give {text.replace(':/', '://', 1)}, as text.")
    return LocalBackend(Path(text).expanduser().absolute())


def is_url(location: str | Path) -> bool:
    """Return whether a store's location is in an object store, and no path of this machine."""
    return "://" in str(location)


def run_logs(backend: Backend) -> Iterator[str]:
    """Yield the text of every run's log, oldest first."""
    keys = [f"{RUNS}/{name}" for name in backend.names(RUNS) if name.endswith(".jsonl")]
    return (raw.decode(errors="replace") for raw in backend.read_all(keys) if raw is not None)


@contextmanager
def open_run_log(backend: Backend, name: str) -> Iterator[TextIO]:
    """Yield the log of a run to append to. It grows line by line in a folder; in a bucket it is written at the end."""
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
        with contextlib.suppress(StorageError):  # a log must not hide how the run ended
            backend.write(f"{RUNS}/{name}", lines.getvalue().encode())
