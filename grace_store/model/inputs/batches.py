"""Form batches of samples, with or without shared prompts, from their lengths alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LEAST_SAVED = 1 / 8
"""Smallest share of a group's tokens that sharing must save. Below it, batches of similar lengths are as fast."""
LOOK_BACK = 4
"""Largest ratio of the keys that a pass reads to batch_tokens, and of a batch's response tokens to batch_tokens."""


@dataclass(frozen=True, slots=True)
class LengthRule:
    """A rule for which lengths may share a batch: lengths with the same scale of positions."""

    switch: int | None = None
    """The shortest length with another scale of positions than shorter lengths; None if all have the same scale."""
    grows: bool = False
    """Whether every length from the switch on has its own scale."""
    alone: bool = False
    """Whether every sample is its own batch."""

    def kind_of(self, length: int) -> int:
        """Return the same number for all lengths that may share a batch; it rises with the length.

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
    """Return batches of positions, the longest samples first, each of at most batch_tokens tokens without padding.

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
    """Return batches of positions, the longest samples first, each of at most batch_tokens tokens with padding.

    A longer sample is its own batch.

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
            # The first sample is the longest, so it decides how many fit.
            room = max(1, batch_tokens // max(1, lengths[position]))
            batches.append([])
        batches[-1].append(position)
        room -= 1
    return batches


def _fits(rule: LengthRule, lengths: Sequence[int], batches: list[list[int]], position: int) -> bool:
    """Tell whether a sample may join the last batch; the first sample of a batch is its longest."""
    return bool(batches) and not rule.alone and rule.kind_of(lengths[batches[-1][0]]) == rule.kind_of(lengths[position])


class PromptLengths(NamedTuple):
    """The lengths of samples, by their positions in the unit."""

    prompt: Mapping[int, int]
    """Number of tokens of the prompt that can be shared."""
    response: Mapping[int, int]
    """Number of tokens after the shared part of the prompt."""


Groups = list[list[int]]
"""Positions of samples: those of each group with one prompt, or those of each pass of responses."""


def form_shared(groups: Iterable[Sequence[int]], lengths: PromptLengths, batch_tokens: int) -> list[Groups]:
    """Return batches of the groups that are worth sharing, the longest prompts first.

    The prompts of a batch, and each pass of responses, have at most batch_tokens tokens with padding. A longer prompt
    is not shared, and a longer response is its own pass.

    >>> lengths = PromptLengths({0: 9, 1: 9, 2: 9, 5: 9}, {0: 3, 1: 5, 2: 4, 5: 3})
    >>> form_shared([[0, 1, 5], [2]], lengths, 10)
    [[[0, 1, 5]]]
    >>> form_passes([[0, 1, 5]], lengths, 10)
    [[1, 0], [5]]
    """
    fitting = [group for group in groups if lengths.prompt[group[0]] < batch_tokens]
    worth = [group for group in fitting if _saves(group, lengths)]
    pieces = [piece for group in worth for piece in _pieces(group, lengths, LOOK_BACK * batch_tokens)]
    pieces.sort(key=lambda piece: (-lengths.prompt[piece[0]], piece[0]))
    return _fill(pieces, lengths, batch_tokens)


def form_passes(groups: Groups, lengths: PromptLengths, pass_tokens: int) -> Groups:
    """Return the passes of the groups' responses, the longest first, of at most pass_tokens tokens with padding."""
    longest_prompt = max(lengths.prompt[group[0]] for group in groups)
    passes: list[list[int]] = []
    room = 0
    for position in sorted((i for group in groups for i in group), key=lambda i: (-lengths.response[i], i)):
        if room == 0:
            # The first sample is the longest, so it decides how many fit.
            length = max(1, lengths.response[position])
            room = max(1, min(pass_tokens // length, LOOK_BACK * pass_tokens // (longest_prompt + length)))
            passes.append([])
        passes[-1].append(position)
        room -= 1
    return passes


def _saves(members: Sequence[int], lengths: PromptLengths) -> bool:
    """Tell whether a group is worth sharing its prompt.

    >>> [_saves([0, 1], PromptLengths({0: 2, 1: 2}, {0: rest, 1: rest})) for rest in (6, 7)]
    [True, False]
    """
    prompt = lengths.prompt[members[0]]
    return (len(members) - 1) * prompt >= LEAST_SAVED * sum(prompt + lengths.response[i] for i in members)


def _pieces(members: Sequence[int], lengths: PromptLengths, most: int) -> list[list[int]]:
    """Split a group into pieces with at most most response tokens each; a single sample may have more.

    >>> _pieces([0, 1, 2], PromptLengths({}, {0: 5, 1: 4, 2: 3}), 9)
    [[0, 1], [2]]
    """
    pieces: list[list[int]] = [[]]
    taken = 0
    for position in members:
        if pieces[-1] and taken + lengths.response[position] > most:
            pieces.append([])
            taken = 0
        pieces[-1].append(position)
        taken += lengths.response[position]
    return pieces


def _fill(pieces: Sequence[list[int]], lengths: PromptLengths, batch_tokens: int) -> list[list[list[int]]]:
    """Put pieces into batches, the longest prompts first; a prompt has at least half the length of the first one.

    >>> lengths = PromptLengths({0: 9, 2: 8, 4: 4}, dict.fromkeys(range(6), 1))
    >>> _fill([[0, 1], [2, 3], [4, 5]], lengths, 30)
    [[[0, 1], [2, 3]], [[4, 5]]]
    """
    batches: list[list[list[int]]] = []
    longest = taken = 0
    for piece in pieces:
        prompt, responses = lengths.prompt[piece[0]], sum(lengths.response[i] for i in piece)
        full = not batches or (len(batches[-1]) + 1) * longest > batch_tokens or 2 * prompt < longest
        if full or taken + responses > LOOK_BACK * batch_tokens:
            batches.append([])
            longest, taken = prompt, 0
        batches[-1].append(piece)
        taken += responses
    return batches
