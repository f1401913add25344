"""A backend as zarr sees it: for reading only, and a chunk that is missing is an error, not a chunk of fill values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store

from grace_store.base.errors import Corrupt

if TYPE_CHECKING:
    from grace_store.store.backend import Backend


class ZarrView(Store):
    """Reads through a backend, so that errors, attempts and limits are the same whoever asks."""

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(self, backend: Backend) -> None:
        super().__init__(read_only=True)
        self._backend = backend

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZarrView) and other._backend.location == self._backend.location

    def __hash__(self) -> int:
        return hash(self._backend.location)

    def __str__(self) -> str:
        return self._backend.location

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if byte_range is None:
            value = await asyncio.to_thread(self._backend.read, key)
        else:
            value = await asyncio.to_thread(self._backend.read_slice, key, _slice(byte_range))
        if value is not None:
            self._refuse_bomb(key, value)
            return prototype.buffer.from_bytes(value)
        if key.rpartition("/")[2] == "zarr.json":
            return None
        # Zarr would answer with fill values, which look like data.
        raise missing_chunk(self._backend, key)

    def _refuse_bomb(self, key: str, value: bytes) -> None:
        """Raise Corrupt for a chunk that zarr would unpack to more than any of ours: nobody can tell zarr how much."""
        if is_zstd(value) and (unpacked_size(value) is None or (unpacked_size(value) or 0) > MAX_UNPACKED_BYTES):
            raise Corrupt(f"{self._backend.location}: {key} unpacks to {unpacked_size(value) or 'unknown'} bytes.")

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return list(await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges)))

    async def exists(self, key: str) -> bool:
        return await asyncio.to_thread(self._backend.size, key) is not None

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()

    async def delete(self, key: str) -> None:
        self._check_writable()

    async def list(self) -> AsyncIterator[str]:
        for key in await asyncio.to_thread(lambda: [*self._backend.walk()]):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in await asyncio.to_thread(lambda: [*self._backend.walk(prefix.rstrip("/"))]):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(self._backend.names, prefix.rstrip("/")):
            yield name


def _slice(part: ByteRequest) -> slice:
    if isinstance(part, RangeByteRequest):
        return slice(part.start, part.end)
    return slice(part.offset if isinstance(part, OffsetByteRequest) else -part.suffix, None)


def missing_chunk(backend: Backend, key: str) -> Corrupt:
    """Return the error of a chunk that is not there."""
    return Corrupt(f"{backend.location}: {key} is missing. Run `grace-store verify --repair`.")


# ---------------------------------------------------------------- zstd frame
# How much a zstd frame says it unpacks to, before anybody makes room for it (RFC 8878, section 3.1.1.1).


MAX_UNPACKED_BYTES = 1 << 30
"""The largest chunk by far is a unit's Grams or the ids of 16,384 samples."""
_MAGIC = bytes.fromhex("28b52ffd")


def is_zstd(raw: bytes) -> bool:
    return raw[:4] == _MAGIC


def unpacked_size(frame: bytes) -> int | None:
    """Return the size that a frame declares; None if it declares none, as ours always do, or is no frame."""
    if not is_zstd(frame) or len(frame) < 5:
        return None
    descriptor = frame[4]
    is_single_segment = bool(descriptor & 0x20)
    start = 5 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    length = (int(is_single_segment), 2, 4, 8)[descriptor >> 6]
    size = int.from_bytes(frame[start : start + length], "little")
    return None if not length else size + 256 if length == 2 else size
