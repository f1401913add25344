"""A dataset: files of records, with a sequential scan and random access. Does not parse records."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grace_store.base.errors import DataError, DatasetChanged
from grace_store.base.metadata import DataFile
from grace_store.data.byte_streams import CursorPool, RawBlocks, drop_bytes, text_blocks
from grace_store.data.expand import Expansion
from grace_store.data.folders import KINDS_IN_WORDS, RecordFile, examine_file, expand_paths, name_files
from grace_store.data.record import ELEMENT, MAX_RECORD_BYTES, Record, digest_bytes

if TYPE_CHECKING:
    from grace_store.data.tables import ArrowReader, ParquetReader

_Reader = tuple[Callable[[int, int], bytes | None], Callable[[], None]]
"""The read and close functions of an open file; read returns fewer bytes, or None, past the end of the file."""

_PROGRESS_RECORDS = 1024


class Dataset(AbstractContextManager["Dataset"]):
    """Files of records.

    ``scan`` goes through all records once, in constant memory. ``read`` rereads one record. It finds the record at once
    in plain text and Arrow files. In .gz, .zst and Parquet files it moves forward from one of a few open cursors: up to
    four readers can read in ascending order cheaply, but a step back restarts the file or the row group.
    Several threads may call ``read``; a lock makes them take turns.
    """

    def __init__(self, files: Sequence[RecordFile], expansion: Expansion | None = None) -> None:
        self.files = tuple(files)
        self.expansion = expansion
        """Makes a record for each element of a list; None if records stay as they are."""
        self.num_expanded = 0
        """Number of records with such a list in the last scan."""
        self._readers: dict[int, _Reader] = {}
        self._lock = threading.Lock()
        self._summary: tuple[DataFile, ...] | None = None
        self._last: tuple[tuple[int, int], list[bytes]] = (-1, -1), []
        """Place and elements of the record read last: the traces of one record are often read together."""

    @classmethod
    def open(cls, paths: Sequence[str | Path], expansion: Expansion | None = None) -> Dataset:
        """Find the files at the given paths (folders are expanded) and the kind of each file; read nothing else."""
        found = expand_paths(paths)
        files = [examine_file(path, name) for path, name in zip(found, name_files(found), strict=True)]
        if not any(file.num_bytes for file in files):
            raise DataError(f"{', '.join(map(str, found))}: empty. Give {KINDS_IN_WORDS} with records.")
        return cls(files, expansion)

    @property
    def num_bytes(self) -> int:
        """Size of all files on disk."""
        return sum(file.num_bytes for file in self.files)

    def scan(self, progress: Callable[[int, int], None] | None = None) -> Iterator[Record]:
        """Yield every record in order; afterwards, ``summary`` has the digest of every file.

        progress is called with the number of records, and of bytes on disk, read so far.
        """
        row = num_bytes_before = self.num_expanded = 0
        summary = []
        for index, file in enumerate(self.files):
            raw = RawBlocks(file.path)
            row_in_file = 0
            for span in _spans(file, raw):
                texts = self._expanded(span.raw)
                large_digest = span.large_digest if texts else digest_bytes(span.raw)
                for element, text in enumerate(texts or [b""]):
                    length = span.length + element * ELEMENT
                    yield Record(row, index, span.offset, length, text, row_in_file, large_digest)
                    row += 1
                    row_in_file += 1
                    if progress is not None and row % _PROGRESS_RECORDS == 0:
                        progress(row, num_bytes_before + raw.num_bytes)
            num_bytes_before += raw.num_bytes
            found: dict[str, Any] = {"num_bytes": raw.num_bytes, "num_records": row_in_file, "sha256": raw.sha256}
            summary.append(DataFile(path=str(file.path), kind=file.kind, **found))
        if progress is not None:
            progress(row, num_bytes_before)
        self._summary = tuple(summary)

    def _expanded(self, raw: bytes) -> list[bytes]:
        if self.expansion is None or (made := self.expansion(raw)) is None:
            return [raw]
        self.num_expanded += 1
        return made

    def summary(self) -> tuple[DataFile, ...]:
        """Return the size, record count and digest of each file, from the last complete scan."""
        if self._summary is None:
            raise DataError("The dataset was not read to its end yet, so its files have no digests.")
        return self._summary

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Return the raw bytes of the record at a place from a scan."""
        element = 0
        if self.expansion is not None:
            element, length = divmod(length, ELEMENT)
        with self._lock:
            if self.expansion is None or self._last[0] != (file, offset):
                if (reader := self._readers.get(file)) is None:
                    reader = self._readers[file] = _open_reader(self.files[file])
                raw = reader[0](offset, length)
                made = [] if raw is None or len(raw) < length else self._expanded(raw)
                self._last = (file, offset), made
            made = self._last[1]
        if element >= len(made):
            raise DatasetChanged(
                f"{self.files[file].path}: ends before the record at {offset}. This is not the file that was planned. "
                "Put the planned file back, or plan a new store."
            )
        return made[element]

    def read_many(self, locators: Iterable[tuple[int, int, int]]) -> Iterator[bytes]:
        """Yield the raw bytes at each (file, offset, length), in the given order; ascending order is fastest."""
        for file, offset, length in locators:
            yield self.read(file, offset, length)

    def close(self) -> None:
        with self._lock:
            while self._readers:
                self._readers.popitem()[1][1]()

    def __exit__(self, *_: object) -> None:
        self.close()


def _spans(file: RecordFile, raw: RawBlocks) -> Iterator[Span]:
    if file.is_table:
        for _ in raw:  # for the digest; pyarrow then reads the table
            pass
        with closing(_open_table(file)) as table:
            for number, text in enumerate(table.rows()):
                is_large = len(text) > MAX_RECORD_BYTES
                yield Span(number, 0, b"" if is_large else text, digest_bytes(text) if is_large else None)
        return
    blocks = drop_bytes(text_blocks(raw, file.compression, str(file.path)), file.skip_bytes)
    if file.kind.partition(".")[0] == "json":
        yield from scan_array(blocks, str(file.path), file.skip_bytes)
    else:
        yield from scan_lines(blocks, file.skip_bytes)


def _open_table(file: RecordFile) -> ParquetReader | ArrowReader:
    from grace_store.data.tables import open_table  # importing pyarrow is slow, and text files do not need it

    return open_table(file.path, file.kind)


def _open_reader(file: RecordFile) -> _Reader:
    if file.is_table:
        table = _open_table(file)
        return (lambda row, _: table.row(row) if row < table.num_rows else None), table.close
    if file.compression:
        cursors = CursorPool(lambda _: _TextCursor(file))

        def read_on(offset: int, length: int) -> bytes:
            cursor = cursors.at(offset)
            try:
                return cursor.read(offset, length)
            except DataError:
                cursors.discard(cursor)
                raise

        return read_on, cursors.close
    try:
        stream = open(file.path, "rb")  # noqa: SIM115 - kept open until close()
    except OSError as error:
        raise DataError(f"{file.path}: cannot be read: {error.strerror}") from error

    def read(offset: int, length: int) -> bytes:
        stream.seek(offset)
        return stream.read(length)

    return read, stream.close


class _TextCursor:
    """A cursor in decompressed text. It can reread its current block."""

    def __init__(self, file: RecordFile) -> None:
        self._raw = iter(RawBlocks(file.path))
        self._blocks = text_blocks(self._raw, file.compression, str(file.path))
        self._block = b""
        self.position = 0

    def read(self, offset: int, length: int) -> bytes:
        """Return length bytes at offset, or fewer if the text ends before."""
        while self.position + len(self._block) <= offset and self._next():
            pass
        pieces = [self._block[offset - self.position :][:length]]
        missing = length - len(pieces[0])
        while missing and self._next():
            pieces.append(self._block[:missing])
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def _next(self) -> bool:
        self.position += len(self._block)
        self._block = next((block for block in self._blocks if block), b"")
        return bool(self._block)

    def close(self) -> None:
        self._raw.close()


# ---------------------------------------------------------------- records in a stream of JSON text
# Records are lines, or the elements of one array. Memory holds at most one block and one record.

_SPACE = b" \t\r\n"


class Span(NamedTuple):
    """A record's place and bytes. A record over the size limit has its digest instead of its bytes."""

    offset: int
    length: int
    raw: bytes
    large_digest: bytes | None


class _Gathering:
    """A record that extends over several blocks: its pieces, or only its digest if it is over the size limit."""

    def __init__(self, offset: int, max_bytes: int) -> None:
        self._offset = offset
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._length = 0
        self._hash: hashlib._Hash | None = None

    def add(self, piece: bytes) -> None:
        self._length += len(piece)
        if self._hash is None and self._length > self._max_bytes:
            self._hash = hashlib.sha256(b"".join(self._pieces))
            self._pieces.clear()
        (self._pieces.append if self._hash is None else self._hash.update)(piece)

    def span(self, strip: bytes) -> Span:
        """Return the record without the bytes in strip at its end; if strip has several bytes, also at its start."""
        if self._hash is not None:
            return Span(self._offset, self._length, b"", self._hash.digest()[:16])
        return _trimmed(self._offset, b"".join(self._pieces), strip, self._max_bytes)


def _trimmed(offset: int, text: bytes, strip: bytes, max_bytes: int) -> Span:
    kept = text.rstrip(strip)
    if len(strip) > 1:
        kept = kept.lstrip(strip)
        offset += len(text) - len(text.lstrip(strip))
    is_large = len(kept) > max_bytes
    return Span(offset, len(kept), b"" if is_large else kept, digest_bytes(kept) if is_large else None)


def scan_lines(blocks: Iterable[bytes], offset: int = 0, max_bytes: int = MAX_RECORD_BYTES) -> Iterator[Span]:
    r"""Yield every line that is not blank, without its \n or \r\n. offset is the position of the first block."""
    unfinished: _Gathering | None = None
    for block in blocks:
        start = 0
        while (stop := block.find(b"\n", start)) >= 0:
            if unfinished is not None:
                unfinished.add(block[start:stop])
                span, unfinished = unfinished.span(b"\r"), None
            else:
                span = _trimmed(offset + start, block[start:stop], b"\r", max_bytes)
            if _is_record(span):
                yield span
            start = stop + 1
        if start < len(block):
            unfinished = unfinished or _Gathering(offset + start, max_bytes)
            unfinished.add(block[start:])
        offset += len(block)
    if unfinished is not None and _is_record(span := unfinished.span(b"\r")):
        yield span


def _is_record(span: Span) -> bool:
    return span.large_digest is not None or bool(span.raw and not span.raw.isspace())


# These patterns skip to the next significant byte, over whole strings: one call of the regex engine skips a flat
# object. Nothing follows the outer repeat, so it cannot fail. The inner repeat backtracks once in an unfinished string.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_UP_TO_BRACKET = re.compile(rb'[^"{}\[\]]*(?:' + _STRING + rb'[^"{}\[\]]*)*', re.DOTALL)
_UP_TO_BRACKET_OR_COMMA = re.compile(rb'[^"{}\[\],]*(?:' + _STRING + rb'[^"{}\[\],]*)*', re.DOTALL)
_REST_OF_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")


def scan_array(
    blocks: Iterable[bytes], name: str, offset: int = 0, max_bytes: int = MAX_RECORD_BYTES
) -> Iterator[Span]:
    """Yield every element of the JSON array in the blocks.

    An element is the text between two commas of the array, so a malformed element is a record too (and fails when it is
    parsed). Raise DataError if the array does not open, does not close or has more text after it.
    """
    scanner = _ArrayScanner(name, offset, max_bytes)
    for block in blocks:
        yield from scanner.feed(block)
    scanner.finish()


class _ArrayScanner:
    """The state between two blocks: the nesting depth, whether inside a string, and the unfinished element."""

    def __init__(self, name: str, offset: int, max_bytes: int) -> None:
        self._name = name
        self._block_offset = offset
        self._max_bytes = max_bytes
        self._depth = 0
        self._closed = False
        self._in_string = False
        self._escaped = False
        self._unfinished: _Gathering | None = None

    def feed(self, block: bytes) -> Iterator[Span]:
        at = start = 0
        while at < len(block):
            if self._in_string:
                at = self._skip_string(block, at)
            elif self._depth == 0:
                at = start = self._skip_outside(block, at)
            else:
                at = _end(_UP_TO_BRACKET if self._depth > 1 else _UP_TO_BRACKET_OR_COMMA, block, at)
                if at == len(block):
                    break
                stop, byte = at, block[at : at + 1]
                at += 1
                if byte == b'"':
                    self._in_string = True  # the string does not end in this block
                elif byte in b"{[":
                    self._depth += 1
                elif byte in b"}]":
                    self._depth -= 1
                    if self._depth == 0:
                        self._closed = True
                        span = self._element(block, start, stop)
                        if span.length:  # an empty array, or a comma before the bracket, makes no record
                            yield span
                else:
                    yield self._element(block, start, stop)
                    start = at
        if self._depth and start < len(block):
            self._unfinished = self._unfinished or _Gathering(self._block_offset + start, self._max_bytes)
            self._unfinished.add(block[start:])
        self._block_offset += len(block)

    def finish(self) -> None:
        if not self._closed:
            raise DataError(
                f"{self._name}: the JSON array has no end. The file stops at byte {self._block_offset} of its text. "
                "If the file was cut short, copy it again. Otherwise a quote or bracket is missing."
            )

    def _skip_string(self, block: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        if (at := _end(_REST_OF_STRING, block, at)) == len(block):
            return at
        self._escaped = block[at : at + 1] == b"\\"  # the last byte of the block
        self._in_string = self._escaped
        return at + 1

    def _skip_outside(self, block: bytes, at: int) -> int:
        if (match := _NOT_SPACE.search(block, at)) is None:
            return len(block)
        if self._closed or match[0] != b"[":
            found = "more text after its closing bracket" if self._closed else f"{match[0]!r} where [ should be"
            raise DataError(
                f"{self._name}: not one JSON array: {found}, at byte {self._block_offset + match.start()}. "
                "Write the records as one array of objects, or as JSON lines (one object per line) in a .jsonl file."
            )
        self._depth = 1
        return match.end()

    def _element(self, block: bytes, start: int, stop: int) -> Span:
        if self._unfinished is None:
            return _trimmed(self._block_offset + start, block[start:stop], _SPACE, self._max_bytes)
        unfinished, self._unfinished = self._unfinished, None
        unfinished.add(block[start:stop])
        return unfinished.span(_SPACE)


def _end(pattern: re.Pattern[bytes], block: bytes, at: int) -> int:
    match = pattern.match(block, at)
    return at if match is None else match.end()
