"""Bytes on a disk or in a bucket: whole or not at all, and nothing left lying about."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from zarr.buffer import default_buffer_prototype

from grace_store.base.errors import Corrupt, SettingError
from grace_store.store.array_group import ZarrView
from grace_store.store.backend import RUNS, TMP, Backend, LocalBackend, open_backend, open_run_log, run_logs
from tests.s3_server import environment, new_bucket, s3_server


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    return LocalBackend(tmp_path / "store")


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A backend of each kind, with nothing in it."""
    if request.param == "folder":
        return LocalBackend(tmp_path / "store")
    port = request.getfixturevalue("s3_port")
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)
    return open_backend(f"s3://{new_bucket(port)}/a/store")


def temporary_files(backend: Backend) -> list[str]:
    return list(backend.walk(TMP))


# ---------------------------------------------------------------- what every backend does


def test_what_is_written_is_read(place: Backend) -> None:
    place.write("a/b/c", b"one")
    place.write("a/b/c", b"three")
    assert place.read("a/b/c") == b"three"
    assert place.size("a/b/c") == 5
    assert place.names("a") == ["b"]
    assert place.names("a/b") == ["c"]
    assert list(place.walk("a")) == ["a/b/c"]
    assert list(place.sizes("a")) == [("a/b/c", 5)]
    assert temporary_files(place) == []
    place.flush()


def test_what_is_not_there_is_none_or_empty(place: Backend) -> None:
    place.write("file", b"")
    for key in ("nothing", "no/thing", "file/below"):
        assert place.read(key) is None
        assert place.read_slice(key, slice(0, 2)) is None
        assert place.size(key) is None
        assert place.written_at(key) is None
        assert place.names(key) == []
        assert list(place.sizes(key)) == []
    assert place.read("") is None  # a folder
    assert list(place.read_all(["nothing", "file", "no/thing"])) == [None, b"", None]
    place.delete("nothing")
    place.delete("nothing", "nor/this")
    place.delete()
    place.delete_tree("nothing")
    assert place.read("file") == b""


@pytest.mark.parametrize("part", [slice(0, 3), slice(2, 5), slice(4, None), slice(-3, None), slice(0, 99)])
def test_a_slice_is_that_of_the_value(place: Backend, part: slice) -> None:
    place.write("key", b"0123456789")
    assert place.read_slice("key", part) == b"0123456789"[part]


def test_a_slice_beyond_the_end_of_a_value_that_was_cut_short_is_empty(place: Backend) -> None:
    place.write("key", b"0123")
    assert place.read_slice("key", slice(7, 9)) == b""
    assert place.read_slice("key", slice(-9, None)) == b"0123"


def test_many_values_are_written_in_any_order_and_read_in_that_of_their_keys(place: Backend) -> None:
    values = {f"many/{number}": bytes([number]) * number for number in range(20)}
    place.write_all(values)
    keys = [*reversed(values), "many/none", "many/7"]
    assert list(place.read_all(keys)) == [values.get(key) for key in keys]
    assert dict(place.sizes("many")) == {key: len(value) for key, value in values.items()}
    assert place.names("many") == sorted(key.removeprefix("many/") for key in values)


def test_who_stops_reading_early_gets_no_more(place: Backend) -> None:
    place.write_all({f"many/{number}": b"x" for number in range(3)})
    values = iter(place.read_all(f"many/{number % 3}" for number in range(20)))
    assert next(values) == b"x"
    del values


def test_write_new_is_exclusive(place: Backend) -> None:
    assert place.write_new("lock", b"mine")
    assert not place.write_new("lock", b"yours")
    assert place.read("lock") == b"mine"
    assert temporary_files(place) == []
    place.delete("lock")
    assert place.write_new("lock", b"yours")


def test_of_many_that_write_a_new_value_at_once_one_succeeds(place: Backend) -> None:
    for key in ("locks/one", "locks/two"):
        with ThreadPoolExecutor(12) as pool:
            won = list(pool.map(lambda number, key=key: place.write_new(key, b"%d" % number), range(12)))
        assert won.count(True) == 1
        assert place.read(key) == b"%d" % won.index(True)


def test_only_the_value_that_is_there_is_renewed(place: Backend) -> None:
    place.write("lock", b"mine")
    before = place.written_at("lock")
    assert before is not None
    assert place.renew("lock", b"mine")
    assert (place.written_at("lock") or 0) >= before
    assert not place.renew("lock", b"yours")
    assert place.read("lock") == b"mine"
    place.delete("lock")
    assert not place.renew("lock", b"mine")
    assert place.read("lock") is None


def test_deleting_takes_what_was_named_and_nothing_beside_it(place: Backend) -> None:
    keys = ["a/b/1", "a/b/2", "a/b/c/3", "a/bc", "a/b.json", "d"]
    place.write_all(dict.fromkeys(keys, b"x"))
    place.delete_tree("a/b")
    assert sorted(place.walk()) == ["a/b.json", "a/bc", "d"]
    place.delete("a/bc", "nothing", "d")
    assert list(place.walk()) == ["a/b.json"]
    place.prune()
    assert list(place.walk()) == ["a/b.json"]


def test_names_that_need_quoting_are_names(place: Backend) -> None:
    keys = ["signals/warm=1+2/x", "signals/é ü/x", "signals/50%/x"]
    place.write_all(dict.fromkeys(keys, b"x"))
    assert sorted(place.walk("signals")) == sorted(keys)
    assert place.names("signals") == sorted(["warm=1+2", "é ü", "50%"])
    assert list(place.read_all(keys)) == [b"x"] * 3


def test_zarr_gets_a_view_it_cannot_write_to_and_no_fill_values_for_missing_chunks(place: Backend) -> None:
    view = ZarrView(place)
    assert view.read_only
    place.write_all({"g/array/zarr.json": b"{}", "g/array/c/0": b"0123"})

    async def look() -> None:
        prototype = default_buffer_prototype()
        assert await view.get("g/none/zarr.json", prototype) is None
        assert [name async for name in view.list_dir("g/array/")] == ["c", "zarr.json"]
        assert sorted([key async for key in view.list_prefix("g/")]) == ["g/array/c/0", "g/array/zarr.json"]
        assert await view.exists("g/array/c/0")
        with pytest.raises(Corrupt, match=r"g/array/c/1 is missing. Run `grace-store verify --repair`"):
            await view.get("g/array/c/1", prototype)

    asyncio.run(look())


def test_the_log_of_a_run_is_kept_also_when_it_fails(place: Backend) -> None:
    with open_run_log(place, "1.jsonl") as log:
        log.write("one\n")

    def fail() -> None:
        with open_run_log(place, "2.jsonl") as log:
            log.write("two\n")
            raise RuntimeError("exploded")

    with pytest.raises(RuntimeError, match="exploded"):
        fail()
    assert list(run_logs(place)) == ["one\n", "two\n"]
    assert place.names(RUNS) == ["1.jsonl", "2.jsonl"]


# ---------------------------------------------------------------- a folder


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


def test_a_local_location_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_backend("store").location == str(tmp_path / "store")


def test_a_log_in_a_folder_grows_line_by_line(backend: LocalBackend) -> None:
    with open_run_log(backend, "x.jsonl") as log:
        log.write("one\n")
        log.flush()
        assert list(run_logs(backend)) == ["one\n"]


def test_a_url_that_was_made_a_path_is_not_taken_for_one() -> None:
    with pytest.raises(SettingError, match=r"s3:/bucket/store is neither a path nor a URL. Give s3://bucket/store"):
        open_backend(Path("s3://bucket/store"))


def test_links_are_followed_to_groups_and_not_in_circles(backend: LocalBackend, tmp_path: Path) -> None:
    backend.write("zarr.json", b"")
    backend.write("signals/zarr.json", b"")
    backend.write("signals/base/c/0", b"")
    (backend.root / "signals" / "back").symlink_to(backend.root)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").touch()
    (backend.root / "signals" / "stranger").symlink_to(outside)
    assert list(backend.walk()) == ["zarr.json", "signals/zarr.json", "signals/base/c/0"]
