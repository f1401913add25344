"""Settings, in two kinds: what changes the numbers (frozen, fingerprinted) and what changes only the speed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, field_validator

from grace_store.base.errors import SettingError
from grace_store.base.text import canonical_json

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


def _as_frozen(schema: dict[str, Any], model: type[Any]) -> None:
    """Say in a JSON Schema what holds in documents: a setting that must be resolved is there."""
    for name in model.unresolved():
        schema["properties"][name].pop("default", None)
    required = {*schema.get("required", ()), *model.unresolved()}
    schema["required"] = [name for name in schema["properties"] if name in required]


UNRESOLVED: Any = None
"""The value of a setting until it is resolved, from the model, the device or the records, unless it was given."""


class Spec(Settings):
    """Settings that change the numbers. One class is both what a user asks for and what a plan or signal freezes.

    Of a request, only the settings that were given count; `model_fields_set` knows them. A whole spec has them all.
    """

    model_config = ConfigDict(json_schema_extra=_as_frozen)
    found: ClassVar[frozenset[str]] = frozenset()
    """Fields that are read from the model's or the adapter's files: nobody gives them."""

    @classmethod
    def can_give(cls) -> list[str]:
        """Return the names of the settings that a user can give."""
        return [name for name in cls.model_fields if name not in cls.found]

    @classmethod
    def unresolved(cls) -> list[str]:
        """Return the names of the settings that have a value only when it is given or resolved."""
        fields = cls.model_fields.items()
        return [name for name, field in fields if field.default is None and NoneType not in get_args(field.annotation)]

    def given(self) -> dict[str, Any]:
        """Return the settings that were given."""
        return {name: getattr(self, name) for name in self.can_give() if name in self.model_fields_set}

    def over(self, frozen: Self, but: Collection[str] = ()) -> Self:
        """Return a request for what was given here and, of a frozen spec, everything else but what is found anew."""
        merged = self.given()
        for name in self.can_give():
            then, now = getattr(frozen, name), merged.get(name)
            if isinstance(then, Spec) and (name not in merged or isinstance(now, Spec)):
                merged[name] = (now or type(then)()).over(then)
            elif name not in merged and name not in but and then is not None:
                merged[name] = then
        return type(self)(**merged)

    def whole(self) -> Self:
        """Return the spec, or raise SettingError if a setting is missing or settings do not fit together."""
        problems = [f"{name} is missing" for name in self.unresolved() if getattr(self, name) is UNRESOLVED]
        for name in type(self).model_fields:
            if isinstance(part := getattr(self, name), Spec):
                part.whole()
        if problems := problems or list(self._problems()):
            raise SettingError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        """Yield what does not fit together in a spec that is resolved."""
        yield from ()


SpecT = TypeVar("SpecT", bound=Spec)
Whole = Annotated[SpecT, AfterValidator(Spec.whole)]
"""A spec in a document."""


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


class DataSpec(Spec):
    """How records become samples."""

    format: str = UNRESOLVED
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
    map: dict[str, str] = Field(default_factory=dict)
    """Which fields hold the parts of a record, by the parts' names."""
    gather: bool = False
    """Bring the traces of a question together, wherever they stand, so that they share its prompt and images."""
    group_by: str | None = None
    """With --gather, the field whose value makes traces those of one question."""
    ignore_key: KeyNames = ()
    """Keys of conversations that no reader understands yet and that records are read without. A record with another
    such key is set aside."""

    def _problems(self) -> Iterator[str]:
        if self.group_by is not None and not self.gather:
            yield "--group-by says what --gather brings together; give that too"

    def in_words(self) -> dict[str, str]:
        """Return the settings for people, by name, without those that are off or name nothing."""
        return {name: setting_text(value) for name, value in self.model_dump().items() if value}


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


class GradientSpec(Spec):
    """Which projected gradients a signal holds."""

    found: ClassVar[frozenset[str]] = frozenset({"moments", "parameters", "learning_rate"})

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
    # Vectors per sample are normalised, as influence methods take them, those per segment not, as a history adds them.
    normalise: bool = UNRESOLVED
    """Scale every projected gradient to length 1."""
    parameters: str = UNRESOLVED
    """Digest over names and shapes of the parameters that the gradient is taken of, in their order."""
    learning_rate: DecimalText | None = None
    """Mean learning rate of the steps that led to the checkpoint; None if its folder does not say."""

    def _problems(self) -> Iterator[str]:
        if (self.preconditioner == "adam") != (self.moments is not None):
            yield "moments belong to the preconditioner adam, and only to it"
        if self.bias_correction and self.preconditioner != "adam":
            yield "bias_correction has no meaning without the preconditioner adam"
        if self.projection == "sparse" and self.dimension % SPARSE_ENTRIES:
            yield f"the sparse projection takes a dimension that is a multiple of {SPARSE_ENTRIES}"


GRADIENT_BATCH_TOKENS = 2048
"""A backward pass keeps what every layer was given, many times what a forward pass needs."""


class ExtractSpec(Spec):
    """What a signal's vectors are vectors of."""

    found: ClassVar[frozenset[str]] = frozenset({"model"})

    kind: Kind = "proxy"
    """What vectors are: GRACE's proxy, or projected gradients over the adapter's parameters."""
    gradient: GradientSpec | None = None
    """There exactly if the kind is gradient."""
    model: ModelIdentity = UNRESOLVED
    rendering: Rendering = UNRESOLVED
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
    images_as: ImagesAs = "processor"
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
    batch_tokens: int = Field(default=16384, ge=1)
    """Tokens in one forward pass, padding included."""
    head_tokens: int = Field(default=512, ge=1)
    """Tokens whose logits are held in memory at a time."""
    packing: bool = False
    """Run samples end to end without padding, if the model gives the same numbers so; faster with the attention kernel
    flash_attention_2."""
    share_prompts: bool = False
    """Where several samples of a unit have the same prompt, run it and its images through the model once for all of
    them, if a probe at load shows that the numbers stay the same. Not with --packing, and not for gradients."""
    storage: Storage = "int8"
    """How vectors are stored. Grams, and so GRACE's scores, are exact in all of these; what reads vectors (LESS, ICONS,
    CADC, duplicates, diversity) is as precise as they are."""

    def _problems(self) -> Iterator[str]:
        if (self.kind == "gradient") != (self.gradient is not None):
            yield "a spec has a gradient exactly if its kind is gradient"
        if self.share_prompts and self.kind == "gradient":
            yield "share_prompts belongs to proxies"
        if self.share_prompts and self.packing:
            yield "share_prompts and packing exclude each other"

    def over(self, frozen: Self, but: Collection[str] = ()) -> Self:
        """Return the same; another kind leaves nothing of the frozen gradient."""
        is_other = self.given().get("kind", frozen.kind) != frozen.kind
        return super().over(frozen.model_copy(update={"gradient": None}) if is_other else frozen, but)

    @property
    def vector_size(self) -> int:
        """Length of a vector: of the model's hidden state, or of a projected gradient."""
        return self.model.hidden_size if self.gradient is None else self.gradient.dimension

    @property
    def is_per_sample(self) -> bool:
        """Whether a sample has one vector instead of one for each segment."""
        return self.gradient is not None and self.gradient.per == "sample"


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
    """CPU threads of each process."""
    loader_threads: int = Field(default=2, ge=1)
    """Threads that read and tokenise samples ahead of the model."""
    patience: int = Field(default=600, ge=1)
    """Seconds after which a device that has not finished a unit, or a step of training, is said to hang."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|[a-z]\w*(:\d{1,4})?", value):
            raise ValueError(f"device {value!r} is none of auto, cpu, NAME, NAME:N")
        return value
