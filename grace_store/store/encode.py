"""Arrays to chunk bytes: zarr encodes into memory, so that writing bytes is somebody else's single job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zarr
from zarr.abc.buffer import Buffer
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from grace_store.base.arrays import Array
from grace_store.store.layout import ArraySpec

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
