"""Stand between Python and the disk: every call on a path below a root is shown to somebody, who may make it fail."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Watch = Callable[[str, str, str | None], None]
"""(operation, path, other path of a rename or link): called before the operation; what it raises is the result."""


class ShortWrite(OSError):
    """The disk took half of the bytes and then had no room."""

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Stream:
    """A file whose reads and writes are seen."""

    def __init__(self, stream: Any, path: str, watch: Watch) -> None:
        self._stream, self._path, self._watch = stream, path, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _Stream:
        self._stream.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._stream.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._stream)

    def write(self, value: Any) -> Any:
        try:
            self._watch("write", self._path, None)
        except ShortWrite:
            self._stream.write(value[: len(value) // 2])
            self._stream.flush()
            raise
        return self._stream.write(value)

    def read(self, *words: Any) -> Any:
        self._watch("read", self._path, None)
        return self._stream.read(*words)

    def readinto(self, buffer: Any) -> Any:
        self._watch("read", self._path, None)
        return self._stream.readinto(buffer)


def _resolved(path: Any, folder: int | None = None) -> str:
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115
    text = os.fsdecode(path)
    if folder is not None:
        text = f"{os.readlink(f'/proc/self/fd/{folder}')}/{text}"  # noqa: PTH115
    return os.path.abspath(text)  # noqa: PTH100 - Path would call what is being watched


ONE_PATH = {
    "mkdir": "mkdir", "unlink": "unlink", "remove": "unlink", "rmdir": "rmdir", "listdir": "list", "scandir": "list",
    "stat": "stat", "fsync": "fsync", "open": "open",
}  # fmt: skip
TWO_PATHS = {"rename": "rename", "replace": "rename", "link": "link"}


@contextlib.contextmanager
def watched(root: Path, watch: Watch) -> Iterator[None]:
    """Show every call on a path below the root, from any thread, while the context lasts."""
    inside = threading.local()
    top = str(root)

    def show(operation: str, path: str, other: str | None = None) -> None:
        if (path == top or path.startswith(top + "/")) and not getattr(inside, "busy", False):
            inside.busy = True
            try:
                watch(operation, path, other)
            finally:
                inside.busy = False

    def one(real: Callable[..., Any], operation: str) -> Callable[..., Any]:
        def call(path: Any = ".", *words: Any, **more: Any) -> Any:
            show(operation, _resolved(path, more.get("dir_fd")))
            return real(path, *words, **more)

        return call

    def two(real: Callable[..., Any], operation: str) -> Callable[..., Any]:
        def call(source: Any, target: Any, **more: Any) -> Any:
            show(operation, _resolved(target), _resolved(source))
            return real(source, target, **more)

        return call

    real_open = io.open

    def open_file(path: Any, mode: str = "r", *words: Any, **more: Any) -> Any:
        if isinstance(path, int):
            return real_open(path, mode, *words, **more)
        where = _resolved(path)
        if not where.startswith(top + "/"):
            return real_open(path, mode, *words, **more)
        show("create" if set(mode) & set("wxa") else "open", where)
        return _Stream(real_open(path, mode, *words, **more), where, show)

    changes: list[tuple[Any, str, Any]] = [(builtins, "open", open_file), (io, "open", open_file)]
    changes += [(os, name, one(getattr(os, name), operation)) for name, operation in ONE_PATH.items()]
    changes += [(os, name, two(getattr(os, name), operation)) for name, operation in TWO_PATHS.items()]
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
