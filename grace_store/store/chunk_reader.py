"""Read whole chunks of a signal's units fast, on any number of threads, each held against its unit's commit.

The digest is taken over the very bytes that are decoded, so a chunk is read once, and one that was copied from another
unit, whose own checksum is good, is not taken for data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grace_store.base.arrays import Array
from grace_store.base.errors import Corrupt
from grace_store.store import keys, layout
from grace_store.store.decode import decode_chunk
from grace_store.store.sealed import BODY, from_bytes, sealed_body

if TYPE_CHECKING:
    from grace_store.store.array_group import ArrayGroup

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
        raws = self._group.backend.read_all(keys.commit_key(self._signal, unit) for unit in units)
        return {unit: self._digests(unit, raw) for unit, raw in zip(units, raws, strict=True)}

    def _digests(self, unit: int, raw: bytes | None) -> Digests:
        key = keys.commit_key(self._signal, unit)
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
        return self.decoded(spec.name, unit, raw)

    def decoded(self, name: str, unit: int, raw: bytes) -> Array:
        """Return the chunk of an array and unit from its bytes, whose digest is known to be the commit's."""
        spec = self._group.specs[name]
        self._group[name]  # raises unless the array's codecs are those that are undone here
        try:
            chunk = decode_chunk(raw, spec)
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            where = f"{self._group.path}/{keys.chunk_key(name, len(spec.dims), unit)}"
            raise self._broken(where, f"cannot be decoded ({error})") from error
        return chunk[: max(0, spec.shape[0] - unit * spec.chunks[0])]

    def _broken(self, key: str, what: str) -> Corrupt:
        where = self._group.backend.location
        return Corrupt(f"{where}: {key} {what}. Run `grace-store verify --deep`, then `grace-store repair`.")
