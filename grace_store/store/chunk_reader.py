"""Read whole chunks of a signal's units fast, on any number of threads, each held against its unit's commit.

The digest is taken over the very bytes that are decoded, so a chunk is read once, and one that was copied from another
unit, whose own checksum is good, is not taken for data. Zarr's scheduler costs more than decoding, so chunks are
decoded here, as FORMAT.md says they are encoded: zstd, then a CRC-32C; vectors in shards of such chunks. What has other
codecs is decoded by zarr, from memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import zarr
from numcodecs import zstd
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from grace_store.base.arrays import Array
from grace_store.base.errors import Corrupt
from grace_store.store import keys, layout
from grace_store.store.sealed import BODY, from_bytes, sealed_body

if TYPE_CHECKING:
    from grace_store.store.array_group import ArrayGroup

_CRC_BYTES = 4
_LEFT_OUT = 2**64 - 1
"""Where a shard's index says that an inner chunk lies which holds nothing but zeros."""

Digests = Mapping[str, Mapping[str, Any]]
"""Of a unit's commit: {key of a chunk: its size and digest}."""


class ChunkReader:
    """Reads the chunks of one signal. Threads may share it."""

    def __init__(self, signal: str, group: ArrayGroup) -> None:
        self._signal = signal
        self._group = group
        self._codecs: dict[str, _Codecs] = {}

    def digests(self, units: Sequence[int]) -> dict[int, Digests]:
        """Return what the commits of units say of their chunks. Only their seals are checked; verify does more."""
        raws = self._group.backend.read_all(keys.commit_key(self._signal, unit) for unit in units)
        return {unit: self._digests(unit, raw) for unit, raw in zip(units, raws, strict=True)}

    def _digests(self, unit: int, raw: bytes | None) -> Digests:
        key = keys.commit_key(self._signal, unit)
        try:
            commit = from_bytes(raw, key)
            sealed_body(commit, key)
            return dict(commit[BODY]["chunks"])
        except (Corrupt, KeyError, TypeError, ValueError) as error:
            raise self._broken(key, "cannot be read") from error

    def read(self, wanted: Sequence[tuple[str, int]], digests: Mapping[int, Digests]) -> Iterator[Array]:
        """Yield the chunk of each (array, unit), padding included; several are read at a time where that helps."""
        specs = [self._group.specs[name] for name, _ in wanted]
        both = zip(specs, wanted, strict=True)
        chunks = [keys.chunk_key(spec.name, len(spec.dims), unit) for spec, (_, unit) in both]
        raws = self._group.backend.read_all(f"{self._group.path}/{key}" for key in chunks)
        for spec, (_, unit), key, raw in zip(specs, wanted, chunks, raws, strict=True):
            yield self._chunk(spec, unit, key, raw, digests[unit].get(key, {}))

    def _chunk(
        self, spec: layout.ArraySpec, unit: int, key: str, raw: bytes | None, committed: Mapping[str, Any]
    ) -> Array:
        where = f"{self._group.path}/{key}"
        if raw is None:
            raise self._broken(where, "is missing")
        if hashlib.sha256(raw).hexdigest() != committed.get("sha256"):
            raise self._broken(where, "is not the chunk that was committed")
        if (codecs := self._codecs.get(spec.name)) is None:
            codecs = self._codecs[spec.name] = _Codecs(self._group[spec.name], spec)
        try:
            chunk = codecs.decode(raw, key)
        except (RuntimeError, ValueError, IndexError) as error:
            raise self._broken(where, f"cannot be decoded ({error})") from error
        return chunk[: max(0, spec.shape[0] - unit * spec.chunks[0])]

    def _broken(self, key: str, what: str) -> Corrupt:
        return Corrupt(
            f"{self._group.backend.location}: {key} {what}. Run `grace-store verify --deep`, then `grace-store repair`."
        )


class _Codecs:
    """How the chunks of one array become values."""

    def __init__(self, array: zarr.Array[Any], spec: layout.ArraySpec) -> None:
        self._array = array
        self._spec = spec
        self._dtype = np.dtype(spec.dtype).newbyteorder("<")
        codecs = getattr(array.metadata, "codecs", ())
        self._is_plain = _are_plain(codecs)
        self._inner_rows = _inner_rows(codecs, spec)

    def decode(self, raw: bytes, key: str) -> Array:
        """Return the values of a chunk from all its bytes; ValueError or RuntimeError if they are none."""
        if self._is_plain:
            return self._plain(raw, self._spec.chunks)
        if self._inner_rows:
            return self._shard(raw, self._inner_rows)
        return self._by_zarr(raw, key)

    def _plain(self, raw: bytes, shape: tuple[int, ...]) -> Array:
        values = np.frombuffer(zstd.decompress(_checked(raw)), dtype=self._dtype)
        if len(values) != prod(shape):
            raise ValueError(f"{len(values)} values instead of {prod(shape)}")
        return values.reshape(shape)

    def _shard(self, raw: bytes, inner_rows: int) -> Array:
        chunks = self._spec.chunks
        num_inner = chunks[0] // inner_rows
        index = np.frombuffer(_checked(raw[-16 * num_inner - _CRC_BYTES :]), dtype="<u8").reshape(num_inner, 2)
        out = np.zeros(chunks, dtype=self._dtype)
        for number, (offset, length) in enumerate(index.tolist()):
            if offset != _LEFT_OUT:
                rows = slice(number * inner_rows, (number + 1) * inner_rows)
                out[rows] = self._plain(raw[offset : offset + length], (inner_rows, *chunks[1:]))
        return out

    def _by_zarr(self, raw: bytes, key: str) -> Array:
        make = default_buffer_prototype()
        number = key.partition("/")[2]
        held = {**self._array.metadata.to_buffer_dict(make), number: make.buffer.from_bytes(raw)}
        start = int(number.split("/")[1]) * self._spec.chunks[0]
        array = zarr.open_array(MemoryStore(held), mode="r", zarr_format=3)
        return np.asarray(array[start : start + self._spec.chunks[0]])


def _checked(raw: bytes) -> bytes:
    """Return bytes without the CRC-32C behind them, which is theirs."""
    body, checksum = raw[:-_CRC_BYTES], raw[-_CRC_BYTES:]
    # The checksum of nothing is 0, so an empty file would match it.
    if not len(body) or google_crc32c.value(body) != int.from_bytes(checksum, "little"):
        raise ValueError("its checksum is wrong")
    return body


def _are_plain(codecs: Sequence[Any]) -> bool:
    return _are(codecs, BytesCodec, ZstdCodec, Crc32cCodec)


def _are(codecs: Sequence[Any], *known: type) -> bool:
    same = len(codecs) == len(known) and all(map(isinstance, codecs, known))
    return same and getattr(codecs[0].endian, "value", "little") == "little"


def _inner_rows(codecs: Sequence[Any], spec: layout.ArraySpec) -> int:
    """Return the rows of a shard's inner chunks; 0 for what is no shard as the format has them."""
    if len(codecs) != 1 or not isinstance(codecs[0], ShardingCodec):
        return 0
    codec = codecs[0]
    rows, *columns = codec.chunk_shape
    is_known = (
        _are_plain(codec.codecs)
        and _are(codec.index_codecs, BytesCodec, Crc32cCodec)
        and codec.index_location.value == "end"
        and tuple(columns) == spec.chunks[1:]
    )
    return rows if is_known else 0
