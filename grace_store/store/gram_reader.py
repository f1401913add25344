"""Read Grams and token counts of many units fast, on any number of threads; never a vector.

A chunk that scoring needs is small and Zarr's scheduler costs more than decoding it, so chunks are decoded here, as
FORMAT.md says they are encoded: zstd, then a CRC-32C. An array with other codecs is read through zarr. Each chunk is
held against the digest in its unit's commit: one that was copied from another unit has a good checksum of its own.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import zstd
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

from grace_store.base.arrays import Array, Float32Array, Int32Array, IntArray
from grace_store.base.errors import Corrupt, SettingError
from grace_store.base.states import STATE_DONE
from grace_store.store import layout
from grace_store.store.opened import SignalView
from grace_store.store.sealed import BODY, from_bytes, sealed_body

_CRC_BYTES = 4
_CODECS = (BytesCodec, ZstdCodec, Crc32cCodec)


@dataclass(frozen=True, slots=True)
class SampleGrams:
    """What scoring needs of some done samples, in order; Grams and segments lie flat, K + 1 segments to a sample."""

    sample: IntArray
    """Positions in the plan."""
    num_steps: IntArray
    gram: Float32Array
    """Packed as in the store; empty unless asked for."""
    num_tokens: Int32Array
    loss: Float32Array
    """Mean loss of each segment; empty unless asked for."""


class GramReader:
    """Reads one signal. Threads may share it."""

    def __init__(self, view: SignalView, *, gram: bool = True, loss: bool = False) -> None:
        if view.per_sample:
            raise SettingError(
                f"Signal {view.name!r} of {view.store.location} has one vector a sample, so there are no steps to "
                "compare. It is for --method less, icons or cadc; `extract --kind gradient --per segment` makes one "
                "with steps."
            )
        self._view = view
        self._plan = view.store.plan
        self._gram = gram
        self._loss = loss
        self._specs = {spec.name: spec for spec in view.arrays}
        self._is_plain = {name: self._has_known_codecs(name) for name in self._names()}

    def _names(self) -> list[str]:
        wanted = {"sample_gram": self._gram, "segment_loss": self._loss}
        return ["sample_state", "segment_num_tokens", *(name for name, asked in wanted.items() if asked)]

    def _has_known_codecs(self, name: str) -> bool:
        codecs = getattr(self._view.array(name).metadata, "codecs", ())
        return len(codecs) == len(_CODECS) and all(map(isinstance, codecs, _CODECS))

    def read(self, units: Sequence[int], num_steps: npt.NDArray[np.integer[Any]]) -> SampleGrams:
        """Return the done samples of committed units; num_steps is K of all samples of these units, done or not."""
        commits = self._view.store.backend.read_all(layout.commit_key(self._view.name, unit) for unit in units)
        committed = {unit: self._committed_digests(unit, raw) for unit, raw in zip(units, commits, strict=True)}
        num_segments = num_steps.astype(np.int64) + 1
        ranges = [self._plan.unit_range(unit) for unit in units]
        sample = np.concatenate([np.zeros(0, np.int64), *(np.arange(*each) for each in ranges)])
        done = self._joined("sample_state", units, [stop - start for start, stop in ranges], committed) == STATE_DONE
        bounds = np.cumsum([0, *(stop - start for start, stop in ranges)])
        rows = _sums(num_segments, bounds)
        num_packed = layout.num_packed(num_segments)
        gram = loss = np.zeros(0, np.float32)
        if self._gram:
            gram = self._joined("sample_gram", units, _sums(num_packed, bounds), committed)
        if self._loss:
            loss = self._joined("segment_loss", units, rows, committed)
        num_tokens = self._joined("segment_num_tokens", units, rows, committed)
        if done.all():
            return SampleGrams(sample, num_segments - 1, gram, num_tokens, loss)
        segment_done = np.repeat(done, num_segments)
        return SampleGrams(
            sample[done],
            num_segments[done] - 1,
            gram[np.repeat(done, num_packed)] if self._gram else gram,
            num_tokens[segment_done],
            loss[segment_done] if self._loss else loss,
        )

    def _joined(
        self, name: str, units: Sequence[int], lengths: Sequence[int], committed: Mapping[int, dict[str, Any]]
    ) -> Array:
        """Return the beginnings of units' chunks, one after the other."""
        spec = self._specs[name]
        out = np.empty(sum(lengths), dtype=spec.dtype)
        chunks: Iterator[Array]
        if self._is_plain[name]:
            keys = [layout.chunk_key(name, len(spec.dims), unit) for unit in units]
            raws = self._view.store.backend.read_all(f"{self._view.key}/{key}" for key in keys)
            digests = (committed[unit].get(key, {}) for unit, key in zip(units, keys, strict=True))
            chunks = map(self._chunk, itertools.repeat(spec), keys, raws, digests)
        else:
            chunks = (self._view.unit_array(name, unit) for unit in units)
        start = 0
        for chunk, length in zip(chunks, lengths, strict=True):
            out[start : start + length] = chunk[:length]
            start += length
        return out

    def _committed_digests(self, unit: int, raw: bytes | None) -> dict[str, Any]:
        """Return {chunk: its size and digest} as a unit's commit says. Only its seal is checked; verify does more."""
        key = layout.commit_key(self._view.name, unit)
        try:
            commit = from_bytes(raw, key)
            sealed_body(commit, key)
            return dict(commit[BODY]["chunks"])
        except (Corrupt, KeyError, TypeError, ValueError) as error:
            raise self._broken(key, "cannot be read") from error

    def _chunk(self, spec: layout.ArraySpec, name: str, raw: bytes | None, committed: dict[str, Any]) -> Array:
        """Return the values of a chunk, by its key below the signal's, that is what its unit's commit says."""
        key = f"{self._view.key}/{name}"
        if raw is None:
            raise self._broken(key, "is missing")
        if len(raw) <= _CRC_BYTES:  # the checksum of nothing is 0, so an empty file would match it
            raise self._broken(key, f"has only {len(raw)} bytes")
        body = raw[:-_CRC_BYTES]
        if google_crc32c.value(body) != int.from_bytes(raw[-_CRC_BYTES:], "little"):
            raise self._broken(key, "does not match its checksum")
        try:
            chunk = np.frombuffer(zstd.decompress(body), dtype=np.dtype(spec.dtype).newbyteorder("<"))
        except (RuntimeError, ValueError) as error:
            raise self._broken(key, f"cannot be decoded ({error})") from error
        if len(chunk) != spec.chunks[0]:
            raise self._broken(key, f"holds {len(chunk)} values instead of {spec.chunks[0]}")
        if hashlib.sha256(raw).hexdigest() != committed.get("sha256"):
            raise self._broken(key, "is not the chunk that was committed")
        return chunk

    def _broken(self, key: str, what: str) -> Corrupt:
        return Corrupt(
            f"{self._view.store.location}: {key} {what}. Run `grace-store verify --deep`, then `grace-store repair`."
        )


def _sums(counts: IntArray, bounds: IntArray) -> list[int]:
    """Return the sums of counts between neighbouring bounds."""
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    sums: list[int] = np.diff(total[bounds]).tolist()
    return sums
