"""Which samples share a forward pass. A pure function of lengths."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LengthRule:
    """Which lengths may share a pass: those that the model places alike, whichever of them is the longest."""

    switch: int | None = None
    """The shortest length that the model computes otherwise than those below; None if it makes no difference."""
    grows: bool = False
    """Whether every length from there on is computed in a way of its own."""
    alone: bool = False
    """Whether every sample has a pass of its own."""

    def kind_of(self, length: int) -> int:
        """Return a number that lengths have in common that may share a pass; it rises with the length.

        >>> [LengthRule(9).kind_of(length) for length in (3, 8, 9, 20)]
        [0, 0, 9, 9]
        >>> [LengthRule(9, grows=True).kind_of(length) for length in (3, 8, 9, 20)]
        [0, 0, 9, 20]
        """
        if self.switch is None or length < self.switch:
            return 0
        return length if self.grows else self.switch


ANY_LENGTHS = LengthRule()
ONE_AT_A_TIME = LengthRule(alone=True)


def form_packs(lengths: Sequence[int], batch_tokens: int, rule: LengthRule = ANY_LENGTHS) -> list[list[int]]:
    """Return batches of positions, the longest first, each of at most batch_tokens tokens without any padding.

    >>> form_packs([3, 9, 4, 4], 8)
    [[1], [2, 3], [0]]
    """
    packs: list[list[int]] = []
    room = 0
    for position in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if lengths[position] > room or not _fits(rule, lengths, packs, position):
            packs.append([])
            room = batch_tokens
        packs[-1].append(position)
        room -= lengths[position]
    return packs


def form_batches(lengths: Sequence[int], batch_tokens: int, rule: LengthRule = ANY_LENGTHS) -> list[list[int]]:
    """Return batches of positions, the longest first, each of at most batch_tokens tokens with its padding.

    A sample longer than that is a batch by itself.

    >>> form_batches([3, 9, 4, 4], 8)
    [[1], [2, 3], [0]]
    >>> form_batches([3, 9, 4, 4], 30, LengthRule(4))
    [[1, 2, 3], [0]]
    >>> form_batches([3, 9, 4], 30, ONE_AT_A_TIME)
    [[1], [2], [0]]
    """
    batches: list[list[int]] = []
    room = 0
    for position in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if room == 0 or not _fits(rule, lengths, batches, position):
            # The first is the longest, so it says how many fit beside it.
            room = max(1, batch_tokens // max(1, lengths[position]))
            batches.append([])
        batches[-1].append(position)
        room -= 1
    return batches


def _fits(rule: LengthRule, lengths: Sequence[int], batches: list[list[int]], position: int) -> bool:
    """Tell whether a sample may share the pass of the batch begun last, whose first is its longest."""
    return bool(batches) and not rule.alone and rule.kind_of(lengths[batches[-1][0]]) == rule.kind_of(lengths[position])
