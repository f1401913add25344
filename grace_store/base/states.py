"""States of records and samples (planned, done, set aside with a reason), results of units, and flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from typing import Any, Literal, Self, get_args

import numpy as np

from grace_store.base.arrays import Array, Float32Array, Int32Array, Numbers
from grace_store.base.errors import SettingError


class Reason(StrEnum):
    """Reasons for setting a record or sample aside. The words are part of the format."""

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
"""Keys of conversations that no reader understands yet, with the reason for setting records with such a key aside."""

STATE_DONE = 1
STATE_CODES = {name: code for code, name in enumerate(("planned", "done", *map(str, Reason)))}
"""The values of sample_state and set_aside_reason. New reasons go at the end of Reason."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """The reason why a record is no sample, or a sample has no vectors."""

    reason: Reason
    detail: str = ""
    num_steps: int | None = None
    """Number of steps of a trace that is set aside only for this number."""
    keys: tuple[str, ...] = ()
    """All UNREAD_KEYS of the record; the reason names the first."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else str(self.reason)


class Unusable(Exception):
    """One record or sample cannot be used, for a reason and with a detail for people."""

    def __init__(
        self, reason: Reason, detail: str = "", num_steps: int | None = None, keys: tuple[str, ...] = ()
    ) -> None:
        self.why, self.reason, self.detail = SetAside(reason, detail, num_steps, keys), reason, detail
        super().__init__(str(self.why))


@dataclass(slots=True, kw_only=True)
class UnitOutcome:
    """The result of a unit. set_aside maps the index of a sample in the unit to the reason."""

    set_aside: dict[int, SetAside] = field(default_factory=dict)
    num_tokens: int = 0
    """Tokens that went through the model, for progress only."""
    images_sha256: str | None = None
    """SHA-256 over the SHA-256 (hexadecimal, a newline after each) of the samples' encoded images, in the order of the
    samples and of reading; None without images."""
    split: tuple[int, ...] | None = None
    """Number of samples in each pass, in order, if a pass had to be split because memory was full."""


Statistic = Literal["loss", "entropy", "hit_rate", "rank", "first_loss", "error"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
"""The statistics of segments: means over the segment's tokens; first_loss is the loss of its first token."""
MAX_RANK = 100
"""Higher ranks of tokens count as this rank in means over tokens, as RSR defines them."""
TOKEN_COLUMNS = ("log_probability", "rank", "entropy", "error", "num_characters")
"""The columns of the token table."""


@dataclass(slots=True, kw_only=True)
class UnitSignals(UnitOutcome):
    """One vector for each segment: K_i + 1 rows for each sample in order, the answer last; zeros if set aside."""

    segment_vector: Float32Array
    segment_num_tokens: Int32Array
    segment_loss: Float32Array
    segment_entropy: Float32Array
    segment_hit_rate: Float32Array
    segment_rank: Float32Array
    segment_first_loss: Float32Array
    segment_error: Float32Array
    sample_top_entropy: Float32Array
    sample_num_token_rows: Int32Array
    """Rows of each sample in the token table: one for each token of its segments, or 0."""
    token_log_probability: Float32Array
    token_rank: Numbers
    token_entropy: Float32Array
    token_error: Float32Array
    token_num_characters: Numbers

    @classmethod
    def of_vectors(cls, vector: Float32Array, num_tokens: Int32Array, num_samples: int, /, **known: Any) -> Self:
        """Return signals with vectors of segments; other arrays are 0 and the token table empty unless given."""
        columns: dict[str, Any] = {f"segment_{name}": np.zeros(len(vector), np.float32) for name in STATISTICS}
        columns |= {f"token_{name}": np.zeros(0, np.float32) for name in TOKEN_COLUMNS}
        columns["sample_top_entropy"] = np.zeros(num_samples, np.float32)
        columns["sample_num_token_rows"] = np.zeros(num_samples, np.int32)
        return cls(segment_vector=vector, segment_num_tokens=num_tokens, **{**columns, **known})


@dataclass(slots=True, kw_only=True)
class SampleSignals(UnitOutcome):
    """One vector for each sample of a unit, in order; zeros for a sample that was set aside."""

    sample_vector: Float32Array
    sample_norm: Float32Array
    """Norm of each vector before normalisation."""
    sample_num_tokens: Int32Array
    sample_loss: Float32Array


# ---------------------------------------------------------------- flags
# A flag marks something wrong or doubtful about a sample that can be seen without a label. Planning finds the text
# flags (`data.hygiene`) and stores them in the plan; scoring finds the others.


TEXT_SHIFT = 8
"""Text flags have this many lower bits in the plan than in Flag."""


class Flag(IntFlag):
    """All flags; ABOUT has their meanings. Scoring finds the lowest eight."""

    ZERO_VECTOR = 1
    NOT_FINITE = 2
    NO_VALUE = 4
    MISSING_SIGNAL = 8
    CANCELLING = 16
    SAME_DIRECTION = 32
    ONLY_TRACE = 64
    REPEATED_STEPS = 1 << TEXT_SHIFT
    CUT_OFF = 2 << TEXT_SHIFT
    UNSUPPORTED_ANSWER = 4 << TEXT_SHIFT
    TEXT_AFTER_ANSWER = 8 << TEXT_SHIFT
    THINK_BLOCKS = 16 << TEXT_SHIFT
    RESTATES_QUESTION = 32 << TEXT_SHIFT


ABOUT = {
    "zero_vector": "A segment, target or history has no direction, so cosines with it count as 0.",
    "not_finite": "The Gram holds NaN or infinity, so the sample has no value.",
    "no_value": "The settings define no value for the sample: it has no step, or no token, that they count.",
    "missing_signal": "A signal of a joint scoring does not have the sample, so the sample has no value.",
    "cancelling": "The vectors of a target or history nearly cancel: cosines with it are good to 3 digits, not to 6.",
    "same_direction": "Most steps' vectors point nearly the same way as the vectors of earlier steps.",
    "only_trace": "The sample is the only trace of its question, so there is no other trace to compare.",
    "repeated_steps": "A step or a sentence is repeated word for word.",
    "cut_off": "The steps or the response end in the middle of a sentence, formula or block.",
    "unsupported_answer": "The answer is a number, formula or option that no step derives.",
    "text_after_answer": "The text continues after the answer, often with another question.",
    "think_blocks": "The think tags are empty, not closed, nested or more than one pair.",
    "restates_question": "A step only repeats the words of the question.",
}
"""The meaning of each flag, in a sentence."""

TEXT_FLAGS = tuple(name for name in ABOUT if Flag[name.upper()] >= 1 << TEXT_SHIFT)
"""Flags in the plan, in the order of their bits."""
HYGIENE_FLAGS = (*TEXT_FLAGS, "same_direction")
"""Flags of the trace itself; the other flags are about its value under certain settings."""
HYGIENE = "hygiene"
"""Name for all HYGIENE_FLAGS together in options."""


def flag_names(flags: int) -> list[str]:
    """Return the names of the bits that are set.

    >>> flag_names(3)
    ['zero_vector', 'not_finite']
    """
    return [name for name in ABOUT if flags & Flag[name.upper()]]


def flag_counts(flags: Array) -> dict[str, int]:
    """Count the samples with each flag; flags has the bits of each sample.

    >>> flag_counts(np.array([0, 1, 3]))["zero_vector"]
    2
    """
    return {name: int(np.count_nonzero(flags & int(Flag[name.upper()]))) for name in ABOUT}


def flag_lines(flagged: Mapping[str, int]) -> list[str]:
    """Return a line with count and meaning for each flag that samples have.

    >>> flag_lines({"cut_off": 2, "think_blocks": 0})
    ['2 flagged cut_off: The steps or the response end in the middle of a sentence, formula or block.']
    """
    return [f"{flagged[name]} flagged {name}: {text}" for name, text in ABOUT.items() if flagged.get(name)]


def text_mask(name: str) -> int:
    """Return the bit of a text flag in the plan.

    >>> text_mask("cut_off")
    2
    """
    return int(Flag[name.upper()]) >> TEXT_SHIFT


def named_flags(names: Sequence[str]) -> tuple[str, ...]:
    """Return the named flags in the order of ABOUT, with `hygiene` as all HYGIENE_FLAGS; raise SettingError if unknown.

    >>> named_flags(["repeated_steps", "cancelling"])
    ('cancelling', 'repeated_steps')
    """
    if unknown := [name for name in names if name not in (HYGIENE, *ABOUT)]:
        of_traces, others = ", ".join(HYGIENE_FLAGS), ", ".join(name for name in ABOUT if name not in HYGIENE_FLAGS)
        known = f"Flags of traces: {of_traces} ({HYGIENE} means all of these). Flags of values: {others}"
        raise SettingError(f"unknown flag {unknown[0]!r}. {known}.")
    wanted = {each for name in names for each in (HYGIENE_FLAGS if name == HYGIENE else (name,))}
    return tuple(name for name in ABOUT if name in wanted)
