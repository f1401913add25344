"""Find items of benchmarks in texts of samples: copies, parts, or the same words with other numbers. Knows no files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, groupby
from typing import Literal, NamedTuple

import numpy as np

from grace_store.base.arrays import BoolArray
from grace_store.data.answers import without_notes
from grace_store.data.passages import Overlap, PassageIndex, TextRuns, Threshold
from grace_store.data.sample import Sample
from grace_store.data.words import plain_text, word_spans, words_of

TextKind = Literal["exact", "ngram", "template"]
Part = Literal["question", "solution"]
PARTS: tuple[Part, ...] = ("question", "solution")
PASSAGE_CHARS = 400
_STRONGEST: tuple[TextKind, ...] = ("exact", "ngram", "template")


class Item(NamedTuple):
    """One item of a benchmark."""

    item_id: str
    row: int
    """Of its record in the benchmark."""
    question: str
    solution: str = ""
    """As a response would have it; empty if there is none."""


class TextMatch(NamedTuple):
    """An item found in a sample."""

    item: int
    """Its place among the items."""
    kind: TextKind
    """exact: the same characters but for spacing. ngram: the same runs of words. template: the same with other numbers,
    which is another question."""
    part: Part
    """What of the item it is."""
    share: float
    """Of the part's runs of words that the sample has."""
    where: str
    """What of the sample it is in: prompt, step 3, answer."""
    passage: str
    """What the sample has there, shortened."""


def _parts_of(sample: Sample) -> list[str]:
    """Return what is compared of a sample: its turns, then its response."""
    return [*(turn.text for turn in sample.turns), without_notes(sample.response)]


class _SampleText:
    """A sample that may hold items. Work that reads the whole text is done once, when it is first needed."""

    def __init__(self, sample: Sample, parts: list[str], words: list[list[str]], length: int) -> None:
        self._sample, self._parts = sample, parts
        self.runs = TextRuns(words, length)

    @cached_property
    def _words_so_far(self) -> list[int]:
        """Number of words up to the end of each segment."""
        return list(accumulate(len(words_of(without_notes(segment))) for segment in self._sample.segments))

    @cached_property
    def _plain(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """The plain text of each part, and where its words are."""
        return [(plain, word_spans(plain)) for plain in map(plain_text, self._parts)]

    @cached_property
    def _one_line(self) -> dict[Part, set[str]]:
        """Texts that may be copies of a question or of a solution, with single spaces."""
        turns = {" ".join(turn.text.split()) for turn in self._sample.turns}
        return {"question": turns, "solution": {" ".join(self._sample.response.split())}}

    def place(self, found: Overlap) -> str:
        """Say in which part of the sample something begins."""
        if found.part < len(self._sample.turns):
            return "prompt"
        step = bisect_right(self._words_so_far, found.start)
        return "answer" if step >= self._sample.num_steps else f"step {step + 1}"

    def passage(self, found: Overlap) -> str:
        """Return the text from the first word found to the last."""
        plain, spans = self._plain[found.part]
        return excerpt(plain[spans[found.start][0] : spans[found.stop - 1][1]])

    def is_copy(self, text: str, part: Part) -> bool:
        """Whether a turn is a question, or the response a solution, in the same characters but for spacing."""
        return " ".join(text.split()) in self._one_line[part]


class TextMatcher:
    """Finds items in samples, block by block; it keeps the items in memory, not the samples."""

    def __init__(self, items: Sequence[Item], threshold: Threshold | None = None) -> None:
        self.items = items
        self.threshold = threshold or Threshold()
        self._passages = [words for item in items for words in self._item_words(item)]
        self._index = PassageIndex(self._passages, self.threshold)

    def _item_words(self, item: Item) -> tuple[list[str], list[str]]:
        solution = words_of(without_notes(item.solution))
        # A bare answer says nothing: it may be that of any question.
        return words_of(item.question), solution if len(solution) >= 2 * self.threshold.length - 1 else []

    @property
    def is_short(self) -> BoolArray:
        """Which items are found only as the whole of a turn: too short, or made of common runs of words alone."""
        return np.asarray(self._index.num_runs[:: len(PARTS)] == 0)

    def matches(self, samples: Sequence[Sample]) -> Iterator[tuple[int, TextMatch]]:
        """Yield the places of samples that have an item, and the strongest match with it, in their order.

        If a sample has no copy, but matches the words of several items with other numbers, only the nearest is yielded.
        """
        parts = [_parts_of(sample) for sample in samples]
        words = [[words_of(part) for part in each] for each in parts]
        found = self._index.candidates(words)
        for place, passages in groupby(found, key=lambda each: each[0]):
            text = _SampleText(samples[place], parts[place], words[place], self.threshold.length)
            best: dict[int, TextMatch] = {}
            for _, passage in passages:
                match = self._match(text, passage)
                if match is not None and (match.item not in best or _rank(match) < _rank(best[match.item])):
                    best[match.item] = match
            yield from ((place, match) for match in _copies_or_nearest(list(best.values())))

    def _match(self, text: _SampleText, passage: int) -> TextMatch | None:
        """Classify a candidate by its words: copy, part or template; None if it is no match."""
        number, of = divmod(passage, len(PARTS))
        found = text.runs.overlap(self._passages[passage])
        if found is None:
            return None
        kind: TextKind = "template" if found.num_other_numbers else "ngram"
        item = self.items[number]
        if found.share == 1 and text.is_copy(item.solution if of else item.question, PARTS[of]):
            kind = "exact"
        return TextMatch(number, kind, PARTS[of], found.share, text.place(found), text.passage(found))


def _copies_or_nearest(matches: list[TextMatch]) -> list[TextMatch]:
    copies = [match for match in matches if match.kind != "template"]
    return copies or sorted(matches, key=_rank)[:1]


def _rank(match: TextMatch) -> tuple[int, float]:
    return _STRONGEST.index(match.kind), -match.share


def excerpt(text: str) -> str:
    """Return a text on one line, its middle left out if it is long."""
    line = " ".join(text.split())
    half = PASSAGE_CHARS // 2
    return line if len(line) <= PASSAGE_CHARS else f"{line[:half]} ... {line[-half:]}"
