"""Settings, in two kinds: what changes the numbers (frozen, fingerprinted) and what changes only the speed."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)

from grace_store.base.errors import SettingError

Storage = Literal["float32", "float16", "int8", "int4"]
Dtype = Literal["float32", "bfloat16", "float16"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]
Rendering = Literal["template", "verbatim", "plain"]
ImagesAs = Literal["processor", "ms-swift", "llama-factory"]
Kind = Literal["proxy", "gradient"]
Per = Literal["sample", "segment"]
Preconditioner = Literal["none", "adam"]
Projection = Literal["rademacher", "sparse"]

DecimalText = Annotated[float, PlainSerializer(repr, return_type=str)]
"""A float that documents hold as text, the shortest that gives it back: they have no floating-point numbers."""

KeyNames = Annotated[tuple[str, ...], AfterValidator(lambda names: tuple(sorted(set(names))))]
"""Names of keys, each once and in one order, so that equal choices are equal settings."""

SPARSE_ENTRIES = 4
"""Entries that the sparse projection has for each parameter."""


class Frozen(BaseModel):
    """A value object: immutable, no unknown fields, one canonical JSON form."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_by_name=True, validate_by_alias=True
    )

    def canonical(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))

    def digest(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()


_WANTED = {
    "bool": "true or false", "float": "a number", "int": "a whole number", "string": "a text", "tuple": "a list",
    "list": "a list", "dict": "a table", "model": "a table",
}  # fmt: skip
"""What pydantic calls the types of settings, by the beginning of its names for errors."""


def one_sentence(error: ValidationError, thing: str = "setting") -> str:
    """Return all of pydantic's complaints as one sentence, in our words; thing is what a field is called."""
    complaints = []
    for problem in error.errors(include_url=False, include_context=False):
        message = problem["msg"].removeprefix("Value error, ")
        kind = problem["type"]
        if kind == "value_error":
            complaints.append(message)
            continue
        place = ".".join(map(str, problem["loc"]))
        if kind == "missing":
            complaints.append(f"{place} is missing")
            continue
        if kind in ("extra_forbidden", "unexpected_keyword_argument"):
            message = f"there is no such {thing}"
        elif kind.partition("_")[0] in _WANTED:
            message = f"{_WANTED[kind.partition('_')[0]]} is wanted"
        shown = repr(problem["input"])
        complaints.append(
            f"{place} {shown if len(shown) <= 80 else shown[:80] + '...'}: {message[:1].lower()}{message[1:]}"
        )
    return "; ".join(complaints)


class Settings(Frozen):
    """Settings that a user may get wrong."""

    @classmethod
    def parse(cls, **settings: Any) -> Self:
        """Make a spec, saying in one SettingError all that is wrong with it."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise SettingError(one_sentence(error)) from None


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text that fingerprints and sealed documents are made from."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def short(value: object) -> str:
    """Return a value for a sentence: a digest by its beginning, anything else whole."""
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text


def setting_text(value: object) -> str:
    """Return a setting as one would write it.

    >>> setting_text({"prompt": "question", "id": "meta.qid"})
    'prompt=question id=meta.qid'
    """
    if isinstance(value, dict):
        return " ".join(f"{key}={each}" for key, each in value.items())
    return " ".join(value) if isinstance(value, tuple) else str(value)


# ---------------------------------------------------------------- what changes the numbers


class DataSpec(Settings):
    """How records become samples."""

    format: str
    """Name of the record format."""
    splitter: str = "format"
    r"""Where steps begin: as the format has it (format), at lines, at paragraphs, or at lines that match a regular
    expression (marker:REGEX, such as 'marker:^Step \d+:')."""
    answer: str = "format"
    r"""Where the answer begins: as the format has it (format), at the last step (last), at the last \boxed{} (boxed),
    or at the last match of a regular expression (marker:REGEX, such as 'marker:^Final answer:')."""
    min_steps: int = Field(default=8, ge=1)
    """Set traces with fewer steps aside."""
    max_steps: int = Field(default=512, ge=1)
    """Set traces with more steps aside."""
    map: dict[str, str] = Field(default_factory=dict, exclude_if=lambda value: not value)
    """Which fields hold the parts of a record, by the parts' names. Left out of documents if none is named, so that
    those of earlier versions stay as they were."""
    gather: bool = Field(default=False, exclude_if=lambda value: not value)
    """Bring the traces of a question together, wherever they stand, so that they share its prompt and images."""
    group_by: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """With --gather, the field whose value makes traces those of one question."""
    ignore_key: KeyNames = Field(default=(), exclude_if=lambda value: not value)
    """Keys of conversations that no reader understands yet and that records are read without. A record with another
    such key is set aside."""

    @model_validator(mode="after")
    def _groups_if_gathered(self) -> DataSpec:
        if self.group_by is not None and not self.gather:
            raise ValueError("--group-by says what --gather brings together; give that too")
        return self

    def in_words(self) -> dict[str, str]:
        """Return the settings for people, by name."""
        return {name: setting_text(value) for name, value in self.model_dump().items()}


class ModelIdentity(Frozen):
    """A model by its content. Two folders with equal identity give equal vectors."""

    architecture: str
    hidden_size: int
    vocab_size: int
    config: str
    """Digest of the parts of the model's configuration that change numbers."""
    weights: str
    """Digest over the weight files."""
    tokenizer: str
    """Digest of the tokenizer."""
    template: str | None = None
    """Digest of the chat template."""
    adapter: str | None = None
    """Digest of the adapter merged into the weights."""
    processor: str | None = None
    """Digest of the image processor, its backend included."""


class GradientSpec(Frozen):
    """Which projected gradients a signal holds."""

    per: Per = "sample"
    """Store one gradient for each sample, of its mean loss over all segments' tokens, or one for each segment."""
    preconditioner: Preconditioner = "none"
    """Store plain gradients (none), or the steps that Adam would take from the checkpoint's moments (adam)."""
    bias_correction: bool = False
    """With the preconditioner adam, divide the moments by 1 - beta^(step + 1) to correct their bias; LESS does not."""
    moments: str | None = None
    """Digest of the checkpoint's moments, and of the betas, epsilon and step that they belong to."""
    projection: Projection = "rademacher"
    """Random projection of gradients: signs everywhere (rademacher), or four for each parameter (sparse), which is
    faster."""
    dimension: int = Field(default=8192, ge=1)
    """Length of a projected gradient."""
    seed: int = Field(default=0, ge=0, lt=2**53)
    """Seed of the random projection."""
    normalise: bool
    """Scale every projected gradient to length 1."""
    parameters: str
    """Digest over names and shapes of the parameters that the gradient is taken of, in their order."""
    learning_rate: DecimalText | None = None
    """Mean learning rate of the steps that led to the checkpoint; None if its folder does not say."""

    @model_validator(mode="after")
    def _fits_together(self) -> GradientSpec:
        if (self.preconditioner == "adam") != (self.moments is not None):
            raise ValueError("moments belong to the preconditioner adam, and only to it")
        if self.bias_correction and self.preconditioner != "adam":
            raise ValueError("bias_correction has no meaning without the preconditioner adam")
        if self.projection == "sparse" and self.dimension % SPARSE_ENTRIES:
            raise ValueError(f"the sparse projection takes a dimension that is a multiple of {SPARSE_ENTRIES}")
        return self


class Batching(NamedTuple):
    """How a unit is cut into passes, and so how its sums are rounded."""

    batch_tokens: int
    head_tokens: int = 512
    packing: bool = False


DEFAULT_BATCHING: dict[Kind, Batching] = {"proxy": Batching(16384), "gradient": Batching(2048)}
"""A backward pass keeps what every layer was given, many times what a forward pass needs."""


class ExtractSpec(Frozen):
    """What a signal's vectors are vectors of."""

    kind: Kind = "proxy"
    """What vectors are: GRACE's proxy, or projected gradients over the adapter's parameters."""
    gradient: GradientSpec | None = Field(default=None, exclude_if=lambda value: value is None)
    """There exactly if the kind is gradient. Left out of documents if not, so that those of version 1.0 stay as
    they were."""
    model: ModelIdentity
    rendering: Rendering
    """How a conversation becomes text: the chat template with the response in it, the template's generation prompt
    followed by the response as it stands (verbatim), or the turns' plain text."""
    system: str | None = None
    """System prompt for samples that have none."""
    include_eos: bool = False
    """Count the end-of-turn token as part of the answer."""
    max_length: int = Field(default=4096, ge=2)
    """Set conversations with more tokens aside."""
    text_only: bool = False
    """Leave images out and use the text alone; without this, a text model sets samples with images aside."""
    # Left out of documents if it is the processor, as it was before there was a choice.
    images_as: ImagesAs = Field(default="processor", exclude_if=lambda value: value == "processor")
    """Prepare images (size, transparency, orientation) as the model's own processor does, and TRL with it, or as
    ms-swift or LLaMA-Factory does."""
    min_pixels: int | None = Field(default=None, ge=1)
    """Enlarge images with fewer pixels to about this number."""
    max_pixels: int | None = Field(default=None, ge=1)
    """Shrink images with more pixels to about this number."""
    dtype: Dtype = "float32"
    """Number format that the model runs in."""
    attention: Attention = "sdpa"
    """Attention kernel of the model."""
    batch_tokens: int | None = Field(default=None, ge=1, exclude_if=lambda value: value is None)
    """Tokens in one forward pass, padding included."""
    head_tokens: int | None = Field(default=None, ge=1, exclude_if=lambda value: value is None)
    """Tokens whose logits are held in memory at a time."""
    packing: bool | None = Field(default=None, exclude_if=lambda value: value is None)
    """Run samples end to end without padding, if the model gives the same numbers so; faster with the attention kernel
    flash_attention_2."""
    share_prompts: bool | None = Field(default=None, exclude_if=lambda value: value is None)
    """Where several samples of a unit have the same prompt, run it and its images through the model once for all of
    them, if a trial at load shows that the numbers stay the same. Not with --packing, and not for gradients."""
    storage: Storage = "int8"
    """How vectors are stored. Grams, and so GRACE's scores, are exact in all of these; what reads vectors (LESS, ICONS,
    CADC, duplicates, diversity) is as precise as they are."""

    @model_validator(mode="after")
    def _gradient_if_so_called(self) -> ExtractSpec:
        if (self.kind == "gradient") != (self.gradient is not None):
            raise ValueError("a spec has a gradient exactly if its kind is gradient")
        return self

    @model_validator(mode="after")
    def _batches_whole(self) -> ExtractSpec:
        if len({getattr(self, name) is None for name in Batching._fields}) > 1:
            raise ValueError(f"a spec has all of {', '.join(Batching._fields)}, or none of them")
        if self.share_prompts is not None and (not self.freezes_batches or self.kind == "gradient"):
            raise ValueError("share_prompts belongs to proxies in batches that are frozen")
        if self.share_prompts and self.packing:
            raise ValueError("share_prompts and packing exclude each other")
        return self

    @property
    def freezes_batches(self) -> bool:
        """Whether the spec says how units are cut into passes; one of an older version of the format does not."""
        return self.batch_tokens is not None

    @property
    def batching(self) -> Batching:
        """How units are cut into passes; the defaults where the spec does not say."""
        said = [getattr(self, name) for name in Batching._fields]
        return Batching(*said) if self.freezes_batches else DEFAULT_BATCHING[self.kind]

    def without_batches(self) -> ExtractSpec:
        """Return the spec as versions of the format before 1.2 have it."""
        return self.without_sharing().model_copy(update=dict.fromkeys(Batching._fields))

    def without_sharing(self) -> ExtractSpec:
        """Return the spec as versions of the format before 1.3 have it."""
        return self.model_copy(update={"share_prompts": None})

    @property
    def vector_size(self) -> int:
        """Length of a vector: of the model's hidden state, or of a projected gradient."""
        return self.model.hidden_size if self.gradient is None else self.gradient.dimension

    @property
    def is_per_sample(self) -> bool:
        """Whether a sample has one vector instead of one for each segment."""
        return self.gradient is not None and self.gradient.per == "sample"


# ---------------------------------------------------------------- what a user asked for; None is "not said"


class DataRequest(Frozen):
    """Wishes about the data. What is not said comes from the plan, or else from DataSpec's defaults."""

    format: str | None = None
    splitter: str | None = None
    answer: str | None = None
    min_steps: int | None = Field(default=None, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    map: dict[str, str] | None = None
    gather: bool | None = None
    group_by: str | None = None
    ignore_key: KeyNames | None = None


class GradientRequest(Frozen):
    """Wishes about gradients. What is not said comes from the signal, or else from GradientSpec's defaults."""

    per: Per | None = None
    preconditioner: Preconditioner | None = None
    bias_correction: bool | None = None
    projection: Projection | None = None
    dimension: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=0, lt=2**53)
    normalise: bool | None = None
    """Unless said, vectors per sample are normalised, as influence methods take them, and those per segment are not,
    as a history adds them up."""


class ExtractRequest(Frozen):
    """Wishes about a signal. What is not said comes from the signal, or else from ExtractSpec's defaults."""

    kind: Kind | None = None
    gradient: GradientRequest | None = None
    rendering: Rendering | None = None
    system: str | None = None
    include_eos: bool | None = None
    max_length: int | None = Field(default=None, ge=2)
    text_only: bool | None = None
    images_as: ImagesAs | None = None
    min_pixels: int | None = Field(default=None, ge=1)
    max_pixels: int | None = Field(default=None, ge=1)
    dtype: Dtype | None = None
    attention: Attention | None = None
    batch_tokens: int | None = Field(default=None, ge=1)
    head_tokens: int | None = Field(default=None, ge=1)
    packing: bool | None = None
    share_prompts: bool | None = None
    storage: Storage | None = None


def wishes_in(request: Frozen) -> dict[str, Any]:
    """Return only the wishes that were expressed."""
    return request.model_dump(exclude_none=True)


def pick_fields(frozen: Frozen, request: type[Frozen]) -> dict[str, Any]:
    """Return those of a spec's settings that one could wish for."""
    return {name: getattr(frozen, name) for name in type(frozen).model_fields if name in request.model_fields}


def as_begun(spec: ExtractSpec, request: ExtractRequest) -> ExtractRequest:
    """Return a request with what it leaves unsaid taken from a spec."""
    merged = {**pick_fields(spec, ExtractRequest), **wishes_in(request)}
    if merged["kind"] == "gradient" and spec.gradient is not None:
        merged["gradient"] = {
            **pick_fields(spec.gradient, GradientRequest),
            **(wishes_in(request).get("gradient") or {}),
        }
    elif request.gradient is None:
        merged["gradient"] = None
    return ExtractRequest(**merged)


# ---------------------------------------------------------------- what changes only the speed

MAX_DEFAULT_THREADS = 8


def default_threads() -> int:
    """Return how many threads to use unless told: the cores this process may run on, up to eight."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_DEFAULT_THREADS, allowed)


class RunOptions(Frozen):
    """How fast, on what. May differ from run to run."""

    device: str = "auto"
    """Device to compute on: auto (an accelerator if there is one), cpu, or an accelerator as torch names its kind, with
    or without a number (NAME, NAME:N)."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of each worker."""
    loader_threads: int = Field(default=2, ge=1)
    """Threads that read and tokenise samples ahead of the model."""
    queue_units: int = Field(default=2, ge=1)
    """Units that may wait before the device, and behind it."""
    patience: int = Field(default=600, ge=1)
    """Seconds after which a device that has not finished a unit is said to hang."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|[a-z]\w*(:\d{1,4})?", value):
            raise ValueError(f"device {value!r} is none of auto, cpu, NAME, NAME:N")
        return value
