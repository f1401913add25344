"""Locks: one run per signal and shard may write. A new run takes over the lock of a dead run.

A run sees at once if another process of this machine is dead. A process elsewhere renews its lock every minute; after
fifteen minutes without renewal it counts as dead. Only the clock of the storage measures this time: both the lock and
the claim before a takeover are written there, so a wrong clock of a machine never makes a live run count as dead (a
slow clock only delays the takeover). A run confirms its lock before it starts, writes and commits a unit, because it
may have been suspended or disconnected. It ends if another run has taken over or the store is gone.
"""

import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import gcd
from pathlib import Path, PurePosixPath
from typing import Any

from grace_store.base.errors import NotAStore, StorageError, StoreBusy
from grace_store.store.backend import LOCKS, TMP, Backend, LocalBackend, signal_key

RENEW_SECONDS = 60.0
SILENT_SECONDS = 900.0
"""Time without renewal after which a run that this machine cannot see counts as dead."""
CLAIM_SECONDS = 30.0
"""Time to wait while another run deletes the lock of a dead run, as when several runs start together after a crash."""
_POLL_SECONDS = 0.2
_LONGEST_POLL_SECONDS = 5.0

Shard = tuple[int, int]
"""(i, n): the units whose number leaves remainder i when divided by n."""

_held: set[str] = set()
"""The marks of this process that are in use. A lock of this process with another mark is dead."""


class _Claimed(StoreBusy):
    """Another run is deleting the lock of a dead run."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lock of this run, until another run takes it over."""

    backend: Backend
    key: str
    content: bytes
    places: tuple[str, ...] = ()
    """Documents without which nothing can be written."""

    def of_signal(self, name: str) -> "Lease":
        return replace(self, places=("zarr.json", f"{signal_key(name)}/zarr.json"))

    @property
    def scratch(self) -> str:
        """A prefix for temporary files of this run; they are deleted with the lock."""
        return f"{TMP}/{PurePosixPath(self.key).stem}"

    def confirm(self) -> None:
        """Raise StoreBusy if another run has taken over, NotAStore if the store or a part of it is gone."""
        found, *documents = self.backend.read_all([self.key, *self.places])
        where = self.backend.location
        if found is None and not self.backend.names(""):
            raise NotAStore(
                f"{where} is gone: the store was deleted or renamed. Nothing has been written since. "
                "If the store was renamed, run the same command with the new name. All committed units are kept."
            )
        if gone := [place for place, raw in zip(self.places, documents, strict=True) if raw is None]:
            raise NotAStore(
                f"{where}/{gone[0]} is gone: this file, or a folder above it, was deleted or renamed during the run. "
                "Nothing has been written since. If it was renamed, rename it back. If it is lost, run `grace-store "
                "verify --repair`. Then run the same command again."
            )
        if found is None:
            raise StoreBusy(
                f"{where}: the lock of this run ({self.key}) is gone. Somebody deleted it, or a folder above it was "
                "renamed, or another run took it over because this run was silent for too long. Run the same command "
                "again."
            )
        if found != self.content:
            raise StoreBusy(
                f"{where}: this run was silent for too long, and its lock ({self.key}) was taken over by "
                f"{_who(_parsed(found))}. Run the same command again."
            )


@contextmanager
def hold(
    backend: Backend, name: str, shard: Shard = (0, 1), *, break_lock: bool = False, wait_seconds: float = 0.0
) -> Iterator[Lease]:
    """Hold the lock of one shard of a signal's units; raise StoreBusy if a live run holds an overlapping lock."""
    began = time.monotonic()
    pause = _POLL_SECONDS
    with _mark() as mine:
        while True:
            try:
                key = _take(backend, name, shard, mine, break_lock=break_lock)
                break
            except StoreBusy as busy:
                patience = max(wait_seconds, CLAIM_SECONDS) if isinstance(busy, _Claimed) else wait_seconds
                if time.monotonic() - began >= patience:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_POLL_SECONDS)
        lease = Lease(backend, key, mine)
        try:
            with _renewed(lease):
                clear_dead(backend)
                yield lease
        finally:
            # A failure of the storage must not hide the error of the run; other runs will see that this one is dead.
            with suppress(StorageError):
                if backend.read(key) == mine:  # else another run has taken over
                    backend.delete_tree(f"{TMP}/{_label(name, shard)}")
                    backend.delete(key)


@contextmanager
def _renewed(lease: Lease) -> Iterator[None]:
    """Renew a lock while the caller works. A lock that is gone or taken over is never written again."""
    done = threading.Event()

    def renew() -> None:
        is_ours = True
        while is_ours and not done.wait(RENEW_SECONDS):
            with suppress(OSError, StorageError):  # the storage may be back in a minute
                is_ours = lease.backend.renew(lease.key, lease.content)

    # No join at the end: renewing a lock that was released does nothing.
    threading.Thread(target=renew, name=f"renew {lease.key}", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _label(name: str, shard: Shard) -> str:
    return f"{name}.{shard[0]}-of-{shard[1]}"


def _take(backend: Backend, name: str, shard: Shard, mine: bytes, *, break_lock: bool) -> str:
    """Take a lock and return its key, or raise StoreBusy."""
    label = _label(name, shard)
    key = f"{LOCKS}/{label}.json"
    if isinstance(backend, LocalBackend):
        backend.tmp_label = label
    _clear_stale(backend, name, shard, break_lock=break_lock)
    if not backend.write_new(key, mine):
        if backend.read(key) is None and backend.size(key) is not None:
            raise StoreBusy(
                f"{backend.location}: {key} is a folder, but a lock must be a file. Delete this folder and run the "
                "command again."
            )
        raise StoreBusy(_busy_text(backend, key, _parsed(backend.read(key))))
    for other_key, owner in _overlapping(backend, name, shard):
        if other_key != key:
            # Two runs took their locks at the same time; a run that sees the other lock withdraws.
            backend.delete(key)
            raise StoreBusy(_busy_text(backend, other_key, owner))
    return key


def _clear_stale(backend: Backend, name: str, shard: Shard, *, break_lock: bool) -> None:
    for key, owner in _overlapping(backend, name, shard):
        if not (break_lock or is_dead(backend, key, owner)):
            raise StoreBusy(_busy_text(backend, key, owner))
        _bury(backend, key, break_lock=break_lock)


def _bury(backend: Backend, key: str, *, break_lock: bool = False) -> None:
    """Delete a dead run's lock.

    Several runs may find the lock at the same time, and a slow run must not delete the new lock of a faster run. So a
    run first takes a claim, named after the content of the lock, and then reads the lock again. The time of the claim
    is also the current time by the clock of the storage. The claim of a dead run is buried in the same way.
    """
    if (found := backend.read(key)) is None:
        return
    claim = f"{key}.{hashlib.sha256(found).hexdigest()[:16]}.dead"
    with _mark() as mine:
        if not backend.write_new(claim, mine):
            owner = _parsed(backend.read(claim))
            if break_lock or is_dead(backend, claim, owner):
                _bury(backend, claim, break_lock=break_lock)
            if not backend.write_new(claim, mine):
                raise _Claimed(_busy_text(backend, claim, owner))
        try:
            now = backend.written_at(claim) or 0.0  # without a claim, the current time is unknown
            if backend.read(key) == found and (break_lock or is_dead(backend, key, _parsed(found), now)):
                backend.delete(key)
        finally:
            backend.delete(claim)


def clear_dead(backend: Backend) -> None:
    """Delete the locks and half-written files of dead runs."""
    for key, owner in _owners(backend, backend.names(LOCKS)):
        if is_dead(backend, key, owner):
            with suppress(_Claimed):  # another run is deleting the lock
                _bury(backend, key)
    labels = backend.names(TMP)
    locks = backend.names(LOCKS) if labels else []
    for label in labels:
        if f"{label}.json" not in locks:
            backend.delete_tree(f"{TMP}/{label}")


def refuse_busy(backend: Backend) -> None:
    """Raise StoreBusy if any run of any signal may be writing."""
    clear_dead(backend)
    for key, owner in _owners(backend, backend.names(LOCKS)):
        raise StoreBusy(_busy_text(backend, key, owner))


def live_runs(backend: Backend) -> dict[str, str]:
    """Return the runs that write a store now: process, machine and start, by what they write (signal and shard)."""
    owners = _owners(backend, [file for file in backend.names(LOCKS) if file.endswith(".json")])
    alive = {PurePosixPath(key).stem: _who(owner) for key, owner in owners if not is_dead(backend, key, owner)}
    return {label.removesuffix(".0-of-1"): who for label, who in alive.items()}


def _overlapping(backend: Backend, name: str, shard: Shard) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the locks of shards of a signal that have units in common with a shard."""
    files = []
    for file in backend.names(LOCKS):
        prefix, _, rest = file.removesuffix(".json").rpartition(".")
        i, _, n = rest.partition("-of-")
        is_lock = prefix == name and i.isdigit() and n.isdigit() and int(n) > 0
        if is_lock and (int(i) - shard[0]) % gcd(int(n), shard[1]) == 0:
            files.append(file)
    return _owners(backend, files)


def _owners(backend: Backend, files: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the keys and contents of locks; locks that were released after the listing are left out."""
    keys = [f"{LOCKS}/{file}" for file in files]
    return ((key, _parsed(raw)) for key, raw in zip(keys, backend.read_all(keys), strict=True) if raw is not None)


def _parsed(raw: bytes | None) -> dict[str, Any]:
    try:
        owner = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def is_dead(backend: Backend, key: str, owner: dict[str, Any], now: float | None = None) -> bool:
    """Return whether the owner of a lock is dead, from its process on this machine or from its last renewal."""
    if (runs := _is_running(owner)) is not None:
        return not runs
    renewed_at = backend.written_at(key)
    return renewed_at is not None and (time.time() if now is None else now) - renewed_at >= SILENT_SECONDS


def _is_running(owner: dict[str, Any]) -> bool | None:
    """Return whether the owner of a lock runs; None if this machine cannot see the process."""
    if owner.get("host") != socket.gethostname():
        return None
    if owner.get("boot") != _boot_id():
        return False
    if owner.get("pid_namespace") != _pid_namespace():
        return None  # another container of this machine
    if not isinstance(pid := owner.get("pid"), int):
        return None
    if process_started(pid) != owner.get("process_started"):
        return False
    return pid != os.getpid() or owner.get("mark") in _held


def process_started(pid: int) -> str | None:
    """Return the start time of a process in kernel ticks, or None if there is no such process."""
    stat = Path(f"/proc/{pid}/stat")
    with suppress(OSError, IndexError):
        return stat.read_text().rpartition(")")[2].split()[19]
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


@contextmanager
def _mark() -> Iterator[bytes]:
    """Yield the content of a new lock, which is unique."""
    mark = uuid.uuid4().hex
    _held.add(mark)
    try:
        yield json.dumps({**_me(), "mark": mark}).encode()
    finally:
        _held.discard(mark)


def _who(owner: dict[str, Any]) -> str:
    return f"process {owner.get('pid', '?')} on {owner.get('host', '?')} since {owner.get('since', '?')}"


def _busy_text(backend: Backend, key: str, owner: dict[str, Any]) -> str:
    renewed_at = backend.written_at(key) if _is_running(owner) is None else None
    takeover = ""
    if renewed_at is not None:
        at = datetime.fromtimestamp(renewed_at + SILENT_SECONDS, UTC)
        takeover = f" If that process stays silent, a run that starts after {at:%H:%M} UTC takes over."
    return (
        f"{backend.location} is being written by {_who(owner)} ({key}). Wait until that process ends.{takeover} If you "
        "know that the process is dead, give --break-lock to `grace-store extract`."
    )
