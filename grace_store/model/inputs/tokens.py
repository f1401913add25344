"""From text to tokens, and which segment each token belongs to. Knows nothing of models or devices."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from grace_store.base.arrays import IntArray
from grace_store.base.states import Reason, Unusable
from grace_store.model.inputs.render import RenderedSample

NO_SEGMENT = -1
_SPACES = np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)


@dataclass(frozen=True, slots=True)
class TokenizedSample:
    """A sample's tokens. Token 0 is never in a segment: nothing predicts it."""

    ids: IntArray
    segment: IntArray
    """The segment of each token, or NO_SEGMENT."""
    num_segments: int
    token_inputs: dict[str, IntArray] = field(default_factory=dict)
    """What else the model is given of every token, by the name of its argument."""

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens before the one that predicts the first of a segment."""
        return max(0, int(np.argmax(self.segment >= 0)) - 1)

    def tokens_per_segment(self) -> IntArray:
        return np.bincount(self.segment[self.segment >= 0], minlength=self.num_segments)

    def cut(self, place: int) -> tuple["TokenizedSample", "TokenizedSample"]:
        """Return the tokens before a place, which are in no segment, and those from there on."""
        before = {name: values[:place] for name, values in self.token_inputs.items()}
        after = {name: values[place:] for name, values in self.token_inputs.items()}
        return (
            TokenizedSample(self.ids[:place], self.segment[:place], 0, before),
            TokenizedSample(self.ids[place:], self.segment[place:], self.num_segments, after),
        )


class SampleTokenizer:
    """Turns rendered samples into tokens with segments. Safe to use from several threads."""

    def __init__(
        self, tokenizer: Any, *, add_special_tokens: bool, include_eos: bool, max_length: int, vocab_size: int
    ) -> None:
        self._backend = with_plain_offsets(tokenizer)
        self._add_special_tokens = add_special_tokens
        self._include_eos = include_eos
        self._max_length = max_length
        self._vocab_size = vocab_size
        self._marker_ids = _marker_ids(tokenizer)

    def has_marker(self, text: str) -> bool:
        """Tell whether a text holds a token that could end a turn."""
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return bool(np.isin(ids, self._marker_ids).any())

    def tokenize(self, samples: Sequence[RenderedSample]) -> list[TokenizedSample | Unusable]:
        """Return each sample's tokens, or why it has none that can be used."""
        texts = [sample.text if _is_unicode(sample.text) else "" for sample in samples]
        encodings = self._backend.encode_batch(texts, add_special_tokens=self._add_special_tokens)
        return [self._finish(sample, encoding) for sample, encoding in zip(samples, encodings, strict=True)]

    def _finish(self, sample: RenderedSample, encoding: Any) -> TokenizedSample | Unusable:
        if not _is_unicode(sample.text):
            return Unusable(Reason.BAD_TEXT, "the text holds half of a surrogate pair")
        ids = np.asarray(encoding.ids, dtype=np.int64)
        if len(ids) > self._max_length:
            return Unusable(Reason.TOO_LONG, f"{len(ids)} tokens, at most {self._max_length}")
        largest = int(ids.max(initial=0))
        if largest >= self._vocab_size:
            return Unusable(Reason.BAD_TEXT, f"token {largest} is not among the model's {self._vocab_size}")
        span = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        place = place_of_tokens(sample.text, span[:, 0], span[:, 1])
        segment = segment_of_places(place, sample.bounds)
        # Tokens that stand for no text: the tokenizer's own beginning and end.
        segment[np.asarray(encoding.special_tokens_mask, dtype=np.bool_)] = NO_SEGMENT
        if self._include_eos:
            ends = np.flatnonzero((place >= sample.bounds[-1]) & np.isin(ids, self._marker_ids))
            # The first only: what follows the end of a turn is the template's, not the model's.
            segment[ends[:1]] = len(sample.bounds) - 2
        segment[:1] = NO_SEGMENT
        made = TokenizedSample(ids, segment, len(sample.bounds) - 1)
        empty = np.flatnonzero(made.tokens_per_segment() == 0)
        if len(empty):
            name = "the answer" if empty[0] == made.num_segments - 1 else f"step {empty[0] + 1}"
            return Unusable(Reason.SEGMENT_WITHOUT_TOKEN, f"{name} has no token of its own")
        return made


def place_of_tokens(text: str, start: IntArray, stop: IntArray) -> IntArray:
    """Return the character that says where each token belongs: its first that is no space, else its first."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    visible = np.where(np.isin(codes, _SPACES), len(codes), np.arange(len(codes)))
    next_visible = np.append(np.minimum.accumulate(visible[::-1])[::-1], len(codes))
    place = next_visible[start]
    return np.where(place < stop, place, start)


def segment_of_places(place: IntArray, bounds: Sequence[int]) -> IntArray:
    """Return the segment that holds each character, NO_SEGMENT outside the bounds."""
    segment = np.searchsorted(np.asarray(bounds), place, side="right") - 1
    return np.where(segment < len(bounds) - 1, segment, NO_SEGMENT)


def with_plain_offsets(tokenizer: Any) -> Tokenizer:
    """Return a tokenizer of our own that gives the same ids and offsets with their spaces.

    Byte-level tokenizers can trim offsets, and then a token of spaces has none. A copy also keeps calls from
    other threads from changing its padding and truncation under us.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["truncation"] = state["padding"] = None
    _stop_trimming(state.get("post_processor"))
    backend = Tokenizer.from_str(json.dumps(state))
    backend.encode_special_tokens = bool(tokenizer.split_special_tokens)
    return backend


def _stop_trimming(node: Any) -> None:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        _stop_trimming(child)
    if isinstance(node, dict) and "trim_offsets" in node:
        node["trim_offsets"] = False


def _marker_ids(tokenizer: Any) -> IntArray:
    added = {index for index, token in tokenizer.added_tokens_decoder.items() if token.content.strip()}
    if tokenizer.eos_token_id is not None:
        added.add(tokenizer.eos_token_id)
    return np.array(sorted(added), dtype=np.int64)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
