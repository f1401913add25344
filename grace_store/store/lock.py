"""Who may write: one run per signal and shard. A lock left by a dead process of this machine is taken over."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import gcd
from pathlib import Path
from typing import Any

from grace_store.errors import StoreBusy
from grace_store.store.backend import Backend, LocalBackend
from grace_store.store.layout import LOCKS, TMP

_POLL_SECONDS = 0.2

Shard = tuple[int, int]
"""(i, n): the units whose number leaves remainder i when divided by n."""


@contextmanager
def hold(
    backend: Backend, name: str, shard: Shard = (0, 1), *, break_lock: bool = False, wait_seconds: float = 0.0
) -> Iterator[None]:
    """Hold the right to write a signal's units of one shard; raise StoreBusy if a live run overlaps for too long."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            key = _take(backend, name, shard, break_lock=break_lock)
            break
        except StoreBusy:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_SECONDS)
    try:
        _clear_remains(backend)
        yield
    finally:
        backend.delete_tree(f"{TMP}/{_label(name, shard)}")
        backend.delete(key)


def _label(name: str, shard: Shard) -> str:
    return f"{name}.{shard[0]}-of-{shard[1]}"


def _take(backend: Backend, name: str, shard: Shard, *, break_lock: bool) -> str:
    label = _label(name, shard)
    key = f"{LOCKS}/{label}.json"
    _clear_stale(backend, name, shard, break_lock=break_lock)
    if isinstance(backend, LocalBackend):
        backend.tmp_label = label
    if not backend.write_new(key, json.dumps(_me()).encode()):
        raise StoreBusy(_busy_text(backend, key, _owner(backend, key)))
    for other_key, owner in _overlapping(backend, name, shard):
        if other_key != key:
            # Both took their lock at once; whoever sees the other steps back.
            backend.delete(key)
            raise StoreBusy(_busy_text(backend, other_key, owner))
    return key


def _clear_stale(backend: Backend, name: str, shard: Shard, *, break_lock: bool) -> None:
    for key, owner in _overlapping(backend, name, shard):
        if break_lock or is_dead(owner):
            backend.delete(key)
        else:
            raise StoreBusy(_busy_text(backend, key, owner))


def _clear_remains(backend: Backend) -> None:
    """Delete half-written files of runs that are gone; those of other live runs stay."""
    live = {name.removesuffix(".json") for name in backend.names(LOCKS)}
    for label in backend.names(TMP):
        if label not in live:
            backend.delete_tree(f"{TMP}/{label}")


def _overlapping(backend: Backend, name: str, shard: Shard) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in backend.names(LOCKS):
        prefix, _, rest = file.removesuffix(".json").rpartition(".")
        i, _, n = rest.partition("-of-")
        if prefix != name or not (i.isdigit() and n.isdigit() and int(n) > 0):
            continue
        if (int(i) - shard[0]) % gcd(int(n), shard[1]) == 0:
            yield f"{LOCKS}/{file}", _owner(backend, f"{LOCKS}/{file}")


def _owner(backend: Backend, key: str) -> dict[str, Any]:
    try:
        owner = json.loads(backend.read(key) or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def is_dead(owner: dict[str, Any]) -> bool:
    """Return whether a lock's owner certainly no longer runs: only knowable on its own machine."""
    if owner.get("host") != socket.gethostname():
        return False
    if owner.get("boot") != _boot_id():
        return True
    return process_started(int(owner.get("pid", -1))) != owner.get("process_started")


def process_started(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks, or None if there is no such process."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    if stat.parent.parent.is_dir():
        return None
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return "unknown"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _me() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_started": process_started(os.getpid()),
        "boot": _boot_id(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _busy_text(backend: Backend, key: str, owner: dict[str, Any]) -> str:
    who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')} since {owner.get('since', '?')}"
    return (
        f"{backend.location} is being written by {who} ({key}). Wait for it to end; if you know that it is dead, "
        "give --break-lock."
    )
