"""Render a sample as the text that the model reads, and turn the text into tokens, each with its segment."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import zip_longest
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from grace_store.base.arrays import IntArray
from grace_store.base.errors import SettingError
from grace_store.base.settings import Rendering
from grace_store.base.states import Reason, Unusable
from grace_store.data.sample import ImageRef, Sample
from grace_store.model.inputs.bounded_process import BoundedTokenizer, LimitReached, TemplateFailed, render, text_of

NO_SEGMENT = -1
MAX_CHARACTERS = 2**16 - 1
"""Largest number of characters that the token table can give a token."""
_SPACES = np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)
_TODAY = datetime(2024, 7, 26)
"""The date for templates: vectors must not depend on the day of the extraction."""
_MARK = "gracestoremark"
Message = dict[str, Any]
_FIXED_DATE = {"strftime_now": _TODAY.strftime, "date_string": _TODAY.strftime("%d %b %Y")}


@dataclass(frozen=True, slots=True)
class RenderedSample:
    """A sample's text. Segment i is text[bounds[i]:bounds[i + 1]]; a template may have trimmed the response."""

    text: str
    bounds: tuple[int, ...]
    trimmed: tuple[int, int] = (0, 0)
    """Numbers of characters that the template left out at the start and at the end of the response."""


def resolve_rendering(requested: Rendering | None, tokenizer: Any) -> Rendering:
    """Return the requested rendering; by default the chat template if there is one, else plain text."""
    if requested is None:
        return "template" if tokenizer.chat_template else "plain"
    if requested != "plain" and not tokenizer.chat_template:
        raise SettingError(
            f"--rendering {requested} needs a chat template, but this tokenizer has none. Use --rendering plain."
        )
    return requested


class Renderer:
    """A renderer of samples as text in one way. Several threads may use it."""

    def __init__(
        self,
        tokenizer: Any,
        rendering: Rendering,
        *,
        system: str | None,
        text_only: bool,
        include_eos: bool,
        image_mark: str | None = None,
    ) -> None:
        """Prepare to render samples; image_mark is the text for an image, None for a model that reads only text."""
        self._tokenizer = tokenizer
        self._rendering = resolve_rendering(rendering, tokenizer)
        self._system = system
        self._text_only = text_only
        self._image_mark = image_mark
        self._as_parts = False
        """Whether the template takes a turn as a list of texts and images, rather than as one text."""
        if self._rendering == "plain":
            self.suffix = (tokenizer.eos_token or "") if include_eos else ""
            """The text after a response."""
            return
        try:
            self._template = tokenizer.get_chat_template()
        except ValueError as error:
            raise SettingError(f"The chat template cannot be read ({error}). Use --rendering plain.") from error
        self._shared = {"tools": None, "documents": None, **tokenizer.special_tokens_map, **_FIXED_DATE}
        if image_mark is not None:
            with suppress(SettingError):
                text = self._probed([{"role": "user", "content": [{"type": "text", "text": _MARK}]}])
                # A template for texts only writes the list as Python would.
                self._as_parts = _MARK in text and f"'{_MARK}'" not in text
        text = self._probed([self._message("user", ["?"]), self._message("assistant", [_MARK])])
        _, found, self.suffix = text.rpartition(_MARK)
        if not found:
            raise SettingError("The chat template leaves responses out. Use --rendering plain.")

    @property
    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer must add its own special tokens: templates usually write them.

        Templates of vision-language models may leave them to the processor.
        """
        if self._rendering == "plain" or self._image_mark is None:
            return self._rendering == "plain"
        bos = self._tokenizer.bos_token
        return not bos or not self._probed([self._message("user", ["?"])]).startswith(bos)

    def render(self, samples: Sequence[Sample]) -> list[RenderedSample | Unusable]:
        """Return each sample's text, or the reason why the sample is unusable."""
        conversations = [self._conversation(sample) for sample in samples]
        prompts: list[str | TemplateFailed] = []
        wholes: list[str | TemplateFailed] = []
        if self._rendering != "plain":
            prompts = self._apply(conversations, add_generation_prompt=True)
        if self._rendering == "template":
            answers = (self._message("assistant", [sample.response]) for sample in samples)
            wholes = self._apply([[*each, answer] for each, answer in zip(conversations, answers, strict=True)])
        return [self._rendered(*each) for each in zip_longest(samples, conversations, prompts, wholes)]

    def _conversation(self, sample: Sample) -> list[Message]:
        messages = [self._message(turn.role, turn.parts) for turn in sample.turns]
        if self._system is not None and not any(turn.role == "system" for turn in sample.turns):
            messages.insert(0, self._message("system", [self._system]))
        return messages

    def _rendered(
        self, sample: Sample, messages: Sequence[Message], prompt: str | TemplateFailed, whole: str | TemplateFailed
    ) -> RenderedSample | Unusable:
        if sample.images and not self._text_only and self._image_mark is None:
            return Unusable(
                Reason.NEEDS_VISION, f"the sample has {len(sample.images)} images, but the model reads only text"
            )
        if self._rendering == "plain":
            prompt = "".join(message["content"] + "\n" for message in messages)
        try:
            if self._rendering != "template":
                before = text_of(prompt)
                bounds = tuple(len(before) + bound for bound in sample.bounds)
                return RenderedSample(before + sample.response + self.suffix, bounds)
            return self._locate(sample, messages, text_of(prompt), text_of(whole))
        except Unusable as error:
            return error
        except TemplateFailed as error:
            return Unusable(
                Reason.TEMPLATE_REWRITES, f"the chat template refuses the conversation ({error}); try --rendering plain"
            )

    def _message(self, role: str, parts: Sequence[str | ImageRef]) -> Message:
        if self._text_only or self._image_mark is None:
            parts = [part for part in parts if isinstance(part, str)]
        if not self._as_parts:
            texts = (part if isinstance(part, str) else self._image_mark or "" for part in parts)
            return {"role": role, "content": "".join(texts)}
        content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts]
        return {"role": role, "content": content}

    def _apply(
        self, conversations: Sequence[Sequence[Message]], *, add_generation_prompt: bool = False
    ) -> list[str | TemplateFailed]:
        shared = {**self._shared, "add_generation_prompt": add_generation_prompt}
        return render(self._template, [{**shared, "messages": messages} for messages in conversations])

    def _one(self, messages: Sequence[Message]) -> str:
        return text_of(self._apply([messages])[0])

    def _probed(self, messages: Sequence[Message]) -> str:
        """Return the text of a few words; raise SettingError if the template cannot write them."""
        try:
            return self._one(messages)
        except (TemplateFailed, LimitReached) as error:
            why = error.said if isinstance(error, LimitReached) else error
            raise SettingError(
                f"The chat template cannot write a question and a response ({why}). Use --rendering plain."
            ) from error

    def _locate(self, sample: Sample, messages: Sequence[Message], prompt: str, whole: str) -> RenderedSample:
        """Return the rendered text with the bounds of the response, which the template may have trimmed."""
        earliest = _common_prefix(prompt, whole)
        if (found := _find(whole, sample.response, self.suffix, earliest)) is None:
            # The generation prompt may contain the beginning of the response, such as an opening thinking tag.
            earliest = min(earliest, _common_prefix(self._one(messages), whole))
            found = _find(whole, sample.response, self.suffix, earliest)
        if found is None:
            raise Unusable(
                Reason.TEMPLATE_REWRITES, "the chat template changes the response; --rendering verbatim keeps it"
            )
        kept, start = found
        trimmed = sample.response.index(kept)
        bounds = (min(max(bound - trimmed, 0), len(kept)) + start for bound in sample.bounds)
        return RenderedSample(whole, tuple(bounds), (trimmed, len(sample.response) - len(kept) - trimmed))


def _find(whole: str, response: str, suffix: str, earliest: int) -> tuple[str, int] | None:
    """Return the response, perhaps trimmed, and its index at or after earliest; None if it is not there."""
    forms = dict.fromkeys((response, response.rstrip(), response.lstrip(), response.strip()))
    for kept in filter(None, forms):
        # First look directly before the usual end: short responses also occur inside markers.
        start = len(whole) - len(suffix) - len(kept)
        if start >= earliest and whole.endswith(suffix) and whole.startswith(kept, start):
            return kept, start
    for kept in filter(None, forms):
        if (start := whole.rfind(kept, earliest)) >= 0:
            return kept, start
    return None


def _common_prefix(left: str, right: str) -> int:
    if right.startswith(left):
        return len(left)
    return next(i for i, (a, b) in enumerate(zip(left, right + "\0", strict=False)) if a != b)


@dataclass(frozen=True, slots=True)
class TokenizedSample:
    """A sample's tokens. Token 0 is never in a segment, because no token predicts it."""

    ids: IntArray
    segment: IntArray
    """The segment of each token, or NO_SEGMENT."""
    num_segments: int
    token_inputs: dict[str, IntArray] = field(default_factory=dict)
    """Further arguments of the model with one value per token, by name."""
    num_characters: IntArray | None = None
    """Characters of the response from each response token to the next; None if the token table cannot hold them."""

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens before the token that predicts the first token of a segment."""
        return max(0, int(np.argmax(self.segment >= 0)) - 1)

    @property
    def num_response_tokens(self) -> int:
        return int(np.count_nonzero(self.segment >= 0))

    @property
    def response_places(self) -> IntArray:
        """Indices of the response tokens, in the order of their segments."""
        # Segments follow each other in the text, but the token for an end of turn may come late. So sort by segment.
        position = np.flatnonzero(self.segment >= 0)
        return position[np.argsort(self.segment[position], kind="stable")]

    def tokens_per_segment(self) -> IntArray:
        return np.bincount(self.segment[self.segment >= 0], minlength=self.num_segments)

    def cut(self, place: int) -> tuple["TokenizedSample", "TokenizedSample"]:
        """Return the tokens before an index, which are in no segment, and the tokens from the index on."""
        before = {name: values[:place] for name, values in self.token_inputs.items()}
        after = {name: values[place:] for name, values in self.token_inputs.items()}
        first = TokenizedSample(self.ids[:place], self.segment[:place], 0, before)
        return first, TokenizedSample(self.ids[place:], self.segment[place:], self.num_segments, after)


class SampleTokenizer:
    """A tokenizer that gives each token its segment. Several threads may use it."""

    def __init__(
        self, tokenizer: Any, *, add_special_tokens: bool, include_eos: bool, max_length: int, vocab_size: int
    ) -> None:
        self._backend = with_plain_offsets(tokenizer)
        self._add_special_tokens = add_special_tokens
        self._include_eos = include_eos
        self._max_length = max_length
        self._vocab_size = vocab_size
        markers = {index for index, token in tokenizer.added_tokens_decoder.items() if token.content.strip()}
        if tokenizer.eos_token_id is not None:
            markers.add(tokenizer.eos_token_id)
        self._marker_ids = np.array(sorted(markers), dtype=np.int64)

    def has_marker(self, text: str) -> bool:
        """Tell whether a text has a token that can end a turn."""
        return bool(np.isin(self._backend.encode(text, add_special_tokens=False).ids, self._marker_ids).any())

    def tokenize(self, samples: Sequence[RenderedSample]) -> list[TokenizedSample | Unusable]:
        """Return each sample's tokens, or the reason why the sample is unusable."""
        texts = [sample.text if _is_unicode(sample.text) else "" for sample in samples]
        encodings = self._backend.encode_batch(texts, add_special_tokens=self._add_special_tokens)
        return [self._finish(sample, encoding) for sample, encoding in zip(samples, encodings, strict=True)]

    def _finish(self, sample: RenderedSample, encoding: Any) -> TokenizedSample | Unusable:
        if not _is_unicode(sample.text):
            return Unusable(Reason.BAD_TEXT, "the text has half of a surrogate pair, which is not valid Unicode")
        if len(ids := np.asarray(encoding.ids, dtype=np.int64)) > self._max_length:
            return Unusable(
                Reason.TOO_LONG, f"the sample has {len(ids)} tokens, at most {self._max_length} are allowed"
            )
        if (largest := int(ids.max(initial=0))) >= self._vocab_size:
            return Unusable(
                Reason.BAD_TEXT, f"token {largest} is not in the model's vocabulary of {self._vocab_size} tokens"
            )
        span = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        place = place_of_tokens(sample.text, span[:, 0], span[:, 1])
        segment = segment_of_places(place, sample.bounds)
        # Tokens without text: the tokenizer's own beginning and end.
        segment[np.asarray(encoding.special_tokens_mask, dtype=np.bool_)] = NO_SEGMENT
        if self._include_eos:
            ends = np.flatnonzero((place >= sample.bounds[-1]) & np.isin(ids, self._marker_ids))
            # Only the first: the template, not the model, writes the tokens after the end of a turn.
            segment[ends[:1]] = len(sample.bounds) - 2
        segment[:1] = NO_SEGMENT
        made = TokenizedSample(ids, segment, len(sample.bounds) - 1)
        if len(empty := np.flatnonzero(made.tokens_per_segment() == 0)):
            name = "the answer" if empty[0] == made.num_segments - 1 else f"step {empty[0] + 1}"
            return Unusable(Reason.SEGMENT_WITHOUT_TOKEN, f"{name} has no token of its own")
        return replace(made, num_characters=characters_of_tokens(sample, span[made.response_places, 0]))


def characters_of_tokens(sample: RenderedSample, start: IntArray) -> IntArray | None:
    """Return the number of characters of the response from each token to the next, from the tokens' first characters.

    The first token also has the characters before it, the last one those to the end. None if the response has more
    tokens than UTF-8 bytes and an end of turn (the plan reserves as many rows), or a token has too many characters.
    """
    first, last = sample.bounds[0], sample.bounds[-1]
    if len(start) > len(sample.text[first:last].encode()) + 1:
        return None
    length = last - first + sum(sample.trimmed)
    inside = np.where(start < last, start.clip(first) - first + sample.trimmed[0], length)
    inside[:1] = 0
    counts = np.diff(np.maximum.accumulate(inside), append=length)
    return None if counts.max() > MAX_CHARACTERS else counts


def place_of_tokens(text: str, start: IntArray, stop: IntArray) -> IntArray:
    """Return the index of the character that decides each token's segment: the first non-space, else the first."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    visible = np.where(np.isin(codes, _SPACES), len(codes), np.arange(len(codes)))
    place = np.append(np.minimum.accumulate(visible[::-1])[::-1], len(codes))[start]
    return np.where(place < stop, place, start)


def segment_of_places(place: IntArray, bounds: Sequence[int]) -> IntArray:
    """Return the segment of each character index; NO_SEGMENT outside the bounds."""
    segment = np.searchsorted(np.asarray(bounds), place, side="right") - 1
    return np.where(segment < len(bounds) - 1, segment, NO_SEGMENT)


def with_plain_offsets(tokenizer: Any) -> BoundedTokenizer:
    """Return a copy of a tokenizer with the same ids, and with offsets that include spaces.

    Byte-level tokenizers can trim offsets, and then a token of spaces has an empty span. A copy also prevents other
    threads from changing the padding and truncation during a call.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["truncation"] = state["padding"] = None
    _stop_trimming(state.get("post_processor"))
    backend = Tokenizer.from_str(json.dumps(state))
    backend.encode_special_tokens = bool(tokenizer.split_special_tokens)
    return BoundedTokenizer(backend)


def _stop_trimming(node: Any) -> None:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        _stop_trimming(child)
    if isinstance(node, dict) and "trim_offsets" in node:
        node["trim_offsets"] = False


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
