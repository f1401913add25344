"""A disk that ends the process, or what stands for it, at any operation."""

from __future__ import annotations

from pathlib import Path

from grace_store.store import backend


class Crash(BaseException):
    """Stands for SIGKILL: nothing may catch it and go on writing."""


class MortalBackend(backend.LocalBackend):
    """Dies at the n-th thing it does to the disk, half-way through if asked, and does nothing after that."""

    crash_at = -1
    num_operations = 0
    dead = False

    @classmethod
    def revive(cls, crash_at: int = -1) -> None:
        cls.crash_at, cls.num_operations, cls.dead = crash_at, 0, False

    @classmethod
    def step(cls) -> None:
        if cls.dead:
            raise Crash
        cls.num_operations += 1
        if cls.num_operations == cls.crash_at:
            cls.dead = True
            raise Crash

    def _write_tmp(self, value: bytes) -> Path:
        try:
            self.step()
        except Crash:
            if MortalBackend.num_operations == MortalBackend.crash_at:
                super()._write_tmp(value[: len(value) // 2])
            raise
        tmp = super()._write_tmp(value)
        self.step()
        return tmp

    def write(self, key: str, value: bytes) -> None:
        super().write(key, value)
        self.step()

    def delete(self, *keys: str) -> None:
        self.step()
        super().delete(*keys)

    def delete_tree(self, prefix: str) -> None:
        self.step()
        super().delete_tree(prefix)
