"""How much a zstd frame says it unpacks to, before anybody makes room for it (RFC 8878, section 3.1.1.1)."""

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
