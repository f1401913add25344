"""From a sample to the text the model reads, and where in it the response lies. Knows nothing of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2.exceptions import TemplateError

from grace_store.base.errors import SettingError
from grace_store.base.settings import Rendering
from grace_store.base.states import Reason, Unusable
from grace_store.data.sample import ImageRef, Sample
from grace_store.model.inputs.bounded_template import BoundedTemplate

_TODAY = datetime(2024, 7, 26)
"""The date that templates are told: vectors must not depend on when they were made."""
_MARK = "gracestoremark"
Message = dict[str, Any]
_FIXED_DATE = {"strftime_now": _TODAY.strftime, "date_string": _TODAY.strftime("%d %b %Y")}


@dataclass(frozen=True, slots=True)
class RenderedSample:
    """A sample's text. Segment i is text[bounds[i]:bounds[i + 1]]; a template may have trimmed its ends."""

    text: str
    bounds: tuple[int, ...]


def resolve_rendering(requested: Rendering | None, tokenizer: Any) -> Rendering:
    """Return the rendering to use: as asked, else the chat template if there is one, else plain text."""
    if requested is None:
        return "template" if tokenizer.chat_template else "plain"
    if requested != "plain" and not tokenizer.chat_template:
        raise SettingError(f"--rendering {requested} needs a chat template, and this tokenizer has none. Use plain.")
    return requested


def _bounded_template(tokenizer: Any) -> BoundedTemplate:
    try:
        return BoundedTemplate(tokenizer.get_chat_template())
    except (TemplateError, ValueError) as error:
        raise SettingError(f"The chat template cannot be read ({error}). Use --rendering plain.") from error


class Renderer:
    """Writes samples as text in one way. Safe to use from several threads."""

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
        """Take image_mark, the text that stands for an image; None for a model that reads text only."""
        self._tokenizer = tokenizer
        self._rendering = resolve_rendering(rendering, tokenizer)
        self._system = system
        self._text_only = text_only
        self._image_mark = image_mark
        self._template = None if self._rendering == "plain" else _bounded_template(tokenizer)
        self._as_parts = image_mark is not None and self._rendering != "plain" and self._takes_parts()
        if self._rendering == "plain":
            self._suffix = (tokenizer.eos_token or "") if include_eos else ""
        else:
            self._suffix = self._end_of_turn()

    @property
    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer is to add its own special tokens: a template has written them already.

        Templates of vision-language models may have left them to the processor.
        """
        if self._rendering == "plain" or self._image_mark is None:
            return self._rendering == "plain"
        bos = self._tokenizer.bos_token
        return not bos or not self._apply([self._message("user", ["?"])]).startswith(bos)

    @property
    def suffix(self) -> str:
        """What is written after a response."""
        return self._suffix

    def render(self, sample: Sample) -> RenderedSample:
        """Return the sample's text; raises Unusable when the response is not in it as it stands."""
        if sample.images and not self._text_only and self._image_mark is None:
            raise Unusable(Reason.NEEDS_VISION, f"{len(sample.images)} images, and the model reads text only")
        messages = self._messages(sample)
        if self._rendering == "plain":
            start = "".join(message["content"] + "\n" for message in messages)
            return _joined(start, sample, self._suffix)
        try:
            prompt = self._apply(messages, add_generation_prompt=True)
            if self._rendering == "verbatim":
                return _joined(prompt, sample, self._suffix)
            whole = self._apply([*messages, self._message("assistant", [sample.response])])
            return self._locate(sample, messages, prompt, whole)
        except TemplateError as error:
            raise Unusable(
                Reason.TEMPLATE_REWRITES, f"the chat template refuses the conversation ({error}); try --rendering plain"
            ) from error

    def _messages(self, sample: Sample) -> list[Message]:
        messages = [self._message(turn.role, turn.parts) for turn in sample.turns]
        if self._system is not None and not any(turn.role == "system" for turn in sample.turns):
            messages.insert(0, self._message("system", [self._system]))
        return messages

    def _message(self, role: str, parts: Sequence[str | ImageRef]) -> Message:
        if self._text_only or self._image_mark is None:
            parts = [part for part in parts if isinstance(part, str)]
        if not self._as_parts:
            return {"role": role, "content": "".join(_text_of(part, self._image_mark) for part in parts)}
        content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts]
        return {"role": role, "content": content}

    def _takes_parts(self) -> bool:
        """Tell whether the template takes a turn as a list of texts and images, rather than as one text."""
        try:
            text = self._apply([{"role": "user", "content": [{"type": "text", "text": _MARK}]}])
        except TemplateError:
            return False
        # A template that knows texts only writes the list as Python would.
        return _MARK in text and f"'{_MARK}'" not in text

    def _apply(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        if not messages:
            return ""
        assert self._template is not None
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        return self._template.render({**given, **self._tokenizer.special_tokens_map, **_FIXED_DATE})

    def _end_of_turn(self) -> str:
        """Return what the template writes after a response."""
        try:
            text = self._apply([self._message("user", ["?"]), self._message("assistant", [_MARK])])
        except TemplateError as error:
            raise SettingError(
                f"The chat template cannot write a question and a response ({error}). Use --rendering plain."
            ) from error
        _, found, suffix = text.rpartition(_MARK)
        if not found:
            raise SettingError("The chat template leaves responses out. Use --rendering plain.")
        return suffix

    def _locate(self, sample: Sample, messages: Sequence[Message], prompt: str, whole: str) -> RenderedSample:
        """Return where the template put the response, whole or without the spaces at its ends."""
        earliest = _common_prefix(prompt, whole)
        found = _find(whole, sample.response, self._suffix, earliest)
        if found is None:
            # The generation prompt may hold the response's own beginning, as an opening thinking tag.
            earliest = min(earliest, _common_prefix(self._apply(messages), whole))
            found = _find(whole, sample.response, self._suffix, earliest)
        if found is None:
            raise Unusable(
                Reason.TEMPLATE_REWRITES, "the chat template changes the response; --rendering verbatim keeps it"
            )
        kept, start = found
        trimmed = sample.response.index(kept)
        bounds = (min(max(bound - trimmed, 0), len(kept)) + start for bound in sample.bounds)
        return RenderedSample(whole, tuple(bounds))


def _text_of(part: str | ImageRef, image_mark: str | None) -> str:
    return part if isinstance(part, str) else image_mark or ""


def _joined(prompt: str, sample: Sample, suffix: str) -> RenderedSample:
    bounds = tuple(len(prompt) + bound for bound in sample.bounds)
    return RenderedSample(prompt + sample.response + suffix, bounds)


def _find(whole: str, response: str, suffix: str, earliest: int) -> tuple[str, int] | None:
    """Return (the response or what trimming left of it, its place) at or after a place, else None."""
    forms = dict.fromkeys((response, response.rstrip(), response.lstrip(), response.strip()))
    for kept in filter(None, forms):
        # Right before the usual end is the sure place: short responses also occur inside of markers.
        start = len(whole) - len(suffix) - len(kept)
        if start >= earliest and whole.endswith(suffix) and whole.startswith(kept, start):
            return kept, start
    for kept in filter(None, forms):
        start = whole.rfind(kept, earliest)
        if start >= 0:
            return kept, start
    return None


def _common_prefix(left: str, right: str) -> int:
    if right.startswith(left):
        return len(left)
    return next(i for i, (a, b) in enumerate(zip(left, right + "\0", strict=False)) if a != b)
