"""Where a response can be cut so that its parts, tokenised by themselves, have the tokens of the whole."""

from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from grace_store.base.arrays import IntArray
from grace_store.data.sample import Sample
from grace_store.model.inputs.tokens import place_of_tokens, segment_of_places, with_plain_offsets
from grace_store.model.load.weights import describe_model


class TokenCuts:
    """Cuts responses at their segments' first tokens, as a model's tokenizer makes them.

    Where that would change tokens (some tokenizers take two line ends for one token only if nothing follows), tokens of
    white space go with the segment after them.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._backend = with_plain_offsets(tokenizer)
        self.num_unlike = 0
        """Samples whose parts have other tokens than the whole, wherever they are cut."""

    @classmethod
    def of_model(cls, model: str) -> Self:
        """Return the cuts of a model's tokenizer; its weights are not loaded."""
        return cls(describe_model(model).tokenizer)

    def __call__(self, sample: Sample) -> list[int]:
        """Return where the parts of a response begin, one for each segment, and where the last one ends."""
        text = sample.response
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids, offsets = encoding.ids, np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        segment = segment_of_places(place_of_tokens(text, offsets[:, 0], offsets[:, 1]), sample.bounds)
        cuts, made, taken = [0], [], 0
        for number in range(1, len(sample.bounds) - 1):
            first = int(np.searchsorted(segment, number))
            token = next(self._places_to_cut(text, ids, offsets, (taken, first)), first)
            cuts.append(int(offsets[token, 0]) if token < len(ids) else len(text))
            made += self._ids(text[cuts[-2] : cuts[-1]])
            taken = token
        cuts.append(len(text))
        self.num_unlike += made + self._ids(text[cuts[-2] :]) != ids
        return cuts

    def _places_to_cut(self, text: str, ids: list[int], offsets: IntArray, tokens: tuple[int, int]) -> Iterator[int]:
        """Yield the tokens before which the text can be cut, so that what lies between two cuts keeps its tokens.

        Two tokens are given: the first one after the last cut, and the first one of the next segment. The latter is
        tried first, then those before it, as long as they are white space.
        """
        start, token = tokens
        while token > start:
            stop = int(offsets[token, 0]) if token < len(ids) else len(text)
            if self._ids(text[int(offsets[start, 0]) : stop]) == ids[start:token]:
                yield token
            token -= 1
            if text[int(offsets[token, 0]) : int(offsets[token, 1])].strip():
                return

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return found
