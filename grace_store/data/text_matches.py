"""Items of benchmarks in the texts of samples: copied, copied in part, or with other numbers. Knows no files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Literal, NamedTuple

import numpy as np

from grace_store.base.arrays import BoolArray
from grace_store.data.final_answers import without_notes
from grace_store.data.passages import Overlap, PassageIndex, Threshold, overlap
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


@dataclass(frozen=True, slots=True)
class _SampleText:
    """A sample's turns, then its response, as the words that are compared."""

    sample: Sample
    parts: list[str]
    words: list[list[str]]

    @classmethod
    def of(cls, sample: Sample) -> _SampleText:
        parts = [*(turn.text for turn in sample.turns), without_notes(sample.response)]
        return cls(sample, parts, [words_of(part) for part in parts])

    def place(self, found: Overlap) -> str:
        """Say in which part of the sample something begins."""
        if found.part < len(self.sample.turns):
            return "prompt"
        counts = accumulate(len(words_of(without_notes(segment))) for segment in self.sample.segments)
        step = next((number for number, count in enumerate(counts) if count > found.start), self.sample.num_steps)
        return "answer" if step == self.sample.num_steps else f"step {step + 1}"

    def passage(self, found: Overlap) -> str:
        """Return the text from the first word found to the last."""
        plain = plain_text(self.parts[found.part])
        spans = word_spans(plain)
        return excerpt(plain[spans[found.start][0] : spans[found.stop - 1][1]])


class TextMatcher:
    """Finds items in samples, block by block; what it holds is that of the items."""

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

        Of a sample that has no copy of an item, but the words of several with other numbers, the nearest is told.
        """
        texts = [_SampleText.of(sample) for sample in samples]
        found = self._index.candidates([text.words for text in texts])
        for place, passages in groupby(found, key=lambda each: each.text):
            best: dict[int, TextMatch] = {}
            for _, passage in passages:
                match = self._match(texts[place], passage)
                if match is not None and (match.item not in best or _rank(match) < _rank(best[match.item])):
                    best[match.item] = match
            yield from ((place, match) for match in _copies_or_nearest(list(best.values())))

    def _match(self, text: _SampleText, passage: int) -> TextMatch | None:
        """Return what a candidate comes to when its words are looked at."""
        number, of = divmod(passage, len(PARTS))
        found = overlap(self._passages[passage], text.words, self.threshold.length)
        if found is None:
            return None
        kind: TextKind = "template" if found.num_other_numbers else "ngram"
        if found.share == 1 and self._is_exact(text, number, of):
            kind = "exact"
        return TextMatch(number, kind, PARTS[of], found.share, text.place(found), text.passage(found))

    def _is_exact(self, text: _SampleText, number: int, of: int) -> bool:
        item = self.items[number]
        wanted = item.solution if of else item.question
        parts = [turn.text for turn in text.sample.turns] if not of else [text.sample.response]
        return " ".join(wanted.split()) in (" ".join(part.split()) for part in parts)


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
