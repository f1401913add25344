"""Finds records in a stream of JSON text: lines, or one array's elements; holds one block and one record at most."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from grace_store.base.errors import DataError
from grace_store.data.record import MAX_RECORD_BYTES, digest_bytes

_SPACE = b" \t\r\n"


class Span(NamedTuple):
    """A record's place and bytes; large_digest stands in for the bytes of one over the limit."""

    offset: int
    length: int
    raw: bytes
    large_digest: bytes | None


class _Gathering:
    """A record that runs over several blocks: its pieces, or only their digest once it is over the limit."""

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
        """Return the record, without the given bytes at its end (and, if several, at its start)."""
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
    r"""Yield every line that is not blank, without its \n or \r\n. offset is where the blocks begin."""
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


# Everything up to the next byte that matters, whole strings included: one call of the regex engine skips a flat
# object. Nothing follows the outer repeat, so it cannot fail; the inner one backtracks once over an unfinished string.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_UP_TO_BRACKET = re.compile(rb'[^"{}\[\]]*(?:' + _STRING + rb'[^"{}\[\]]*)*', re.DOTALL)
_UP_TO_BRACKET_OR_COMMA = re.compile(rb'[^"{}\[\],]*(?:' + _STRING + rb'[^"{}\[\],]*)*', re.DOTALL)
_REST_OF_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")


def scan_array(
    blocks: Iterable[bytes], name: str, offset: int = 0, max_bytes: int = MAX_RECORD_BYTES
) -> Iterator[Span]:
    """Yield every element of the JSON array that the blocks are the text of.

    Elements are whatever lies between the array's own commas, so a malformed one is a record like any other (and
    bad when parsed). An array that does not open, does not close or is followed by more text is a DataError.
    """
    scanner = _ArrayScanner(name, offset, max_bytes)
    for block in blocks:
        yield from scanner.feed(block)
    scanner.finish()


class _ArrayScanner:
    """The state between two blocks: how deep, in a string or not, and the element begun."""

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
                f"{self._name}: the JSON array does not end; the file stops at byte {self._block_offset} of its text. "
                "It was cut short (copy it again), or a quote or bracket in it is missing."
            )

    def _skip_string(self, block: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        at = _end(_REST_OF_STRING, block, at)
        if at == len(block):
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
                "Write it as one array of objects, or as JSON lines (one object per line) in a .jsonl file."
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
