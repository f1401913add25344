"""Random access to what can only be read forwards: a few cursors, each somewhere in the file."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

NUM_CURSORS = 4
"""Readers that may go through one file side by side, each in ascending order, without anybody starting again."""


class Cursor(Protocol):
    """A place in a file from which one can go forward."""

    position: int
    """The first place that can still be read."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Cursor)


class CursorPool(Generic[C]):
    """Gives the cursor nearest before a place, and opens a new one when none is before it."""

    def __init__(self, open_cursor: Callable[[int], C], size: int = NUM_CURSORS) -> None:
        self._open_cursor = open_cursor
        self._size = size
        self._cursors: list[C] = []  # the one used last at the end

    def at(self, position: int, not_before: int = 0) -> C:
        """Return a cursor that can go forward to position; a new one is opened at not_before."""
        if behind := [cursor for cursor in self._cursors if not_before <= cursor.position <= position]:
            cursor = max(behind, key=lambda candidate: candidate.position)
            self._cursors.remove(cursor)
        else:
            if len(self._cursors) == self._size:
                self._cursors.pop(0).close()
            cursor = self._open_cursor(not_before)
        self._cursors.append(cursor)
        return cursor

    def discard(self, cursor: C) -> None:
        """Close a cursor that failed."""
        self._cursors.remove(cursor)
        cursor.close()

    def close(self) -> None:
        while self._cursors:
            self._cursors.pop().close()
