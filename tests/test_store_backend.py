"""Bytes on a disk: whole or not at all, and nothing left lying about."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from grace_store.errors import SettingError
from grace_store.store import LocalBackend, open_backend, run_log_path
from grace_store.store.layout import RUNS, TMP


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    return LocalBackend(tmp_path / "store")


def temporary_files(backend: LocalBackend) -> list[str]:
    return list(backend.walk(TMP))


def test_what_is_written_is_read(backend: LocalBackend) -> None:
    backend.write("a/b/c", b"one")
    backend.write("a/b/c", b"three")
    assert backend.read("a/b/c") == b"three"
    assert backend.size("a/b/c") == 5
    assert backend.names("a") == ["b"]
    assert list(backend.walk("a")) == ["a/b/c"]
    assert temporary_files(backend) == []


def test_what_is_not_there_is_none_or_empty(backend: LocalBackend) -> None:
    backend.write("file", b"")
    for key in ("nothing", "no/thing", "file/below"):
        assert backend.read(key) is None
        assert backend.size(key) is None
        assert backend.names(key) == []
    assert backend.read("") is None  # a folder
    backend.delete("nothing")
    backend.delete_tree("nothing")


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt("Ctrl-C")])
def test_a_failing_write_leaves_the_old_value_and_no_file(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, function: str, error: BaseException
) -> None:
    backend.write("key", b"old")

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(type(error), match=r"No space left|Ctrl-C"):
            backend.write("key", b"new")
        with pytest.raises(type(error), match=r"No space left|Ctrl-C"):
            backend.write("fresh", b"new")
    assert backend.read("key") == b"old"
    assert backend.read("fresh") is None
    if isinstance(error, OSError) or function == "replace":
        assert temporary_files(backend) == []


def test_a_value_is_synced_before_it_gets_its_name(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("sync"), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("rename"), replace(a, b))[1])
    backend.write("a/key", b"value")
    assert order == ["sync", "rename"]


def test_flush_syncs_every_new_folder_once(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.write("a/b/one", b"1")
    backend.write("a/b/two", b"2")
    backend.write("gone/x", b"3")
    backend.delete_tree("gone")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    backend.flush()
    root = str(backend.root.resolve())
    # Also the folder that the store lies in: the store's own name must survive.
    above = str(backend.root.resolve().parent)
    assert sorted(synced) == [above, root, f"{root}/a", f"{root}/a/b"]
    backend.flush()
    assert len(synced) == 4


def test_folders_that_a_killed_run_made_are_synced_by_the_next(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    (backend.root / "a/b").mkdir(parents=True)
    backend.write("a/b/one", b"1")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    backend.flush()
    assert sorted(synced) == sorted(["a", "b", backend.root.name, backend.root.parent.name])


def test_a_folder_whose_sync_failed_is_synced_again(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.write("a/one", b"1")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            backend.flush()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    backend.flush()
    assert len(synced) == 3


def test_where_folders_cannot_be_synced_or_listed_the_store_is_written_all_the_same(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.write("a/one", b"1")

    def fail(fd: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fail)
    backend.flush()
    real_open = os.open

    def refuse(path: Path, *words: Any) -> int:
        if path == forbidden:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_open(path, *words)

    monkeypatch.setattr(os, "open", refuse)
    forbidden = backend.root.parent
    backend.delete_tree("")
    backend.flush()
    forbidden = backend.root / "a"
    backend.delete("a/one")
    with pytest.raises(PermissionError, match="Permission denied"):
        backend.flush()


def test_write_new_is_exclusive(backend: LocalBackend) -> None:
    assert backend.write_new("lock", b"mine")
    assert not backend.write_new("lock", b"yours")
    assert backend.read("lock") == b"mine"
    assert temporary_files(backend) == []
    backend.delete("lock")
    assert backend.write_new("lock", b"yours")


@pytest.mark.parametrize("times", [1, 3])
def test_a_temporary_file_swept_away_by_a_starting_run_is_written_again(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A run cleans up after runs without a lock, and this one is just about to take its own."""
    left = [times]
    link = Path.hardlink_to

    def sweep_first(path: Path, target: Path) -> None:
        if left[0]:
            left[0] -= 1
            backend.delete_tree(TMP)
        link(path, target)

    monkeypatch.setattr(Path, "hardlink_to", sweep_first)
    assert backend.write_new("lock", b"mine")
    assert backend.read("lock") == b"mine"


def test_swept_away_for_ever_is_an_error_in_the_end(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(*_: Any) -> None:
        raise FileNotFoundError("swept")

    monkeypatch.setattr(Path, "hardlink_to", sweep)
    with pytest.raises(FileNotFoundError, match="swept"):
        backend.write_new("lock", b"mine")
    assert temporary_files(backend) == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_without_hard_links_a_lock_is_still_exclusive(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert backend.write_new("locks/lock", b"mine")
    assert not backend.write_new("locks/lock", b"yours")
    assert backend.read("locks/lock") == b"mine"
    assert temporary_files(backend) == []

    def no_room(fd: int) -> None:
        if not Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(backend.root / TMP):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space left"):
        backend.write_new("locks/other", b"mine")
    assert backend.names("locks") == ["lock"]


def test_walking_is_in_order_and_relative(backend: LocalBackend) -> None:
    for key in ("b/2", "b/10", "a", "c/d/e"):
        backend.write(key, b"")
    assert [key for key in backend.walk() if not key.startswith("ledger")] == ["a", "b/10", "b/2", "c/d/e"]


def test_zarr_gets_a_view_it_cannot_write_to(backend: LocalBackend) -> None:
    assert backend.zarr_store().read_only


def test_urls_are_refused_with_a_sentence() -> None:
    with pytest.raises(SettingError, match="s3://bucket/store: object-store URLs cannot be opened yet"):
        open_backend("s3://bucket/store")


def test_a_local_location_is_absolute_and_knows_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = open_backend("store")
    assert backend.location == str(tmp_path / "store")
    assert run_log_path(backend, "x.jsonl") == tmp_path / "store" / RUNS / "x.jsonl"
    assert run_log_path(object(), "x.jsonl") is None  # type: ignore[arg-type]
