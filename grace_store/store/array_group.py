"""Read and encode the arrays of one Zarr group; compare their metadata with the plan. Knows no units."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import zarr
from numcodecs import zstd
from numcodecs.vlen import VLenUTF8
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest
from zarr.abc.store import Store as ZarrStore
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from grace_store.base.arrays import Array
from grace_store.base.errors import Corrupt, GraceStoreError, UnknownName
from grace_store.store.backend import commit_key
from grace_store.store.digested_json import BODY, from_bytes, sealed_body
from grace_store.store.layout import ArraySpec

if TYPE_CHECKING:
    from grace_store.store.backend import Backend


class ArrayGroup:
    """The arrays of a Zarr group, opened at first use. With keep_chunks, the last chunk of each array is cached."""

    def __init__(self, backend: Backend, path: str, arrays: Sequence[ArraySpec], *, keep_chunks: bool = False) -> None:
        self.backend = backend
        self.path = path
        self.specs = {spec.name: spec for spec in arrays}
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self._keep_chunks = keep_chunks
        self._kept: dict[str, tuple[int, Array]] = {}
        """The number and the values of the last chunk read, by array."""

    def __getitem__(self, name: str) -> zarr.Array[Any]:
        if name not in self.specs:
            raise UnknownName(f"{self.backend.location}: {self.path} has no array {name}.")
        if name not in self._arrays:
            try:
                array = zarr.open_array(ZarrView(self.backend), path=f"{self.path}/{name}", mode="r", zarr_format=3)
            except GraceStoreError:
                raise
            except Exception as error:  # zarr raises errors of many classes for damaged metadata
                raise self._unreadable(name, f"cannot be opened ({error})") from error
            if not _has_codecs(array, spec := self.specs[name]):
                raise self._unreadable(name, "has codecs that this format does not allow")
            has_dtype = array.dtype.kind in "TO" if spec.dtype == "string" else array.dtype == np.dtype(spec.dtype)
            if (array.shape, array.shards or array.chunks) != (spec.shape, spec.chunks) or not has_dtype:
                raise self._unreadable(
                    name,
                    f"is {array.dtype} {array.shape} in chunks of {array.shards or array.chunks}, but the plan implies "
                    f"{spec.dtype} {spec.shape} in chunks of {spec.chunks}",
                )
            self._arrays[name] = array
        return self._arrays[name]

    def _unreadable(self, name: str, why: str) -> Corrupt:
        return Corrupt(
            f"{self.backend.location}: the array {self.path}/{name} {why}. `grace-store verify` lists all problems."
        )

    def read(self, name: str, start: int, stop: int) -> Array:
        """Return rows start..stop; raise Corrupt if a chunk is missing or fails its checksum."""
        num_rows, length = self[name].shape[0], self.specs[name].chunks[0]
        number = start // length
        first = number * length
        if not self._keep_chunks or stop > first + length:
            try:
                return np.asarray(self[name][start:stop])
            except (ValueError, RuntimeError, OSError, MemoryError) as error:
                rows = f"rows {start}..{stop} of {self.path}/{name}"
                raise broken(self.backend, rows, f"cannot be read ({error})") from error
        if (kept := self._kept.get(name)) is None or kept[0] != number:
            whole = self._whole(name, number)[: num_rows - first]
            whole.flags.writeable = False
            kept = self._kept[name] = number, whole
        return kept[1][start - first : stop - first]

    def _whole(self, name: str, number: int) -> Array:
        """Return a chunk by its number, with its padding."""
        spec = self.specs[name]
        key = f"{self.path}/{spec.chunk_key(number)}"
        if (raw := self.backend.read(key)) is None:
            raise broken(self.backend, key, "is missing")
        try:
            return decode_chunk(raw, spec)
        except (ValueError, RuntimeError, IndexError, MemoryError) as error:
            raise broken(self.backend, f"chunk {number} of {self.path}/{name}", f"cannot be read ({error})") from error


def broken(backend: Backend, what: str, how: str) -> Corrupt:
    """Return the error for a damaged part of a store that can be repaired."""
    return Corrupt(f"{backend.location}: {what} {how}. Run `grace-store verify --repair`.")


def _has_codecs(array: zarr.Array[Any], spec: ArraySpec) -> bool:
    """Return whether an array has the codecs of FORMAT.md; other codecs could be harmful, such as unpickling objects.

    The codecs are compared as JSON, their form on disk: the types of their settings differ between releases of zarr.
    """
    codecs: Any = array.metadata.to_dict()["codecs"]
    if not spec.inner:
        return _are(codecs, "vlen-utf8" if spec.dtype == "string" else "bytes", "zstd", "crc32c")
    if not _are(codecs, "sharding_indexed"):
        return False
    shard = codecs[0]["configuration"]
    has_index = _are(shard["index_codecs"], "bytes", "crc32c") and shard["index_location"] == "end"
    return has_index and _are(shard["codecs"], "bytes", "zstd", "crc32c") and tuple(shard["chunk_shape"]) == spec.inner


def _are(codecs: Sequence[Any], *known: str) -> bool:
    """Return whether codecs have these names and are little-endian."""
    endian = codecs[0].get("configuration", {}).get("endian", "little") if codecs else None
    return [codec["name"] for codec in codecs] == list(known) and endian == "little"


# ---------------------------------------------------------------- bytes to values
# Decode a whole chunk as described in FORMAT.md: zstd and a CRC-32C, or a shard of such chunks.
#
# Zarr's scheduler takes longer than the decoding, so whole chunks are decoded here. Damaged bytes raise ValueError,
# RuntimeError, IndexError or MemoryError. No function allocates more memory than a valid chunk needs.

_CRC_BYTES = 4
_COUNT_BYTES = 4
_LEFT_OUT = 2**64 - 1
"""The offset in a shard's index for an inner chunk that has only zeros and is not stored."""


def decode_chunk(raw: bytes, spec: ArraySpec) -> Array:
    """Return the values of a chunk, with its padding, from its bytes; texts become Python strings."""
    if spec.dtype == "string":
        return _texts(raw, spec)
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    if not spec.inner:
        out = np.empty(spec.chunks, dtype)
        _unpack(raw, out)
        return out
    out = np.zeros(spec.chunks, dtype)
    num_inner = spec.chunks[0] // spec.inner[0]
    index = np.frombuffer(_checked(raw[-16 * num_inner - _CRC_BYTES :]), dtype="<u8").reshape(num_inner, 2)
    for rows, (offset, length) in zip(np.split(out, num_inner), index.tolist(), strict=True):
        if offset != _LEFT_OUT:
            _unpack(raw[offset : offset + length], rows)
    return out


def _texts(raw: bytes, spec: ArraySpec) -> Array:
    body = _checked(raw)
    if not 0 < (unpacked_size(body) or 0) <= MAX_UNPACKED_BYTES:
        raise ValueError(f"the chunk unpacks to {unpacked_size(body) or 'unknown'} bytes")
    unpacked = zstd.decompress(body)
    # The decoder allocates memory for the number of texts in the first bytes before it reads the texts.
    if (claimed := int.from_bytes(unpacked[:_COUNT_BYTES], "little")) != spec.chunks[0]:
        raise ValueError(f"the chunk holds {claimed} texts instead of {spec.chunks[0]}")
    return np.asarray(VLenUTF8().decode(unpacked))


def _unpack(raw: bytes, out: Array) -> None:
    """Decompress a chunk into an array of the same size."""
    body = _checked(raw)
    if unpacked_size(body) != out.nbytes:
        raise ValueError(f"the chunk holds {unpacked_size(body)} bytes instead of {out.nbytes}")
    zstd.decompress(body, out)


def _checked(raw: bytes) -> bytes:
    """Return bytes without the CRC-32C at their end, after a check of it."""
    body, checksum = raw[:-_CRC_BYTES], raw[-_CRC_BYTES:]
    # The checksum of an empty body is 0, so a file of zeros could match it.
    if not len(body) or google_crc32c.value(body) != int.from_bytes(checksum, "little"):
        raise ValueError("the checksum of the chunk is wrong")
    return body


# ---------------------------------------------------------------- chunks that are compared with commits
# Read whole chunks of a signal's units fast, on any number of threads, and compare each with the commit of its unit.
#
# The digest is computed from the same bytes that are decoded, so a chunk is read once. A chunk that was copied from
# another unit has a valid checksum, but its digest differs from the commit.

Digests = Mapping[str, Mapping[str, Any]]
"""The chunks of a unit's commit: {key of a chunk: its size and digest}."""


class ChunkReader:
    """Reads the chunks of one signal. Thread-safe."""

    def __init__(self, signal: str, identity: str, group: ArrayGroup) -> None:
        self._signal = signal
        self._identity = identity
        self._group = group

    def digests(self, units: Sequence[int]) -> dict[int, Digests]:
        """Return the chunks of each unit's commit, after a check of its digest and owner; verify checks more."""
        backend = self._group.backend
        commits = [commit_key(self._signal, unit) for unit in units]
        found: dict[int, Digests] = {}
        for unit, key, raw in zip(units, commits, backend.read_all(commits), strict=True):
            try:
                commit = from_bytes(raw, key)
                sealed_body(commit, key)
                owner, found[unit] = (commit[BODY]["unit"], commit[BODY]["signal_sha256"]), dict(commit[BODY]["chunks"])
            except (Corrupt, KeyError, TypeError, ValueError) as error:
                raise broken(backend, key, "cannot be read") from error
            if owner != (unit, self._identity):
                raise broken(backend, key, "belongs to another unit or signal")
        return found

    def read(self, wanted: Sequence[tuple[str, int]], digests: Mapping[int, Digests]) -> Iterator[Array]:
        """Yield the chunk of each (array, unit), with its padding; the backend may read several at a time."""
        chunks = [self._group.specs[name].chunk_key(unit) for name, unit in wanted]
        raws = self._group.backend.read_all(f"{self._group.path}/{key}" for key in chunks)
        for (name, unit), key, raw in zip(wanted, chunks, raws, strict=True):
            where = f"{self._group.path}/{key}"
            if raw is None:
                raise broken(self._group.backend, where, "is missing")
            if hashlib.sha256(raw).hexdigest() != digests[unit].get(key, {}).get("sha256"):
                raise broken(self._group.backend, where, "is not the chunk that was committed")
            yield self.decoded(name, unit, raw)

    def decoded(self, name: str, unit: int, raw: bytes) -> Array:
        """Return the chunk of an array and unit from its bytes, after the caller has checked their digest."""
        spec = self._group.specs[name]
        self._group[name]  # raises Corrupt if the array has other codecs
        try:
            chunk = decode_chunk(raw, spec)
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            where = f"{self._group.path}/{spec.chunk_key(unit)}"
            raise broken(self._group.backend, where, f"cannot be decoded ({error})") from error
        return chunk[: max(0, spec.shape[0] - unit * spec.chunks[0])]


# ---------------------------------------------------------------- arrays to chunk bytes
# zarr encodes into memory; the backend writes the bytes.

COMPRESSION_LEVEL = 3


class ArrayEncoder:
    """Encodes regions of the arrays of one group. Not thread-safe: each writer has its own."""

    def __init__(self, arrays: Sequence[ArraySpec]) -> None:
        self._memory: dict[str, Buffer] = {}
        self._arrays: dict[str, zarr.Array[Any]] = {}
        for spec in arrays:
            is_text = spec.dtype == "string"
            self._arrays[spec.name] = zarr.create_array(
                MemoryStore(self._memory),
                name=spec.name,
                shape=spec.shape,
                chunks=spec.inner or spec.chunks,
                shards=spec.chunks if spec.inner else None,
                dtype=str if is_text else np.dtype(spec.dtype),
                compressors=[ZstdCodec(level=COMPRESSION_LEVEL), Crc32cCodec()],
                fill_value="" if is_text else 0,
                dimension_names=spec.dims,
                attributes={"about": spec.about, **spec.attributes},
                zarr_format=3,
                # A unit is done if all its chunks exist, so empty chunks are written too.
                config={"write_empty_chunks": True},
            )
        self.metadata = {f"{name}/zarr.json": self._memory[f"{name}/zarr.json"].to_bytes() for name in self._arrays}
        """{key: bytes} of every array's own zarr.json."""
        self._memory.clear()

    def encode(self, regions: Mapping[str, tuple[int, Array]]) -> dict[str, bytes]:
        """Return {array/chunk key: bytes} of values that begin at a start along the first dimension."""
        for name, (start, values) in regions.items():
            self._arrays[name][start : start + len(values)] = values
        chunks = {key: value.to_bytes() for key, value in sorted(self._memory.items())}
        self._memory.clear()
        return chunks


# ---------------------------------------------------------------- zarr's interface to a backend


class ZarrView(ZarrStore):
    """A read-only zarr store on a backend. A missing chunk is an error, not a chunk of fill values.

    Zarr reads through the backend, with the same errors, retries and limits as every other reader.
    """

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
            if isinstance(byte_range, RangeByteRequest):
                part = slice(byte_range.start, byte_range.end)
            else:
                part = slice(
                    byte_range.offset if isinstance(byte_range, OffsetByteRequest) else -byte_range.suffix, None
                )
            value = await asyncio.to_thread(self._backend.read_slice, key, part)
        if value is not None:
            # zarr has no limit on the size of an unpacked chunk.
            size = unpacked_size(value)
            if value[:4] == _MAGIC and (size is None or size > MAX_UNPACKED_BYTES):
                raise Corrupt(f"{self._backend.location}: {key} unpacks to {size or 'unknown'} bytes.")
            return prototype.buffer.from_bytes(value)
        if key.rpartition("/")[2] == "zarr.json":
            return None
        # If this returned None, zarr would return fill values, which look like data.
        raise broken(self._backend, key, "is missing")

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

    def list(self) -> AsyncIterator[str]:
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in await asyncio.to_thread(lambda: [*self._backend.walk(prefix.rstrip("/"))]):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(self._backend.names, prefix.rstrip("/")):
            yield name


# ---------------------------------------------------------------- zstd frame
# The unpacked size that a zstd frame declares, before memory is allocated for it (RFC 8878, section 3.1.1.1).

MAX_UNPACKED_BYTES = 1 << 30
"""Limit far above the largest chunks, which are a unit's Grams and the ids of 16,384 samples."""
_MAGIC = bytes.fromhex("28b52ffd")


def unpacked_size(frame: bytes) -> int | None:
    """Return the size that a frame declares; None if it declares none (our frames always do) or is not a frame."""
    if frame[:4] != _MAGIC or len(frame) < 5:
        return None
    descriptor = frame[4]
    is_single_segment = bool(descriptor & 0x20)
    start = 5 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    length = (int(is_single_segment), 2, 4, 8)[descriptor >> 6]
    size = int.from_bytes(frame[start : start + length], "little")
    return None if not length else size + 256 if length == 2 else size
