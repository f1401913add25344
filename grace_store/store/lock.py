"""Who may write: one run per signal and shard. A lock left by a dead process of this machine is taken over."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
            key, mine = _take(backend, name, shard, break_lock=break_lock)
            break
        except StoreBusy:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_SECONDS)
    try:
        clear_dead(backend)
        yield
    finally:
        if backend.read(key) == mine:  # else it was broken, and what lies there is another run's
            backend.delete_tree(f"{TMP}/{_label(name, shard)}")
            backend.delete(key)


def _label(name: str, shard: Shard) -> str:
    return f"{name}.{shard[0]}-of-{shard[1]}"


def _take(backend: Backend, name: str, shard: Shard, *, break_lock: bool) -> tuple[str, bytes]:
    """Return the key and the content of a lock that is now ours."""
    label = _label(name, shard)
    key = f"{LOCKS}/{label}.json"
    mine = json.dumps(_me()).encode()
    if isinstance(backend, LocalBackend):
        backend.tmp_label = label
    _clear_stale(backend, name, shard, break_lock=break_lock)
    if not backend.write_new(key, mine):
        raise StoreBusy(_busy_text(backend, key, _owner(backend, key)))
    for other_key, owner in _overlapping(backend, name, shard):
        if other_key != key:
            # Both took their lock at once; whoever sees the other steps back.
            backend.delete(key)
            raise StoreBusy(_busy_text(backend, other_key, owner))
    return key, mine


def _clear_stale(backend: Backend, name: str, shard: Shard, *, break_lock: bool) -> None:
    for key, owner in _overlapping(backend, name, shard):
        if not (break_lock or is_dead(owner)):
            raise StoreBusy(_busy_text(backend, key, owner))
        _bury(backend, key, break_lock=break_lock)


def _bury(backend: Backend, key: str, *, break_lock: bool = False) -> None:
    """Delete a dead run's lock.

    Many runs may find it at once, and one that is slow must not delete the lock that a quicker one has put in
    its place: so who deletes first takes a claim, named for the lock's content, and looks again.
    """
    found = backend.read(key)
    if found is None:
        return
    claim = f"{key}.{hashlib.sha256(found).hexdigest()[:16]}.dead"
    if not backend.write_new(claim, json.dumps(_me()).encode()):
        owner = _owner(backend, claim)
        if not (break_lock or is_dead(owner)):
            raise StoreBusy(_busy_text(backend, claim, owner))
    try:
        if backend.read(key) == found and (break_lock or is_dead(_parsed(found))):
            backend.delete(key)
    finally:
        backend.delete(claim)


def clear_dead(backend: Backend) -> None:
    """Delete what runs that are gone left behind: locks and half-written files. Those of live runs stay."""
    live = set()
    for name in backend.names(LOCKS):
        key = f"{LOCKS}/{name}"
        if not is_dead(_owner(backend, key)):
            live.add(name.removesuffix(".json"))
        elif name.endswith(".dead"):
            backend.delete(key)
        else:
            with suppress(StoreBusy):  # another run is at it
                _bury(backend, key)
    for label in backend.names(TMP):
        if label not in live:
            backend.delete_tree(f"{TMP}/{label}")


def refuse_busy(backend: Backend) -> None:
    """Raise StoreBusy if any run, of whatever signal, may be writing."""
    clear_dead(backend)
    for name in backend.names(LOCKS):
        key = f"{LOCKS}/{name}"
        raise StoreBusy(_busy_text(backend, key, _owner(backend, key)))


def _overlapping(backend: Backend, name: str, shard: Shard) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in backend.names(LOCKS):
        prefix, _, rest = file.removesuffix(".json").rpartition(".")
        i, _, n = rest.partition("-of-")
        if prefix != name or not (i.isdigit() and n.isdigit() and int(n) > 0):
            continue
        if (int(i) - shard[0]) % gcd(int(n), shard[1]) == 0:
            yield f"{LOCKS}/{file}", _owner(backend, f"{LOCKS}/{file}")


def _owner(backend: Backend, key: str) -> dict[str, Any]:
    return _parsed(backend.read(key))


def _parsed(raw: bytes | None) -> dict[str, Any]:
    try:
        owner = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def is_dead(owner: dict[str, Any]) -> bool:
    """Return whether a lock's owner certainly no longer runs: only knowable on its own machine."""
    if owner.get("host") != socket.gethostname():
        return False
    if owner.get("boot") != _boot_id():
        return True
    if owner.get("pid_namespace") != _pid_namespace():
        return False  # another container of this machine, whose processes cannot be seen from here
    pid = owner.get("pid")
    return isinstance(pid, int) and process_started(pid) != owner.get("process_started")


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


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "unknown"


def _me() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_started": process_started(os.getpid()),
        "boot": _boot_id(),
        "pid_namespace": _pid_namespace(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _busy_text(backend: Backend, key: str, owner: dict[str, Any]) -> str:
    who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')} since {owner.get('since', '?')}"
    return (
        f"{backend.location} is being written by {who} ({key}). Wait for it to end; if you know that it is dead, "
        "give --break-lock to `grace-store extract`."
    )
