"""The arrays of one Zarr group, open for reading and held against what the plan implies. Knows no units."""

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
from zarr.errors import ArrayNotFoundError
from zarr.storage import MemoryStore

from grace_store.base.arrays import Array
from grace_store.base.errors import Corrupt, UnknownName
from grace_store.store.digested_json import BODY, from_bytes, sealed_body
from grace_store.store.layout import ArraySpec, chunk_key, commit_key

if TYPE_CHECKING:
    from grace_store.store.backend import Backend


class ArrayGroup:
    """Arrays of a Zarr group, opened when first asked for; keep_chunks keeps the chunk of each that was read last."""

    def __init__(self, backend: Backend, path: str, arrays: Sequence[ArraySpec], *, keep_chunks: bool = False) -> None:
        self.backend = backend
        self.path = path
        self.specs = {spec.name: spec for spec in arrays}
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self._keep_chunks = keep_chunks
        self._kept: dict[str, tuple[int, Array]] = {}
        """The number of a chunk and its values, by array."""

    def __getitem__(self, name: str) -> zarr.Array[Any]:
        if name not in self.specs:
            raise UnknownName(f"{self.backend.location}: {self.path} has no array {name}.")
        if name not in self._arrays:
            try:
                array = zarr.open_array(ZarrView(self.backend), path=f"{self.path}/{name}", mode="r", zarr_format=3)
            except (ArrayNotFoundError, FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._unreadable(name, f"cannot be opened ({error})") from error
            spec = self.specs[name]
            if not _has_codecs(array, spec):
                raise self._unreadable(name, "has codecs that no store of this format has")
            is_text = spec.dtype == "string"
            has_dtype = array.dtype.kind in "TO" if is_text else array.dtype == np.dtype(spec.dtype)
            if (array.shape, array.shards or array.chunks) != (spec.shape, spec.chunks) or not has_dtype:
                raise self._unreadable(
                    name,
                    f"is {array.dtype} {array.shape} in chunks of {array.shards or array.chunks}, the plan implies "
                    f"{spec.dtype} {spec.shape} in chunks of {spec.chunks}",
                )
            self._arrays[name] = array
        return self._arrays[name]

    def _unreadable(self, name: str, why: str) -> Corrupt:
        return Corrupt(
            f"{self.backend.location}: the array {self.path}/{name} {why}. "
            "`grace-store verify` says what else is wrong."
        )

    def read(self, name: str, start: int, stop: int) -> Array:
        """Return rows start..stop; a chunk that is missing or fails its checksum raises Corrupt."""
        num_rows, length = self[name].shape[0], self.specs[name].chunks[0]
        number = start // length
        first = number * length
        if not self._keep_chunks or stop > first + length:
            return self._read(name, start, stop)
        kept = self._kept.get(name)
        if kept is None or kept[0] != number:
            whole = self._whole(name, number)[: num_rows - first]
            whole.flags.writeable = False
            kept = self._kept[name] = number, whole
        return kept[1][start - first : stop - first]

    def _read(self, name: str, start: int, stop: int) -> Array:
        array = self[name]
        try:
            return np.asarray(array[start:stop])
        except (ValueError, RuntimeError, OSError, MemoryError) as error:
            raise self._damaged(name, f"rows {start}..{stop}", error) from error

    def _whole(self, name: str, number: int) -> Array:
        """Return a chunk by its number, padding included."""
        spec = self.specs[name]
        key = f"{self.path}/{chunk_key(name, len(spec.dims), number)}"
        if (raw := self.backend.read(key)) is None:
            raise missing_chunk(self.backend, key)
        try:
            return decode_chunk(raw, spec)
        except (ValueError, RuntimeError, IndexError, MemoryError) as error:
            raise self._damaged(name, f"chunk {number}", error) from error

    def _damaged(self, name: str, what: str, error: Exception) -> Corrupt:
        return Corrupt(
            f"{self.backend.location}: {what} of {self.path}/{name} cannot be read ({error}). "
            "Run `grace-store verify --repair`."
        )


def _has_codecs(array: zarr.Array[Any], spec: ArraySpec) -> bool:
    """Return whether an array is encoded as FORMAT.md says: others' codecs may do anything, such as unpack objects.

    Codecs are compared as JSON, as they are on disk: the types of their settings differ between releases of zarr.
    """
    codecs: Any = array.metadata.to_dict()["codecs"]
    if not spec.inner:
        return _are(codecs, "vlen-utf8" if spec.dtype == "string" else "bytes", "zstd", "crc32c")
    if not _are(codecs, "sharding_indexed"):
        return False
    shard = codecs[0]["configuration"]
    is_plain = _are(shard["codecs"], "bytes", "zstd", "crc32c")
    has_index = _are(shard["index_codecs"], "bytes", "crc32c") and shard["index_location"] == "end"
    return is_plain and has_index and tuple(shard["chunk_shape"]) == spec.inner


def _are(codecs: Sequence[Any], *known: str) -> bool:
    """Return whether codecs have these names, and write numbers with the low byte first."""
    endian = codecs[0].get("configuration", {}).get("endian", "little") if codecs else None
    return [codec["name"] for codec in codecs] == list(known) and endian == "little"


# ---------------------------------------------------------------- bytes to values
# Bytes of a whole chunk to its values, encoded as FORMAT.md says: zstd, then a CRC-32C; or a shard of such chunks.
#
# Zarr's scheduler costs more than decoding, so whole chunks are decoded here. All that is wrong with bytes is a
# ValueError, RuntimeError, IndexError or MemoryError; nothing makes more room than a chunk of ours needs.


_CRC_BYTES = 4
_COUNT_BYTES = 4
_LEFT_OUT = 2**64 - 1
"""Where a shard's index says that an inner chunk lies which holds nothing but zeros."""


def decode_chunk(raw: bytes, spec: ArraySpec) -> Array:
    """Return the values of a chunk, padding included, from all its bytes; texts as Python has them."""
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
        raise ValueError(f"it unpacks to {unpacked_size(body) or 'unknown'} bytes")
    unpacked = zstd.decompress(body)
    # The decoder makes room for as many texts as the first bytes claim, before it looks for them.
    if (claimed := int.from_bytes(unpacked[:_COUNT_BYTES], "little")) != spec.chunks[0]:
        raise ValueError(f"it holds {claimed} texts instead of {spec.chunks[0]}")
    return np.asarray(VLenUTF8().decode(unpacked))


def _unpack(raw: bytes, out: Array) -> None:
    """Fill an array with all that a chunk holds, and never make more room than that."""
    body = _checked(raw)
    if unpacked_size(body) != out.nbytes:
        raise ValueError(f"it holds {unpacked_size(body)} bytes instead of {out.nbytes}")
    zstd.decompress(body, out)


def _checked(raw: bytes) -> bytes:
    """Return bytes without the CRC-32C behind them, which is theirs."""
    body, checksum = raw[:-_CRC_BYTES], raw[-_CRC_BYTES:]
    # The checksum of nothing is 0, so an empty file would match it.
    if not len(body) or google_crc32c.value(body) != int.from_bytes(checksum, "little"):
        raise ValueError("its checksum is wrong")
    return body


# ---------------------------------------------------------------- chunks that are held against commits
# Read whole chunks of a signal's units fast, on any number of threads, each held against its unit's commit.
#
# The digest is taken over the very bytes that are decoded, so a chunk is read once, and one that was copied from
# another unit, whose own checksum is good, is not taken for data.


Digests = Mapping[str, Mapping[str, Any]]
"""Of a unit's commit: {key of a chunk: its size and digest}."""


class ChunkReader:
    """Reads the chunks of one signal. Threads may share it."""

    def __init__(self, signal: str, identity: str, group: ArrayGroup) -> None:
        self._signal = signal
        self._identity = identity
        self._group = group

    def digests(self, units: Sequence[int]) -> dict[int, Digests]:
        """Return what the commits of units say of their chunks. Seals and owners are checked; verify does more."""
        raws = self._group.backend.read_all(commit_key(self._signal, unit) for unit in units)
        return {unit: self._digests(unit, raw) for unit, raw in zip(units, raws, strict=True)}

    def _digests(self, unit: int, raw: bytes | None) -> Digests:
        key = commit_key(self._signal, unit)
        try:
            commit = from_bytes(raw, key)
            sealed_body(commit, key)
            owner, chunks = (commit[BODY]["unit"], commit[BODY]["signal_sha256"]), dict(commit[BODY]["chunks"])
        except (Corrupt, KeyError, TypeError, ValueError) as error:
            raise self._broken(key, "cannot be read") from error
        if owner != (unit, self._identity):
            raise self._broken(key, "belongs to another unit or signal")
        return chunks

    def read(self, wanted: Sequence[tuple[str, int]], digests: Mapping[int, Digests]) -> Iterator[Array]:
        """Yield the chunk of each (array, unit), padding included; several are read at a time where that helps."""
        specs = [self._group.specs[name] for name, _ in wanted]
        both = zip(specs, wanted, strict=True)
        chunks = [chunk_key(spec.name, len(spec.dims), unit) for spec, (_, unit) in both]
        raws = self._group.backend.read_all(f"{self._group.path}/{key}" for key in chunks)
        for spec, (_, unit), key, raw in zip(specs, wanted, chunks, raws, strict=True):
            yield self._chunk(spec, unit, key, raw, digests[unit].get(key, {}))

    def _chunk(self, spec: ArraySpec, unit: int, key: str, raw: bytes | None, committed: Mapping[str, Any]) -> Array:
        where = f"{self._group.path}/{key}"
        if raw is None:
            raise self._broken(where, "is missing")
        if hashlib.sha256(raw).hexdigest() != committed.get("sha256"):
            raise self._broken(where, "is not the chunk that was committed")
        return self.decoded(spec.name, unit, raw)

    def decoded(self, name: str, unit: int, raw: bytes) -> Array:
        """Return the chunk of an array and unit from its bytes, whose digest is known to be the commit's."""
        spec = self._group.specs[name]
        self._group[name]  # raises unless the array's codecs are those that are undone here
        try:
            chunk = decode_chunk(raw, spec)
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            where = f"{self._group.path}/{chunk_key(name, len(spec.dims), unit)}"
            raise self._broken(where, f"cannot be decoded ({error})") from error
        return chunk[: max(0, spec.shape[0] - unit * spec.chunks[0])]

    def _broken(self, key: str, what: str) -> Corrupt:
        where = self._group.backend.location
        return Corrupt(f"{where}: {key} {what}. Run `grace-store verify --repair`.")


# ---------------------------------------------------------------- arrays to chunk bytes
# Arrays to chunk bytes: zarr encodes into memory, so that writing bytes is somebody else's single job.


COMPRESSION_LEVEL = 3


class ArrayEncoder:
    """Encodes regions of the arrays of one group. Not thread-safe: each writer has its own."""

    def __init__(self, arrays: Sequence[ArraySpec]) -> None:
        self._memory: dict[str, Buffer] = {}
        store = MemoryStore(self._memory)
        self._arrays = {spec.name: _create(store, spec) for spec in arrays}
        self.metadata = {f"{name}/zarr.json": self._memory[f"{name}/zarr.json"].to_bytes() for name in self._arrays}
        """{key: bytes} of every array's own zarr.json."""
        self._memory.clear()

    def encode(self, regions: Mapping[str, tuple[int, Array]]) -> dict[str, bytes]:
        """Return {array/chunk key: bytes} for values written from a start along the first dimension."""
        for name, (start, values) in regions.items():
            self._arrays[name][start : start + len(values)] = values
        chunks = {key: value.to_bytes() for key, value in sorted(self._memory.items())}
        self._memory.clear()
        return chunks


def _create(store: MemoryStore, spec: ArraySpec) -> zarr.Array[Any]:
    is_text = spec.dtype == "string"
    return zarr.create_array(
        store,
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
        # A unit is done when all its chunks are there, so an empty chunk is written like any other.
        config={"write_empty_chunks": True},
    )


# ---------------------------------------------------------------- a backend as zarr sees it


class ZarrView(ZarrStore):
    """A backend as zarr sees it: read-only, and a missing chunk is an error, not a chunk of fill values.

    Zarr reads through the backend, so its errors, retries and limits are those of every other reader.
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
