"""Which ids were seen before: exact for any number of ids, at 16 bytes each. Knows no records."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import BoolArray

_DIGEST_BYTES = 16
_NUM_PARTS = 64
"""Parts by the first byte of a digest: only one of them at a time exists twice, while it grows."""

Digests = npt.NDArray[np.bytes_]


class SeenIds:
    """Remembers ids by their 128-bit digests, in sorted arrays."""

    def __init__(self) -> None:
        self._parts = [_Part() for _ in range(_NUM_PARTS)]
        first_bytes = np.arange(1, _NUM_PARTS, dtype=np.uint8) * (256 // _NUM_PARTS)
        self._bounds = _as_digests(b"".join(bytes([byte]).ljust(_DIGEST_BYTES, b"\0") for byte in first_bytes.tolist()))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def num_bytes(self) -> int:
        """Memory that the digests take."""
        return sum(part.num_bytes for part in self._parts)

    def add(self, ids: Sequence[str]) -> BoolArray:
        """Remember ids; return for each whether it came before, in this call or an earlier one."""
        digests = _as_digests(b"".join(map(_digest, ids)))
        unique, first = np.unique(digests, return_index=True)
        cuts = [0, *np.searchsorted(unique, self._bounds).tolist(), len(unique)]
        is_new = np.zeros(len(ids), dtype=np.bool_)
        for part, start, stop in zip(self._parts, cuts, cuts[1:], strict=False):
            if start < stop:
                is_new[first[start:stop][part.add(unique[start:stop])]] = True
        return ~is_new


class _Part:
    """A large sorted array and a small one, which is merged into it now and then."""

    def __init__(self) -> None:
        self._merged = self._pending = _as_digests(b"")

    def __len__(self) -> int:
        return len(self._merged) + len(self._pending)

    @property
    def num_bytes(self) -> int:
        return self._merged.nbytes + self._pending.nbytes

    def add(self, digests: Digests) -> BoolArray:
        """Add sorted digests, no two alike; return which of them were not there."""
        is_new: BoolArray = ~(_are_in(digests, self._merged) | _are_in(digests, self._pending))
        self._pending = _merge(self._pending, digests[is_new])
        # Where growing the small array and growing the large one cost the same.
        if len(self._pending) ** 2 > len(self._merged) * len(digests):
            self._merged, self._pending = _merge(self._merged, self._pending), _as_digests(b"")
        return is_new


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _as_digests(raw: bytes) -> Digests:
    # Fixed-length byte strings compare byte by byte, and two of the same length are equal only if all bytes are.
    return np.frombuffer(raw, dtype=f"S{_DIGEST_BYTES}")


def _are_in(digests: Digests, known: Digests) -> BoolArray:
    if not len(known):
        return np.zeros(len(digests), dtype=np.bool_)
    return np.asarray(known[np.searchsorted(known, digests).clip(max=len(known) - 1)] == digests, dtype=np.bool_)


def _merge(known: Digests, more: Digests) -> Digests:
    return np.insert(known, np.searchsorted(known, more), more)
