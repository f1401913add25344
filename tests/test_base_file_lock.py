"""A lock file: held by one at a time, and an honest sentence where the disk knows no locks."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from grace_store.base.errors import StorageError
from grace_store.base.files import try_lock


def test_one_holds_it_at_a_time_and_another_after_that(tmp_path: Path) -> None:
    path = tmp_path / "folder" / ".lock"
    with try_lock(path) as first, try_lock(path) as second:
        assert (first, second) == (True, False)
    with try_lock(path) as third:
        assert third


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_not_taken_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    told = rf"cannot be locked: {os.strerror(code)}\..* on another disk"
    with pytest.raises(StorageError, match=told), try_lock(tmp_path / ".lock"):
        pytest.fail("the lock was given")
