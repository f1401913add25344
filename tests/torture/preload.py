"""Faults below Python: a small library, preloaded into the process under test and all that it starts.

`fault.c` counts the calls on files below a root; here it is built, and told which call to let fail and how.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CONTROL = "TORTURE_CONTROL"
OPEN, CREATE, READ, WRITE, SYNC, RENAME, LINK, MKDIR, UNLINK = (1 << bit for bit in range(9))
EVERY_KIND = (1 << 9) - 1
NOTHING, FAIL, SHORT, SIGNAL_BEFORE, SIGNAL_AFTER, TORN = range(6)
"""TORN: half of a write is done, then the signal ends the process."""


class _Block(ctypes.Structure):
    _fields_ = (
        ("counter", ctypes.c_int64),
        ("at", ctypes.c_int64),
        ("fired", ctypes.c_int64),
        ("action", ctypes.c_int32),
        ("value", ctypes.c_int32),
        ("kinds", ctypes.c_int32),
        ("sticky", ctypes.c_int32),
        ("root", ctypes.c_char * 512),
        ("filter", ctypes.c_char * 256),
        ("list", ctypes.c_char * 512),
    )


class Preloaded:
    """The block of memory through which all processes of a run are told what should fail."""

    def __init__(self) -> None:
        with open(os.environ[CONTROL], "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._block = _Block.from_buffer(self._memory)

    def arm(
        self, root: Path, at: int = 0, action: int = NOTHING, value: int = 0, *, kinds: int = EVERY_KIND,
        only: str = "", sticky: bool = False, listed: Path | None = None,
    ) -> None:  # fmt: skip
        """From now on count calls of these kinds on paths below the root that have `only` in them; at one, act.

        The value is an error's number, or a signal's. Sticky: all later calls fail too. Listed: a file that gets a line
        for every call, see `calls_in`.
        """
        self.disarm()
        block = self._block
        block.counter, block.at, block.fired, block.action, block.value, block.sticky = 0, at, 0, action, value, sticky
        block.list = str(listed or "").encode()
        block.filter, block.root, block.kinds = only.encode(), str(root).encode(), kinds

    def disarm(self) -> None:
        self._block.kinds = 0

    @property
    def num_calls(self) -> int:
        return int(self._block.counter)

    @property
    def has_fired(self) -> bool:
        return self._block.fired > 0


def calls_in(listed: Path) -> list[tuple[int, str, str]]:
    """Return (kind, path, what gets that name by a rename or link) of every call, in order."""
    lines = [line.split("\t") for line in listed.read_text().splitlines()]
    return [(int(kind), path, source) for kind, path, source in lines]


def ensure_preloaded(module: str) -> None:
    """Start the running command anew, under the library, unless it runs under it already."""
    if CONTROL in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="grace-store-preload-"))
    library = folder / "fault.so"
    source = Path(__file__).with_name("fault.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    (folder / "control").write_bytes(bytes(ctypes.sizeof(_Block)))
    environment: dict[str, Any] = {**os.environ, "LD_PRELOAD": str(library), CONTROL: str(folder / "control")}
    os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], environment)
