"""Read files in blocks: take their digest, decompress them in bounded memory, and reread parts by cursors.

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
_ZSTD_INPUT_BYTES = 2**10  # zstandard does not bound its output; 1 kB of input makes at most about 32 MB


class RawBlocks:
    """A file's bytes as stored on disk, block by block, with the digest and the count of the bytes read so far."""

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
    """Yield the decompressed text of a file; raise DataError with its name if it is damaged or cut short."""
    if compression == "":
        return iter(raw)
    return _gunzip(raw, name) if compression == "gz" else _unzstd(raw, name)


def damaged(name: str, kind: str, error: Exception) -> DataError:
    """Return the error for compressed data that cannot be decompressed."""
    if "too much memory" in str(error):
        return DataError(
            f"{name}: this file was compressed with a window of more than 128 MB (zstd --long). Reading it needs that "
            "much memory. Compress the file again without --long."
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
                    if not (block := block.lstrip(b"\0")):  # a file may contain several gzip members, and padding
                        break
                    member = zlib.decompressobj(wbits=31)
                yield member.decompress(block, READ_BYTES)
                block = member.unused_data if member.eof else member.unconsumed_tail
        while not member.eof and (text := member.decompress(b"", READ_BYTES)):
            yield text
    except zlib.error as error:
        raise damaged(name, "gzip", error) from None
    if not member.eof:
        raise DataError(f"{name}: the gzip data ends too early, so the file was cut short. Copy the file again.")


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
        raise DataError(f"{name}: the zstd data ends too early, so the file was cut short. Copy the file again.")


NUM_CURSORS = 4
"""Number of readers that can go through one file in ascending order at the same time without a restart."""


class Cursor(Protocol):
    """A reader of a file that only moves forward."""

    position: int
    """The first position that can still be read."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Cursor)


class CursorPool(Generic[C]):
    """A few open cursors of one file. ``at`` returns the nearest one before a position, or opens a new one."""

    def __init__(self, open_cursor: Callable[[int], C]) -> None:
        self._open_cursor = open_cursor
        self._cursors: list[C] = []  # the most recently used cursor is the last

    def at(self, position: int, not_before: int = 0) -> C:
        """Return a cursor that can move forward to position; a new cursor begins at not_before."""
        if behind := [cursor for cursor in self._cursors if not_before <= cursor.position <= position]:
            cursor = max(behind, key=lambda candidate: candidate.position)
            self._cursors.remove(cursor)
        else:
            if len(self._cursors) == NUM_CURSORS:
                self._cursors.pop(0).close()
            cursor = self._open_cursor(not_before)
        self._cursors.append(cursor)
        return cursor

    def discard(self, cursor: C) -> None:
        """Close and drop a cursor that failed."""
        self._cursors.remove(cursor)
        cursor.close()

    def close(self) -> None:
        while self._cursors:
            self._cursors.pop().close()
