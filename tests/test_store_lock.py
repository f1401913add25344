"""Locks: two runs never write the same units, and a dead run never stops a live one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import lcm
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.base.errors import StorageError, StoreBusy
from grace_store.store import lock
from grace_store.store.backend import LOCKS, TMP, Backend, LocalBackend, open_backend
from grace_store.store.lock import clear_dead, hold, refuse_busy
from tests.s3_server import environment, new_bucket, s3_server

MINE = f"{LOCKS}/base.0-of-1.json"
ELSEWHERE = {"host": "another-machine", "pid": 7, "since": "yesterday"}
RENEWING = ELSEWHERE | {"mark": "theirs"}


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    return LocalBackend(tmp_path)


def dead_owner() -> dict[str, Any]:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    return lock._me() | {"pid": process.pid}


def live_owner() -> dict[str, Any]:
    """A process that outlives the test: the one that started it."""
    return lock._me() | {"pid": os.getppid(), "process_started": lock.process_started(os.getppid())}


def put(backend: Backend, owner: Any, key: str = MINE) -> None:
    backend.write(key, json.dumps(owner).encode())


def test_a_lock_is_there_while_held_and_gone_after(backend: LocalBackend) -> None:
    with hold(backend, "base"):
        owner = json.loads(backend.read(MINE) or b"")
        assert owner["host"] == socket.gethostname()
        backend.write("something", b"")
    assert list(backend.walk()) == ["something"]


def test_a_lock_is_given_back_after_a_failure(backend: LocalBackend) -> None:
    with pytest.raises(RuntimeError, match="model exploded"), hold(backend, "base"):
        raise RuntimeError("model exploded")
    with hold(backend, "base"):
        pass


def test_a_live_lock_is_refused_with_a_sentence(backend: LocalBackend) -> None:
    text = r"is being written by process \d+ on .* since .*base.0-of-1.json.*Wait until that process ends.*--break-lock"
    with hold(backend, "base"):
        with pytest.raises(StoreBusy, match=text), hold(LocalBackend(backend.root), "base"):
            pass
        assert backend.read(MINE) is not None


def test_waiting_ends_when_the_other_does(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    put(backend, live_owner())
    monkeypatch.setattr(lock.time, "sleep", lambda _: backend.delete(MINE))
    with hold(backend, "base", wait_seconds=60):
        pass


def test_other_names_do_not_conflict(backend: LocalBackend) -> None:
    with hold(backend, "base"), hold(backend, "base.0"), hold(backend, "warm"), hold(backend, "create-base"):
        pass


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_shards_conflict_exactly_when_they_have_a_unit_in_common(n: int, m: int, data: st.DataObject) -> None:
    i, j = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, m - 1))
    common = any(unit % n == i and unit % m == j for unit in range(lcm(n, m)))

    class OneLock:
        def names(self, _: str) -> list[str]:
            return [f"base.{i}-of-{n}.json"]

        def read_all(self, keys: list[str]) -> list[bytes]:
            return [b"{}" for _ in keys]

    assert bool(list(lock._overlapping(OneLock(), "base", (j, m)))) == common  # type: ignore[arg-type]


def test_shards_without_a_unit_in_common_run_side_by_side(backend: LocalBackend) -> None:
    with hold(backend, "base", (0, 4)), hold(LocalBackend(backend.root), "base", (1, 2)):
        with pytest.raises(StoreBusy, match="0-of-4"), hold(backend, "base", (2, 4)), hold(backend, "base", (0, 2)):
            pass
        with pytest.raises(StoreBusy, match="being written"), hold(backend, "base"):
            pass


def test_a_dead_process_is_taken_over(backend: LocalBackend) -> None:
    put(backend, dead_owner())
    with hold(backend, "base"):
        assert json.loads(backend.read(MINE) or b"")["pid"] == lock._me()["pid"]
    assert list(backend.walk()) == []


def test_a_reused_process_number_is_not_the_dead_one(backend: LocalBackend) -> None:
    put(backend, lock._me() | {"process_started": "1"})
    with hold(backend, "base"):
        pass


def test_what_ran_before_a_reboot_is_dead(backend: LocalBackend) -> None:
    put(backend, lock._me() | {"boot": "before"})
    with hold(backend, "base"):
        pass


@pytest.mark.parametrize("owner", [ELSEWHERE, {}, [], None, {"host": socket.gethostname(), "pid": "x"} | {"boot": 0}])
def test_only_the_owners_machine_knows_that_it_is_dead(backend: LocalBackend, owner: Any) -> None:
    if isinstance(owner, dict) and "boot" in owner:
        owner["boot"] = lock._boot_id()
    put(backend, owner)
    with (
        pytest.raises(StoreBusy, match="If you know that the process is dead, give --break-lock"),
        hold(backend, "base"),
    ):
        pass
    with hold(backend, "base", break_lock=True):
        pass
    assert list(backend.walk()) == []


def test_another_container_of_the_machine_is_not_known_to_be_dead(backend: LocalBackend) -> None:
    owner = lock._me() | {"pid": 4_000_000, "pid_namespace": "pid:[1]"}
    assert not lock.is_dead(backend, MINE, owner)
    assert lock.is_dead(backend, MINE, lock._me() | {"pid": 4_000_000})


def test_a_lock_that_is_no_json_is_nobodys_to_take(backend: LocalBackend) -> None:
    backend.write(MINE, b"\xff{")
    with pytest.raises(StoreBusy, match=r"process \? on \?"), hold(backend, "base"):
        pass


def test_a_file_that_is_no_lock_does_not_matter(backend: LocalBackend) -> None:
    for name in ("base.json", "base.0-of-0.json", "base.x-of-1.json", "notes.txt"):
        put(backend, ELSEWHERE, f"{LOCKS}/{name}")
    with hold(backend, "base"):
        pass


def test_who_sees_the_other_steps_back_when_both_locked_at_once(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Different shards, so different files: both can be created, and only then is the overlap seen."""
    monkeypatch.setattr(lock, "_clear_stale", lambda *_, **__: put(backend, live_owner(), f"{LOCKS}/base.0-of-2.json"))
    with pytest.raises(StoreBusy, match=r"base.0-of-2.json"), hold(backend, "base", (0, 1)):
        pass
    assert backend.names(LOCKS) == ["base.0-of-2.json"]


def test_a_slow_finder_of_a_dead_lock_does_not_delete_the_quick_ones(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both see the dead lock; the quick one takes it over before the slow one gets to delete it."""
    put(backend, dead_owner())
    quick: list[Iterator[None]] = []
    judge = lock.is_dead

    def judge_slowly(*what: Any) -> bool:
        verdict = judge(*what)
        if not quick:
            taken = hold(LocalBackend(backend.root), "base")
            quick.append(taken)  # type: ignore[arg-type]
            taken.__enter__()
        return verdict

    monkeypatch.setattr(lock, "is_dead", judge_slowly)
    with pytest.raises(StoreBusy, match="is being written by process"), hold(backend, "base"):
        pass
    assert backend.read(MINE) is not None
    quick[0].__exit__(None, None, None)  # type: ignore[attr-defined]
    assert list(backend.walk()) == []


def claim_of(raw: bytes) -> str:
    return f"{MINE}.{lock.hashlib.sha256(raw).hexdigest()[:16]}.dead"


def test_a_claim_of_a_live_run_is_respected_and_of_a_dead_one_not(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "CLAIM_SECONDS", 0.0)
    for claimant, is_respected in ((live_owner(), True), (dead_owner(), False)):
        dead = json.dumps(dead_owner()).encode()
        backend.write(MINE, dead)
        put(backend, claimant, claim_of(dead))
        if is_respected:
            with pytest.raises(StoreBusy, match=r"\.dead"), hold(backend, "base"):
                pass
            clear_dead(backend)
            assert backend.read(MINE) == dead
            with hold(backend, "base", break_lock=True):
                pass
        else:
            with hold(backend, "base"):
                pass
        assert list(backend.walk()) == []


def test_a_run_that_just_deletes_a_dead_lock_is_waited_for(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run that starts clears the locks of all dead ones; the runs that were to take their place do not fail."""
    dead = json.dumps(dead_owner()).encode()
    backend.write(MINE, dead)
    put(backend, live_owner(), claim_of(dead))
    monkeypatch.setattr(lock.time, "sleep", lambda _: backend.delete(MINE, claim_of(dead)))
    with hold(backend, "base"):
        pass
    assert list(backend.walk()) == []


def test_of_two_that_find_a_dead_lock_and_a_dead_claim_one_gets_it(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second judges the claim while it is still the dead run's, and goes on when the first is about to delete."""
    monkeypatch.setattr(lock, "CLAIM_SECONDS", 0.0)
    dead = json.dumps(dead_owner()).encode()
    backend.write(MINE, dead)
    put(backend, dead_owner(), claim_of(dead))
    judged, about_to_delete, second_done = (threading.Event() for _ in range(3))
    both_tried = threading.Barrier(2)
    judge = lock.is_dead

    def judge_in_turn(where: Backend, key: str, owner: Any, now: float | None = None) -> bool:
        verdict = judge(where, key, owner, now)
        if threading.current_thread().name == "second" and key == claim_of(dead) and not judged.is_set():
            judged.set()
            assert about_to_delete.wait(60)
        if threading.current_thread().name == "first" and key == MINE and now is not None:
            about_to_delete.set()
            assert second_done.wait(60)
        return verdict

    def take(name: str) -> bool:
        threading.current_thread().name = name
        if name == "first":
            assert judged.wait(60)
        try:
            with hold(LocalBackend(backend.root), "base"):
                second_done.set()
                both_tried.wait(60)
                return True
        except StoreBusy:
            second_done.set()
            both_tried.wait(60)
            return False

    monkeypatch.setattr(lock, "is_dead", judge_in_turn)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(take, ("first", "second"))) == [True, False]
    assert list(backend.walk()) == []


def test_a_lock_that_was_given_back_since_it_was_listed_is_nobodys(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = backend.names
    monkeypatch.setattr(backend, "names", lambda prefix: [*listed(prefix), "base.0-of-2.json"])
    with hold(backend, "base"):
        pass


def test_a_broken_lock_that_was_alive_after_all_does_not_take_the_new_one_along(backend: LocalBackend) -> None:
    first, second = LocalBackend(backend.root), LocalBackend(backend.root)
    holding = hold(first, "base")
    holding.__enter__()
    put(backend, live_owner() | {"since": "earlier"})  # the same process cannot hold two; make them differ
    with hold(second, "base", break_lock=True):
        put(backend, live_owner() | {"since": "now"})
        backend.write(f"{TMP}/base.0-of-1/half", b"")
        holding.__exit__(None, None, None)
        assert backend.read(MINE) is not None
        assert backend.read(f"{TMP}/base.0-of-1/half") is not None


def test_half_written_files_of_dead_runs_go_and_of_live_ones_stay(backend: LocalBackend) -> None:
    put(backend, dead_owner(), f"{LOCKS}/killed.0-of-1.json")
    put(backend, ELSEWHERE, f"{LOCKS}/far.0-of-2.json")
    for label in ("killed.0-of-1", "far.0-of-2", "forgotten.0-of-1"):
        backend.write(f"{TMP}/{label}/half", b"...")
    with hold(LocalBackend(backend.root), "base"):
        assert list(backend.walk(TMP)) == [f"{TMP}/far.0-of-2/half"]
        assert backend.names(LOCKS) == ["base.0-of-1.json", "far.0-of-2.json"]


def test_clearing_removes_locks_and_claims_of_the_dead(backend: LocalBackend) -> None:
    put(backend, dead_owner())
    put(backend, dead_owner(), f"{LOCKS}/base.0-of-1.json.abc.dead")
    clear_dead(backend)
    assert list(backend.walk()) == []


def test_a_lock_that_this_process_could_not_give_back_does_not_stop_it(backend: LocalBackend) -> None:
    put(backend, lock._me() | {"mark": "of a run that ended when the storage was gone"})
    with hold(backend, "base"):
        pass


# ---------------------------------------------------------------- runs that cannot be seen from here


def silence(backend: LocalBackend, seconds: float, key: str = MINE) -> None:
    """Let a lock have been written so long ago."""
    at = time.time() - seconds
    os.utime(backend.root / key, (at, at))


def test_a_lock_that_is_renewed_is_respected_and_says_when_it_would_not_be(backend: LocalBackend) -> None:
    put(backend, RENEWING)
    silence(backend, lock.SILENT_SECONDS - 60)
    at = time.strftime("%H:%M", time.gmtime((backend.written_at(MINE) or 0) + lock.SILENT_SECONDS))
    text = rf"process 7 on another-machine .*If that process stays silent, a run that starts after {at} UTC takes over"
    with pytest.raises(StoreBusy, match=text), hold(backend, "base"):
        pass
    with pytest.raises(StoreBusy, match=text):
        refuse_busy(backend)
    assert json.loads(backend.read(MINE) or b"") == RENEWING


@pytest.mark.parametrize("where", [{}, {"host": socket.gethostname(), "pid_namespace": "pid:[1]"}])
def test_a_silent_lock_is_taken_over(backend: LocalBackend, where: dict[str, str]) -> None:
    put(backend, RENEWING | {"boot": lock._boot_id()} | where)
    silence(backend, lock.SILENT_SECONDS + 1)  # the clock of files is some milliseconds behind
    with hold(backend, "base"):
        assert json.loads(backend.read(MINE) or b"")["pid"] == os.getpid()
    assert list(backend.walk()) == []


def test_silence_of_a_process_that_is_seen_to_run_says_nothing(backend: LocalBackend) -> None:
    with hold(backend, "base"):
        silence(backend, 1000 * lock.SILENT_SECONDS)
        with pytest.raises(StoreBusy, match="is being written"), hold(LocalBackend(backend.root), "base"):
            pass


@pytest.mark.parametrize("hours", [-24, 24])
def test_a_clock_that_is_wrong_makes_no_live_run_dead(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """The storage's clock decides: both the lock and the claim before a takeover have its time."""
    put(backend, RENEWING)
    now = time.time()
    monkeypatch.setattr(lock.time, "time", lambda: now + 3600 * hours)
    with pytest.raises(StoreBusy, match="another-machine"), hold(backend, "base"):
        pass
    assert json.loads(backend.read(MINE) or b"") == RENEWING
    assert backend.names(LOCKS) == ["base.0-of-1.json"]


class Watched(LocalBackend):
    """Says when a lock was renewed, or could not be."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers: list[bool | type[Exception]] = []
        self.failures: list[Exception] = []
        self.asked = threading.Semaphore(0)

    def renew(self, key: str, value: bytes) -> bool:
        try:
            if self.failures:
                raise self.failures.pop()
            answer = super().renew(key, value)
            self.answers.append(answer)
            return answer
        finally:
            self.asked.release()

    def wait(self, times: int) -> None:
        for _ in range(times):
            assert self.asked.acquire(timeout=60)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.01)
    return Watched(tmp_path)


def test_a_lock_is_renewed_while_it_is_held_whatever_the_storage_does_for_a_while(watched: Watched) -> None:
    watched.failures = [StorageError("gone"), OSError(5, "Input/output error")]
    with hold(watched, "base") as lease:
        silence(watched, 3600)
        watched.wait(4)
        assert time.time() - (watched.written_at(MINE) or 0) < 3600
        lease.confirm()
    assert set(watched.answers) == {True}


@pytest.mark.parametrize("successor", [None, RENEWING])
def test_a_lock_that_was_taken_over_is_let_go_and_not_put_back(watched: Watched, successor: Any) -> None:
    with hold(watched, "base") as lease:
        watched.delete(MINE)
        if successor:
            put(watched, successor)
        while False not in watched.answers:
            watched.wait(1)
        said = r"was silent for too long, and its lock .* was taken over" if successor else r"the lock of .* is gone"
        with pytest.raises(StoreBusy, match=said):
            lease.confirm()
    assert json.loads(watched.read(MINE) or b"null") == successor
    assert watched.answers[-1] is False


# ---------------------------------------------------------------- in a bucket


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def reopen(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Backend]:
    """Opens the same bucket as another process would."""
    for name, value in environment(s3_port).items():
        monkeypatch.setenv(name, value)
    url = f"s3://{new_bucket(s3_port)}/store"
    return lambda: open_backend(url)


def test_in_a_bucket_locks_do_what_they_do_in_a_folder(reopen: Callable[[], Backend]) -> None:
    bucket = reopen()
    with hold(bucket, "base", (0, 2)) as lease, hold(reopen(), "base", (1, 2)):
        with pytest.raises(StoreBusy, match="0-of-2"), hold(reopen(), "base"):
            pass
        assert bucket.renew(lease.key, lease.content)
        lease.confirm()
    put(bucket, dead_owner())
    with hold(reopen(), "base"):
        pass
    assert list(bucket.walk()) == []


def test_in_a_bucket_a_silent_lock_is_taken_over(
    reopen: Callable[[], Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = reopen()
    put(bucket, RENEWING)
    with pytest.raises(StoreBusy, match="UTC takes over"), hold(reopen(), "base"):
        pass
    monkeypatch.setattr(lock, "SILENT_SECONDS", 0.0)
    with hold(reopen(), "base"):
        assert json.loads(bucket.read(MINE) or b"")["pid"] == os.getpid()
    assert list(bucket.walk()) == []


def test_in_a_bucket_of_many_that_find_a_dead_lock_at_once_one_gets_it(reopen: Callable[[], Backend]) -> None:
    bucket = reopen()
    put(bucket, dead_owner())
    all_tried = threading.Barrier(4)

    def take(_: int) -> bool:
        try:
            with hold(reopen(), "base"):
                all_tried.wait(60)
                return True
        except StoreBusy:
            all_tried.wait(60)
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(take, range(4))) == 1
    assert not bucket.names(LOCKS)


def test_without_proc_a_process_is_asked_by_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    me = lock._me()["pid"]
    gone = dead_owner()["pid"]
    assert lock.process_started(gone) is None

    class NoProc(type(Path())):  # type: ignore[misc]
        def read_text(self, *_: Any, **__: Any) -> str:
            raise FileNotFoundError

        def is_dir(self, **_: Any) -> bool:
            return False

    monkeypatch.setattr(lock, "Path", NoProc)
    assert lock.process_started(me) == "unknown"
    assert lock.process_started(gone) is None
    assert lock._boot_id() == "unknown"


# ---------------------------------------------------------------- what is no lock


@pytest.mark.parametrize("garbage", [b"", b"not json", b"[1, 2]", b'{"mark": 3}', b"\xff\xfe"])
def test_what_is_no_lock_holds_for_a_while_and_no_longer(backend: LocalBackend, garbage: bytes) -> None:
    backend.write(MINE, garbage)
    with pytest.raises(StoreBusy, match="takes over"), hold(backend, "base"):
        pass
    old = time.time() - lock.SILENT_SECONDS - 60
    os.utime(backend.root / MINE, (old, old))
    with hold(backend, "base") as lease:
        lease.confirm()
    assert backend.names(LOCKS) == []


def test_a_folder_in_place_of_a_lock_is_named(backend: LocalBackend) -> None:
    (backend.root / MINE).mkdir(parents=True)
    with (
        pytest.raises(StoreBusy, match=f"{MINE} is a folder, but a lock must be a file. Delete this folder"),
        hold(backend, "base"),
    ):
        pass
