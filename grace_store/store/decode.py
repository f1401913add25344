"""Bytes of a whole chunk to its values, encoded as FORMAT.md says: zstd, then a CRC-32C; or a shard of such chunks.

Zarr's scheduler costs more than decoding, so whole chunks are decoded here. All that is wrong with bytes is a
ValueError, RuntimeError, IndexError or MemoryError; nothing makes more room than a chunk of ours needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
from numcodecs import zstd
from numcodecs.vlen import VLenUTF8

from grace_store.base.arrays import Array
from grace_store.store.zstd_frame import MAX_UNPACKED_BYTES, unpacked_size

if TYPE_CHECKING:
    from grace_store.store.layout import ArraySpec

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
