"""Warn when a piece of work takes too long, because a hanging device raises no error; end a process with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from grace_store.base.events import Listener, Warned

HANGS = (
    "The device has not finished {work} within {seconds} seconds (--patience). The device may hang. If nothing "
    "follows, stop the run (Ctrl-C twice, or kill -9 {pid}), check the device's log and other programs on the device, "
    "and run the same command again, if necessary without this device. Committed work is kept."
)


class Watch:
    """A thread that warns once about each piece of work that takes too long."""

    def __init__(self, patience: float, listener: Listener) -> None:
        self._patience = patience
        self._listener = listener
        self._since: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @contextmanager
    def over(self, work: str) -> Iterator[None]:
        """Watch a piece of work while the block runs; work is its name in the warning."""
        self._since[work] = time.monotonic()
        try:
            yield
        finally:
            self._since.pop(work, None)

    def _run(self) -> None:
        told: set[str] = set()
        while not self._over.wait(min(self._patience / 4, 10.0)):
            late = [work for work, since in list(self._since.items()) if time.monotonic() - since > self._patience]
            # Warn about the oldest work only: later work waits for it.
            if late and late[0] not in told:
                told.add(late[0])
                self._listener(Warned(HANGS.format(work=late[0], seconds=f"{self._patience:g}", pid=os.getpid())))


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, so that no orphan writes to the store."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(1)
