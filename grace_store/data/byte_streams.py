"""Files as streams of blocks: digested while they are read, decompressed in bounded memory, read again by cursors.

Knows no records.
"""

import hashlib
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import zstandard

from grace_store.base.errors import DataError

Compression = Literal["", "gz", "zst"]

READ_BYTES = 2**18
_ZSTD_INPUT_BYTES = 2**10  # zstandard gives no bound on its output; a kilobyte of it makes at most about 32 MB


class RawBlocks:
    """A file's bytes as they lie on disk, block by block, with their digest and number so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hash = hashlib.sha256()
        self.num_bytes = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def __iter__(self) -> Generator[bytes, None, None]:
        try:
            with open(self._path, "rb") as stream:
                while block := stream.read(READ_BYTES):
                    self._hash.update(block)
                    self.num_bytes += len(block)
                    yield block
        except OSError as error:
            raise DataError(f"{self._path}: cannot be read: {error.strerror}") from error


def text_blocks(raw: Iterable[bytes], compression: Compression, name: str) -> Iterator[bytes]:
    """Yield the decompressed text of a file; DataError naming it when it is damaged or cut short."""
    if compression == "":
        return iter(raw)
    return _gunzip(raw, name) if compression == "gz" else _unzstd(raw, name)


def damaged(name: str, kind: str, error: Exception) -> DataError:
    """Return the error for compressed data that cannot be decompressed."""
    if "too much memory" in str(error):
        return DataError(
            f"{name}: compressed with a window of more than 128 MB (zstd --long), which reading would take as much "
            "memory as. Compress it again without --long."
        )
    return DataError(f"{name}: damaged {kind} data ({error}). Copy or compress the file again.")


def drop_bytes(blocks: Iterable[bytes], count: int) -> Iterator[bytes]:
    """Yield the blocks without the first count bytes."""
    for block in blocks:
        if count:
            dropped = min(count, len(block))
            block, count = block[dropped:], count - dropped
        if block:
            yield block


def _gunzip(raw: Iterable[bytes], name: str) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=31)
    try:
        for block in raw:
            while block:
                if member.eof:
                    if not (block := block.lstrip(b"\0")):  # gzip files may be padded, and may be several in a row
                        break
                    member = zlib.decompressobj(wbits=31)
                yield member.decompress(block, READ_BYTES)
                block = member.unused_data if member.eof else member.unconsumed_tail
        while not member.eof and (text := member.decompress(b"", READ_BYTES)):
            yield text
    except zlib.error as error:
        raise damaged(name, "gzip", error) from None
    if not member.eof:
        raise DataError(f"{name}: the gzip data ends too early; the file was cut short. Copy it again.")


def _unzstd(raw: Iterable[bytes], name: str) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    fed = False
    try:
        for block in raw:
            for start in range(0, len(block), _ZSTD_INPUT_BYTES):
                piece = block[start : start + _ZSTD_INPUT_BYTES]
                while piece:
                    if frame.eof:
                        frame = decompressor.decompressobj()
                    yield frame.decompress(piece)
                    fed = True
                    piece = frame.unused_data if frame.eof else b""
    except zstandard.ZstdError as error:
        raise damaged(name, "zstd", error) from None
    if fed and not frame.eof:
        raise DataError(f"{name}: the zstd data ends too early; the file was cut short. Copy it again.")


# ---------------------------------------------------------------- random access to what can only be read forwards


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
