"""Which samples share a forward pass, and which a prompt. A pure function of lengths."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LEAST_SAVED = 1 / 8
"""Share of a group's tokens that sharing must save: below it, batches of samples of like lengths are as fast."""
LOOK_BACK = 4
"""How many times as many tokens as it computes a pass may look back at, and a batch have in its responses."""


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


# ---------------------------------------------------------------- samples that share a prompt


class PromptLengths(NamedTuple):
    """What forming batches needs to know of samples, by their positions in the unit."""

    prompt: Mapping[int, int]
    """Tokens of the prompt that could be shared."""
    response: Mapping[int, int]
    """Tokens that follow these."""


Groups = list[list[int]]
"""The positions of each group's samples, whose prompts run together; or of each pass of their responses."""


def form_shared(groups: Iterable[Sequence[int]], lengths: PromptLengths, batch_tokens: int) -> list[Groups]:
    """Return batches of those groups that are worth it, the longest prompts first.

    Prompts and each pass of responses have at most batch_tokens tokens with their padding; a prompt that has more is
    not shared, and a response that has more is a pass by itself.

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
    """Return the passes of groups' responses, the longest first, each of at most pass_tokens tokens with padding."""
    longest_prompt = max(lengths.prompt[group[0]] for group in groups)
    members = sorted((i for group in groups for i in group), key=lambda i: (-lengths.response[i], i))
    passes: list[list[int]] = []
    room = 0
    for position in members:
        if room == 0:
            # The first is the longest, so it says how many fit beside it.
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
    """Return a group in pieces whose responses have at most so many tokens; one sample may have more.

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
    """Return pieces, the longest prompts first, in batches; no prompt is less than half as long as its batch's first.

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
