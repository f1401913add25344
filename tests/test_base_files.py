"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from grace_store.base.errors import SettingError
from grace_store.base.files import whole_file, whole_folder, write_lines, write_text


def test_a_file_that_fails_half_way_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")

    def lines():
        yield b"after"
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_lines(path, lines())
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "before"
    with pytest.raises(SettingError, match="is a folder"), whole_file(tmp_path):
        pass


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_must_be_new_never_replaces_one_that_came_first(tmp_path, monkeypatch, has_links):
    def no_links(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "a.txt"
    write_text(path, "first", only_new=True)
    with pytest.raises(FileExistsError, match=r"a\.txt"):
        write_text(path, "second", only_new=True)
    assert path.read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    "write", [lambda path: write_lines(path, [b"after"]), lambda path: write_text(path, "after\n")]
)
def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch, write):
    path, synced = tmp_path / "a.txt", []

    def fsync(descriptor):
        synced.append(os.pread(descriptor, 100, 0))
        assert not path.exists()

    monkeypatch.setattr(os, "fsync", fsync)
    write(path)
    assert synced == [b"after\n"]
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "a.txt"
    with whole_file(path) as one, whole_file(path) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def fill(path, text):
    with whole_folder(path, lambda old: (old / "ours").exists()) as folder:
        (folder / "ours").touch()
        (folder / "text").write_text(text)


@pytest.mark.parametrize("fails_at", range(2))
def test_a_folder_is_there_old_or_new_wherever_renaming_fails(tmp_path, monkeypatch, fails_at):
    fill(tmp_path / "a", "old")
    rename, calls = Path.rename, []

    def failing(self, target):
        calls.append(target)
        if len(calls) == fails_at + 1:
            raise OSError("no more")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises(OSError, match="no more"):
            fill(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a/text").read_text() == "old"
    fill(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a/text").read_text() == "new"


def test_the_old_folder_is_deleted_only_when_the_new_one_is_there(tmp_path, monkeypatch):
    fill(tmp_path / "a", "old")
    deleted = []

    def rmtree(path, **_):
        if path.exists():
            deleted.append(((path / "text").read_text(), (tmp_path / "a/text").read_text()))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        fill(tmp_path / "a", "new")
    assert deleted == [("old", "new")]


def test_a_folder_behind_a_link_is_filled_where_it_is(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "disk")
    for text in ("old", "new"):
        fill(tmp_path / "a", text)
        assert (tmp_path / "disk/text").read_text() == text
    assert (tmp_path / "a").is_symlink()
