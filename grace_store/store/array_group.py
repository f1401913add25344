"""The arrays of one Zarr group, open for reading and held against what the plan implies. Knows no units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr
from zarr.errors import ArrayNotFoundError

from grace_store.base.arrays import Array
from grace_store.base.errors import Corrupt, UnknownName
from grace_store.store import keys, layout
from grace_store.store.backend import Backend
from grace_store.store.decode import decode_chunk
from grace_store.store.zarr_view import missing_chunk


class ArrayGroup:
    """Arrays of a Zarr group, opened when first asked for; keep_chunks keeps the chunk of each that was read last."""

    def __init__(
        self, backend: Backend, path: str, arrays: Sequence[layout.ArraySpec], *, keep_chunks: bool = False
    ) -> None:
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
                array = zarr.open_array(self.backend.zarr_store(), path=f"{self.path}/{name}", mode="r", zarr_format=3)
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
        key = f"{self.path}/{keys.chunk_key(name, len(spec.dims), number)}"
        if (raw := self.backend.read(key)) is None:
            raise missing_chunk(self.backend, key)
        try:
            return decode_chunk(raw, spec)
        except (ValueError, RuntimeError, IndexError, MemoryError) as error:
            raise self._damaged(name, f"chunk {number}", error) from error

    def _damaged(self, name: str, what: str, error: Exception) -> Corrupt:
        return Corrupt(
            f"{self.backend.location}: {what} of {self.path}/{name} cannot be read ({error}). "
            "Run `grace-store verify --deep`, then `grace-store repair`."
        )


def _has_codecs(array: zarr.Array[Any], spec: layout.ArraySpec) -> bool:
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
