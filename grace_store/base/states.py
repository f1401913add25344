"""What becomes of a record or sample: planned, done, or set aside with a reason. The words are part of the format."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a record or sample is set aside. The words are part of the format."""

    BAD_JSON = "bad_json"
    NOT_AN_OBJECT = "not_an_object"
    RECORD_TOO_LARGE = "record_too_large"
    UNKNOWN_RECORD = "unknown_record"
    DUPLICATE_ID = "duplicate_id"
    NO_PROMPT = "no_prompt"
    NO_RESPONSE = "no_response"
    NO_ANSWER = "no_answer"
    NO_STEPS = "no_steps"
    TOO_FEW_STEPS = "too_few_steps"
    TOO_MANY_STEPS = "too_many_steps"
    EMPTY_SEGMENT = "empty_segment"
    BAD_TEXT = "bad_text"
    IMAGE_COUNT = "image_count"
    NEEDS_VISION = "needs_vision"
    IMAGE_MISSING = "image_missing"
    IMAGE_UNREADABLE = "image_unreadable"
    IMAGE_REFUSED = "image_refused"
    TEMPLATE_REWRITES = "template_rewrites"
    SEGMENT_WITHOUT_TOKEN = "segment_without_token"
    TOO_LONG = "too_long"
    NOT_FINITE = "not_finite"
    UNREAD_TOOLS = "unread_tools"
    UNREAD_VIDEOS = "unread_videos"
    UNREAD_AUDIOS = "unread_audios"
    UNREAD_OBJECTS = "unread_objects"
    UNREAD_REASONING_CONTENT = "unread_reasoning_content"
    UNREAD_REASONING = "unread_reasoning"
    UNREAD_THINKING = "unread_thinking"
    UNREAD_TOOL_CALLS = "unread_tool_calls"
    UNREAD_FUNCTION_CALL = "unread_function_call"
    UNREAD_LOSS = "unread_loss"
    UNREAD_LOSS_SCALE = "unread_loss_scale"
    UNREAD_WEIGHT = "unread_weight"


_UNREAD = "unread_"
UNREAD_KEYS = {reason.removeprefix(_UNREAD): reason for reason in Reason if reason.startswith(_UNREAD)}
"""Keys of conversations that no reader understands yet, each with the reason for which a record that has it is set
aside."""

STATE_PLANNED = 0
STATE_DONE = 1
_REASON_CODES = {reason.value: code for code, reason in enumerate(Reason, start=2)}
STATE_CODES: dict[str, int] = {"planned": STATE_PLANNED, "done": STATE_DONE, **_REASON_CODES}
"""The values of sample_state and set_aside_reason. New reasons go at the end of Reason."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """Why a record is no sample, or a sample has no vectors."""

    reason: Reason
    detail: str = ""
    num_steps: int | None = None
    """Of a trace whose number of steps is all that is wrong with it."""
    keys: tuple[str, ...] = ()
    """All UNREAD_KEYS of the record; the reason names the first."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else str(self.reason)


class Unusable(Exception):
    """One record or sample cannot be used: carries the reason and a detail for people."""

    def __init__(
        self, reason: Reason, detail: str = "", num_steps: int | None = None, keys: tuple[str, ...] = ()
    ) -> None:
        self.why, self.reason, self.detail = SetAside(reason, detail, num_steps, keys), reason, detail
        super().__init__(str(self.why))
