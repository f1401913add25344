"""Find benchmark items in the texts of samples: copies, parts, or the same words with other numbers. Knows no files."""

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
    """Row of the item's record in the benchmark."""
    question: str
    solution: str = ""
    """The solution in the form of a response; empty if there is none."""


class TextMatch(NamedTuple):
    """An item found in a sample."""

    item: int
    """Index of the item."""
    kind: TextKind
    """exact: the same characters except for spaces. ngram: the same runs of words. template: the same words with other
    numbers, so another question."""
    part: Part
    """The part of the item that was found."""
    share: float
    """Share of the part's runs of words that the sample contains."""
    where: str
    """Place in the sample: prompt, step 3 or answer."""
    passage: str
    """The sample's text at this place, shortened."""


class _SampleText:
    """A sample that may contain items. Properties that read the whole text are computed once, at first use."""

    def __init__(self, sample: Sample, parts: list[str], words: list[list[str]], length: int) -> None:
        self._sample, self._parts = sample, parts
        self.runs = TextRuns(words, length)

    @cached_property
    def _words_so_far(self) -> list[int]:
        return list(accumulate(len(words_of(without_notes(segment))) for segment in self._sample.segments))

    @cached_property
    def _plain(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """The plain text of each part, and the spans of its words."""
        return [(plain, word_spans(plain)) for plain in map(plain_text, self._parts)]

    @cached_property
    def one_line(self) -> dict[Part, set[str]]:
        """The texts that may be copies of a question or of a solution, with single spaces."""
        turns = {" ".join(turn.text.split()) for turn in self._sample.turns}
        return {"question": turns, "solution": {" ".join(self._sample.response.split())}}

    def place(self, found: Overlap) -> str:
        """Return the part of the sample in which an overlap begins: prompt, step N or answer."""
        if found.part < len(self._sample.turns):
            return "prompt"
        step = bisect_right(self._words_so_far, found.start)
        return "answer" if step >= self._sample.num_steps else f"step {step + 1}"

    def passage(self, found: Overlap) -> str:
        """Return the text from the first word of an overlap to the last."""
        plain, spans = self._plain[found.part]
        return excerpt(plain[spans[found.start][0] : spans[found.stop - 1][1]])


class TextMatcher:
    """Finds items in samples, block by block. Keeps the items in memory, not the samples."""

    def __init__(self, items: Sequence[Item], threshold: Threshold | None = None) -> None:
        self.items = items
        self.threshold = threshold or Threshold()
        self._passages: list[list[str]] = []
        for item in items:
            solution = words_of(without_notes(item.solution))
            # A short solution is only an answer, and other questions may have the same answer.
            is_long = len(solution) >= 2 * self.threshold.length - 1
            self._passages += [words_of(item.question), solution if is_long else []]
        self._index = PassageIndex(self._passages, self.threshold)

    @property
    def is_short(self) -> BoolArray:
        """Whether each item is found only as a whole turn: it is too short, or has only common runs of words."""
        return np.asarray(self._index.num_runs[:: len(PARTS)] == 0)

    def matches(self, samples: Sequence[Sample]) -> Iterator[tuple[int, TextMatch]]:
        """Yield the index of a sample and its strongest match with an item, for each item that a sample contains.

        If all matches of a sample are templates, only the nearest one is yielded.
        """
        parts = [[*(turn.text for turn in sample.turns), without_notes(sample.response)] for sample in samples]
        words = [[words_of(part) for part in each] for each in parts]
        for place, passages in groupby(self._index.candidates(words), key=lambda each: each[0]):
            text = _SampleText(samples[place], parts[place], words[place], self.threshold.length)
            best: dict[int, TextMatch] = {}
            for _, passage in passages:
                match = self._match(text, passage)
                if match is not None and (match.item not in best or _rank(match) < _rank(best[match.item])):
                    best[match.item] = match
            copies = [match for match in best.values() if match.kind != "template"]
            yield from ((place, match) for match in copies or sorted(best.values(), key=_rank)[:1])

    def _match(self, text: _SampleText, passage: int) -> TextMatch | None:
        """Classify a candidate by its words: copy, part or template; None if it does not match."""
        number, of = divmod(passage, len(PARTS))
        if (found := text.runs.overlap(self._passages[passage])) is None:
            return None
        kind: TextKind = "template" if found.num_other_numbers else "ngram"
        item = self.items[number]
        item_text = item.solution if of else item.question
        if found.share == 1 and " ".join(item_text.split()) in text.one_line[PARTS[of]]:
            kind = "exact"
        return TextMatch(number, kind, PARTS[of], found.share, text.place(found), text.passage(found))


def _rank(match: TextMatch) -> tuple[int, float]:
    return _STRONGEST.index(match.kind), -match.share


def excerpt(text: str) -> str:
    """Return a text on one line; the middle of a long text is left out."""
    line = " ".join(text.split())
    half = PASSAGE_CHARS // 2
    return line if len(line) <= PASSAGE_CHARS else f"{line[:half]} ... {line[-half:]}"
