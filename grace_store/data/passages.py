"""Find known passages in texts, whole or in part, by runs of n words. Knows no samples and no files.

The index holds the passages as 64-bit hashes of their runs of words. Texts come in blocks and are hashed in NumPy.
`TextRuns` compares the words of each candidate, so that a hash collision never makes a match.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import IntArray, aranges, offsets_of
from grace_store.data.words import is_number, without_numbers

Words = Sequence[str]
Run = tuple[str, ...]

DEFAULT_NGRAM = 5
DEFAULT_SHARE = 0.3
"""Measured by `python -m jobs.contamination`: with these values no training trace of GSM8K (7,473) has a test item."""
COMMON_SHARE = 0.01
COMMON_PASSAGES = 10
"""A run of words in more than this number, and more than this share, of all passages is a common phrase (such as an
instruction) and does not count."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SLOTS_PER_RUN = 32


def runs_of(words: Words, length: int) -> list[Run]:
    """Return the runs of length words, in order."""
    return list(zip(*(words[start:] for start in range(length)), strict=False))


@dataclass(frozen=True, slots=True)
class Threshold:
    """The least part of a passage that counts as found."""

    length: int = DEFAULT_NGRAM
    """Number of words in a run."""
    share: float = DEFAULT_SHARE
    """Share of the passage's runs."""

    def least(self, num_runs: int) -> int:
        """Return the least number of runs that must be found: the share, but at least length runs, or all if fewer."""
        return min(num_runs, max(self.length, int(np.ceil(self.share * num_runs - 1e-9))))


class PassageIndex:
    """Passages to look for.

    A passage that is shorter than a run, or has only common runs, is found only if it is a whole part of a text.
    Passages with the same words are stored once.
    """

    def __init__(self, passages: Sequence[Words], threshold: Threshold) -> None:
        self.threshold = threshold
        self._number: dict[str, int] = {}
        for word in chain.from_iterable(passages):
            self._number.setdefault(word, len(self._number) + 1)
        # 0 stands for every word that no passage has.
        digests = [hashlib.blake2b(word.encode(errors="surrogatepass"), digest_size=8) for word in self._number]
        self._hash = np.array([0, *(int.from_bytes(each.digest(), "little") for each in digests)], dtype=np.uint64)
        same: dict[Run, list[int]] = defaultdict(list)
        for place, words in enumerate(passages):
            same[tuple(words)].append(place)
        distinct, self._places = list(same), list(same.values())
        self._index(distinct)
        self._whole = {distinct[each]: each for each in np.flatnonzero(self._num_runs == 0).tolist() if distinct[each]}
        self._whole_lengths = frozenset(map(len, self._whole))

    @property
    def num_runs(self) -> IntArray:
        """Number of different runs of each passage that count; 0 for a passage that is found only as a whole."""
        counts = np.zeros(sum(map(len, self._places)), dtype=np.int64)
        for places, count in zip(self._places, self._num_runs.tolist(), strict=True):
            counts[places] = count
        return counts

    def _index(self, passages: Sequence[Words]) -> None:
        """Store the hashes of runs that are not common, and the passages of each run."""
        hashes, start = self._hashes(passages)
        owner = np.repeat(np.arange(len(passages)), np.diff(start))[_starts(start, self.threshold.length)]
        order = np.lexsort((owner, hashes))
        hashes, owner = hashes[order], owner[order]
        is_new = np.ones(len(hashes), dtype=np.bool_)
        is_new[1:] = (hashes[1:] != hashes[:-1]) | (owner[1:] != owner[:-1])
        run, count = np.unique(hashes[is_new], return_counts=True)
        is_common = count > max(COMMON_PASSAGES, COMMON_SHARE * len(passages))
        self._run, self._count = run[~is_common], count[~is_common]
        self._first = np.cumsum(self._count) - self._count
        self._owner = owner[is_new][~np.repeat(is_common, count)]
        self._num_runs = np.bincount(self._owner, minlength=len(passages)).astype(np.int64)
        self._least = np.array([self.threshold.least(each) for each in self._num_runs.tolist()], dtype=np.int64)
        bits = max(10, int(len(self._run) * _SLOTS_PER_RUN).bit_length())
        self._shift = np.uint64(64 - bits)
        self._is_taken = np.zeros(1 << bits, dtype=np.bool_)
        self._is_taken[self._run >> self._shift] = True

    def candidates(self, texts: Sequence[Sequence[Words]]) -> Iterator[tuple[int, int]]:
        """Yield (text, passage) for each passage that a text may contain, in order. No run crosses parts of a text."""
        parts = [part for text in texts for part in text]
        part_text = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        found = {*self._found_by_runs(parts, part_text)}
        for part, text in zip(parts, part_text.tolist(), strict=True):
            if len(part) in self._whole_lengths and (whole := self._whole.get(tuple(part))) is not None:
                found.add((text, whole))
        yield from sorted((text, place) for text, passage in found for place in self._places[passage])

    def _found_by_runs(self, parts: Sequence[Words], part_text: IntArray) -> list[tuple[int, int]]:
        hashes, start = self._hashes(parts)
        text_of = np.repeat(part_text, np.diff(start))[_starts(start, self.threshold.length)]
        maybe = np.flatnonzero(self._is_taken[hashes >> self._shift])
        run = np.searchsorted(self._run, hashes[maybe])
        is_run = run < len(self._run)
        is_run[is_run] = self._run[run[is_run]] == hashes[maybe[is_run]]
        # Each run counts once in a text, for every passage with this run.
        num_runs = max(1, len(self._run))
        text, run = np.divmod(np.unique(text_of[maybe[is_run]] * num_runs + run[is_run]), num_runs)
        count = self._count[run]
        passage = self._owner[aranges(count, self._first[run])]
        key, num_found = np.unique(np.repeat(text, count) * len(self._least) + passage, return_counts=True)
        enough = key[num_found >= self._least[key % len(self._least)]]
        return [divmod(each, len(self._least)) for each in enough.tolist()]

    def _hashes(self, parts: Sequence[Words]) -> tuple[npt.NDArray[np.uint64], IntArray]:
        """Return the hashes of all runs, part by part, and the index of the first word of each part."""
        start = offsets_of(np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)))
        get = self._number.get
        number = np.fromiter((get(word, 0) for part in parts for word in part), dtype=np.int64, count=int(start[-1]))
        word = self._hash[number]
        size = max(0, len(word) - self.threshold.length + 1)
        total = np.zeros(size, dtype=np.uint64)
        for place in range(self.threshold.length):
            total = total * _FACTOR + word[place : place + size]
        return total[_starts(start, self.threshold.length)], start


def _starts(start: IntArray, length: int) -> IntArray:
    """Return the indices of words where a run of this length begins and ends in the same part."""
    size = max(0, int(start[-1]) - length + 1)
    return np.flatnonzero(np.arange(size) + length <= np.repeat(start[1:], np.diff(start))[:size])


@dataclass(frozen=True, slots=True)
class Overlap:
    """The part of a passage that a text contains, by comparison of words."""

    share: float
    """Share of the passage's runs that the text contains; 1 for a whole passage."""
    num_other_numbers: int
    """Count of the passage's numbers that the text replaces by other numbers, between the same words."""
    part: int
    """The part of the text that contains most of the passage."""
    start: int
    stop: int
    """The range of words in this part from the first run found to the last."""


class TextRuns:
    """The runs of words of a text in parts. The text is read once for any number of passages."""

    def __init__(self, parts: Sequence[Words], length: int) -> None:
        self._parts, self._length = parts, length

    @cached_property
    def _places(self) -> dict[Run, list[tuple[int, int]]]:
        """The part and the start of each occurrence of a run."""
        places: dict[Run, list[tuple[int, int]]] = defaultdict(list)
        for number, part in enumerate(self._parts):
            for start, run in enumerate(runs_of(part, self._length)):
                places[run].append((number, start))
        return dict(places)

    @cached_property
    def _alike(self) -> dict[Run, set[Run]]:
        """The runs that become equal when all numbers are replaced by one symbol."""
        alike: dict[Run, set[Run]] = defaultdict(set)
        for part in self._parts:
            runs, masked = runs_of(part, self._length), runs_of(without_numbers(part), self._length)
            for run, same in zip(runs, masked, strict=True):
                alike[same].add(run)
        return dict(alike)

    def overlap(self, passage: Words) -> Overlap | None:
        """Return the overlap of the text with a passage; None if there is no overlap."""
        if not (wanted := set(runs_of(passage, self._length))):
            same = [place for place, part in enumerate(self._parts) if list(part) == list(passage)]
            return Overlap(1.0, 0, same[0], 0, len(passage)) if same and passage else None
        if not (found := wanted & self._places.keys()):
            return None
        starts: dict[int, list[int]] = defaultdict(list)
        for number, start in sorted(place for run in found for place in self._places[run]):
            starts[number].append(start)
        part = max(starts, key=lambda number: len(starts[number]))
        others = self._num_other_numbers(passage, found)
        return Overlap(len(found) / len(wanted), others, part, starts[part][0], starts[part][-1] + self._length)

    def _num_other_numbers(self, passage: Words, found: set[Run]) -> int:
        """Count the numbers of a passage that the text replaces by other numbers.

        A number is present if any run found contains it. It is replaced if no run found contains it, but the text has
        another run that equals a run around the number when all numbers are replaced by one symbol. At least half of
        such a run must be words.
        """
        length = self._length
        runs, alike = runs_of(passage, length), runs_of(without_numbers(passage), length)
        is_there = [False] * len(passage)
        is_around = [False] * len(passage)
        for start, (run, same) in enumerate(zip(runs, alike, strict=True)):
            if run in found:
                is_there[start : start + length] = [True] * length
            elif sum(map(is_number, run)) * 2 <= length and not self._alike.get(same, set()) <= found:
                is_around[start : start + length] = [True] * length
        return sum(is_number(word) and is_around[at] and not is_there[at] for at, word in enumerate(passage))
