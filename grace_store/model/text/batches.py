"""Which samples share a forward pass. A pure function of lengths."""

from __future__ import annotations

from collections.abc import Sequence


def form_packs(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Return batches of positions, the longest first, each of at most batch_tokens tokens without any padding.

    >>> form_packs([3, 9, 4, 4], 8)
    [[1], [2, 3], [0]]
    """
    packs: list[list[int]] = []
    room = 0
    for position in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not packs or lengths[position] > room:
            packs.append([])
            room = batch_tokens
        packs[-1].append(position)
        room -= lengths[position]
    return packs


def form_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Return batches of positions, the longest first, each of at most batch_tokens tokens with its padding.

    A sample longer than that is a batch by itself.

    >>> form_batches([3, 9, 4, 4], 8)
    [[1], [2, 3], [0]]
    """
    batches: list[list[int]] = []
    room = 0
    for position in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if room == 0:
            # The first is the longest, so it says how many fit beside it.
            room = max(1, batch_tokens // max(1, lengths[position]))
            batches.append([])
        batches[-1].append(position)
        room -= 1
    return batches
