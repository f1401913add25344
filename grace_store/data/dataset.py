"""A dataset: files of records, read once in order or anywhere at any time. Knows nothing of what records say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from grace_store.base.errors import DataError, DatasetChanged
from grace_store.base.metadata import DataFile
from grace_store.data.byte_streams import RawBlocks, drop_bytes, text_blocks
from grace_store.data.cursors import CursorPool
from grace_store.data.file_kinds import KINDS_IN_WORDS, RecordFile, examine_file
from grace_store.data.folders import expand_paths, name_files
from grace_store.data.json_scan import Span, scan_array, scan_lines
from grace_store.data.record import MAX_RECORD_BYTES, Record, digest_bytes

if TYPE_CHECKING:
    from grace_store.data.tables import TableReader

ScanProgress = Callable[[int, int], None]
"""Called with the records, and the bytes on disk, read so far."""

_PROGRESS_RECORDS = 1024


class Dataset:
    """Files of records.

    ``scan`` goes through everything once, in flat memory. ``read`` gives one record again: at once from plain text
    and Arrow files; from .gz, .zst and Parquet by going forward from one of a few places kept open, so ascending
    reads (of up to four readers side by side) are cheap and going back starts the file, or the row group, again.
    Several threads may call ``read``; a lock makes them take turns.
    """

    def __init__(self, files: Sequence[RecordFile]) -> None:
        self.files = tuple(files)
        self._readers: dict[int, _Reader] = {}
        self._lock = threading.Lock()
        self._summary: tuple[DataFile, ...] | None = None

    @classmethod
    def open(cls, paths: Sequence[str | Path]) -> Dataset:
        """Find the files at the given paths (folders are expanded) and what kind each is; read nothing else."""
        found = expand_paths(paths)
        files = [examine_file(path, name) for path, name in zip(found, name_files(found), strict=True)]
        if not any(file.num_bytes for file in files):
            raise DataError(f"{', '.join(map(str, found))}: empty; {KINDS_IN_WORDS} with records is wanted.")
        return cls(files)

    @property
    def num_bytes(self) -> int:
        """Size of all files on disk."""
        return sum(file.num_bytes for file in self.files)

    def scan(self, progress: ScanProgress | None = None) -> Iterator[Record]:
        """Yield every record in order. When it ends, ``summary`` has every file's digest."""
        row = num_bytes_before = 0
        summary = []
        for index, file in enumerate(self.files):
            raw = RawBlocks(file.path)
            row_in_file = 0
            for span in _spans(file, raw):
                yield Record(row, index, span.offset, span.length, span.raw, row_in_file, span.large_digest)
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

    def summary(self) -> tuple[DataFile, ...]:
        """Return what the last complete scan found of each file."""
        if self._summary is None:
            raise DataError("The dataset was not scanned to its end yet, so its files have no digests.")
        return self._summary

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Return the raw bytes of the record at a place that a scan gave."""
        with self._lock:
            if (reader := self._readers.get(file)) is None:
                reader = self._readers[file] = _open_reader(self.files[file])
            raw = reader.read(offset, length)
        if raw is None or len(raw) < length:
            raise DatasetChanged(
                f"{self.files[file].path}: ends before the record at {offset}; it is not the file that was planned. "
                "Put that file back, or plan a new store."
            )
        return raw

    def read_many(self, locators: Iterable[tuple[int, int, int]]) -> Iterator[bytes]:
        """Yield the raw bytes at each (file, offset, length), in the order asked for; ascending is fastest."""
        for file, offset, length in locators:
            yield self.read(file, offset, length)

    def close(self) -> None:
        with self._lock:
            while self._readers:
                self._readers.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _spans(file: RecordFile, raw: RawBlocks) -> Iterator[Span]:
    if file.is_table:
        yield from _table_spans(file, raw)
        return
    blocks = drop_bytes(text_blocks(raw, file.compression, str(file.path)), file.skip_bytes)
    if file.is_array:
        yield from scan_array(blocks, str(file.path), file.skip_bytes)
    else:
        yield from scan_lines(blocks, file.skip_bytes)


def _open_table(file: RecordFile) -> TableReader:
    from grace_store.data.tables import open_table  # pyarrow takes a while, and text needs none of it

    return open_table(file.path, file.kind)


def _table_spans(file: RecordFile, raw: RawBlocks) -> Iterator[Span]:
    for _ in raw:  # its digest; the table is then read through pyarrow
        pass
    with closing(_open_table(file)) as table:
        for number, text in enumerate(table.rows()):
            is_large = len(text) > MAX_RECORD_BYTES
            yield Span(number, 0, b"" if is_large else text, digest_bytes(text) if is_large else None)


class _Reader(NamedTuple):
    """One file open for random access; fewer bytes than asked for, or None, where it ends before."""

    read: Callable[[int, int], bytes | None]
    close: Callable[[], None]


def _open_reader(file: RecordFile) -> _Reader:
    if file.is_table:
        table = _open_table(file)
        return _Reader(lambda row, _: table.row(row) if row < table.num_rows else None, table.close)
    if file.compression:
        cursors = CursorPool(lambda _: _TextCursor(file))

        def read_on(offset: int, length: int) -> bytes:
            cursor = cursors.at(offset)
            try:
                return cursor.read(offset, length)
            except DataError:
                cursors.discard(cursor)
                raise

        return _Reader(read_on, cursors.close)
    try:
        stream = open(file.path, "rb")  # noqa: SIM115 - kept open until close()
    except OSError as error:
        raise DataError(f"{file.path}: cannot be read: {error.strerror}") from error

    def read(offset: int, length: int) -> bytes:
        stream.seek(offset)
        return stream.read(length)

    return _Reader(read, stream.close)


class _TextCursor:
    """Goes forward through decompressed text; the block it is in can be read again."""

    def __init__(self, file: RecordFile) -> None:
        self._raw = iter(RawBlocks(file.path))
        self._blocks = text_blocks(self._raw, file.compression, str(file.path))
        self._block = b""
        self.position = 0

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there, fewer when the text ends before."""
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
