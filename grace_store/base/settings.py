"""Settings of two kinds: some change the numbers (frozen, with a digest), the others change only the speed."""

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar, get_args, runtime_checkable

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, field_validator

from grace_store.base.errors import SettingError
from grace_store.base.text import canonical_json

Storage = Literal["float32", "float16", "int8", "int4"]
Dtype = Literal["float32", "bfloat16", "float16"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]
Rendering = Literal["template", "verbatim", "plain"]
ImagesAs = Literal["processor", "ms-swift", "llama-factory"]
Per = Literal["sample", "segment"]

DecimalText = Annotated[float, PlainSerializer(repr, return_type=str)]
"""A float that JSON documents store as its shortest exact text."""

SPARSE_ENTRIES = 4
"""Number of entries of the sparse projection for each parameter."""


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
"""Types of settings in words, by the first part of pydantic's names of errors."""


def one_sentence(error: ValidationError, thing: str = "setting") -> str:
    """Return all of pydantic's complaints as one sentence in plain words; thing is the word for a field."""
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
        if len(shown := repr(problem["input"])) > 80:
            shown = f"{shown[:80]}..."
        complaints.append(f"{place} {shown}: {message[:1].lower()}{message[1:]}")
    return "; ".join(complaints)


class Settings(Frozen):
    """Settings that a user may get wrong."""

    @classmethod
    def parse(cls, **settings: Any) -> Self:
        """Make the settings; raise one SettingError with everything that is wrong."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise SettingError(one_sentence(error)) from None


def _as_frozen(schema: dict[str, Any], model: type[Any]) -> None:
    """Mark the settings that must be resolved as required in a JSON Schema, as they are in documents."""
    for name in model.unresolved():
        schema["properties"][name].pop("default", None)
    required = {*schema.get("required", ()), *model.unresolved()}
    schema["required"] = [name for name in schema["properties"] if name in required]


UNRESOLVED: Any = None
"""The value of a setting that was not given and that the model, the device or the records will decide."""


class Spec(Settings):
    """Settings that change the numbers. One class serves as a request and as the frozen spec of a plan or signal.

    In a request, only the given settings count (see `model_fields_set`). A whole spec has a value for every setting.
    """

    model_config = ConfigDict(json_schema_extra=_as_frozen)
    found: ClassVar[frozenset[str]] = frozenset()
    """Fields that are read from the files of the model or adapter, so that users cannot give them."""

    @classmethod
    def can_give(cls) -> list[str]:
        """Return the names of the settings that a user can give."""
        return [name for name in cls.model_fields if name not in cls.found]

    @classmethod
    def unresolved(cls) -> list[str]:
        """Return the names of the settings without a default, which must be given or resolved."""
        fields = cls.model_fields.items()
        return [name for name, field in fields if field.default is None and NoneType not in get_args(field.annotation)]

    def given(self) -> dict[str, Any]:
        """Return the settings that were given."""
        return {name: getattr(self, name) for name in self.can_give() if name in self.model_fields_set}

    def over(self, frozen: Self, but: Collection[str] = ()) -> Self:
        """Return a request with the settings given here and, for the others except but, the values of a frozen spec."""
        merged = self.given()
        for name in self.can_give():
            then, now = getattr(frozen, name), merged.get(name)
            if isinstance(then, Spec) and (name not in merged or isinstance(now, Spec)):
                merged[name] = (now or type(then)()).over(then)
            elif name not in merged and name not in but and then is not None:
                merged[name] = then
        return type(self)(**merged)

    def whole(self) -> Self:
        """Return the spec; raise SettingError if a setting is missing or settings contradict each other."""
        problems = [f"{name} is missing" for name in self.unresolved() if getattr(self, name) is UNRESOLVED]
        for name in type(self).model_fields:
            if isinstance(part := getattr(self, name), Spec):
                part.whole()
        if problems := problems or list(self._problems()):
            raise SettingError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        """Yield contradictions between the settings of a resolved spec."""
        yield from ()


SpecT = TypeVar("SpecT", bound=Spec)
Whole = Annotated[SpecT, AfterValidator(Spec.whole)]
"""A spec in a document."""


def short(value: object) -> str:
    """Return the text of a value; of a digest, only its beginning."""
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text


def setting_text(value: object) -> str:
    """Return a setting as users write it.

    >>> setting_text({"prompt": "question", "id": "meta.qid"})
    'prompt=question id=meta.qid'
    """
    if isinstance(value, dict):
        return " ".join(f"{key}={each}" for key, each in value.items())
    return " ".join(value) if isinstance(value, tuple) else str(value)


# ---------------------------------------------------------------- settings that change the numbers


class DataSpec(Spec):
    """Settings for turning records into samples."""

    format: str = UNRESOLVED
    """Name of the record format."""
    splitter: str = "format"
    r"""Where steps begin. format: where the record format says. lines: at each line. paragraphs: at each paragraph.
    marker:REGEX: at each line that matches a regular expression, such as 'marker:^Step \d+:'."""
    answer: str = "format"
    r"""Where the answer begins. format: where the record format says. last: at the last step. boxed: at the last
    \boxed{}. marker:REGEX: at the last match of a regular expression, such as 'marker:^Final answer:'."""
    min_steps: int = Field(default=8, ge=1)
    """Set aside traces with fewer steps."""
    max_steps: int = Field(default=512, ge=1)
    """Set aside traces with more steps."""
    map: dict[str, str] = Field(default_factory=dict)
    """The field that holds each part of a record, by the name of the part."""
    gather: bool = False
    """Put all traces of a question next to each other, so that the traces share the question's prompt and images."""
    group_by: str | None = None
    """With --gather, the field of the records that names the question of a trace."""
    expand: Annotated[str | None, AfterValidator(lambda field: field or None)] = Field(
        default=None, exclude_if=lambda field: field is None
    )
    """Field with a list of responses. Each response is read as a trace, together with its element of every other list
    of the same length."""
    ignore_key: Annotated[tuple[str, ...], AfterValidator(lambda names: tuple(sorted(set(names))))] = ()
    """Keys of conversations that grace-store cannot interpret yet. Records are read as if they did not have these keys.
    A record with another such key is set aside."""

    def _problems(self) -> Iterator[str]:
        if self.group_by is not None and not self.gather:
            yield "--group-by works only with --gather: add --gather"

    def in_words(self) -> dict[str, str]:
        """Return the texts of the settings by name, without empty settings and settings that are off."""
        return {name: setting_text(value) for name, value in self.model_dump().items() if value}


class ModelIdentity(Frozen):
    """The identity of a model by its content. Two folders with equal identity give equal vectors."""

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
    """Settings of a signal of projected gradients."""

    found: ClassVar[frozenset[str]] = frozenset({"moments", "parameters", "learning_rate"})

    per: Per = "sample"
    """Store one gradient for each sample, or one for each segment. The gradient of a sample is the gradient of its mean
    loss over the tokens of all segments."""
    preconditioner: Literal["none", "adam"] = "none"
    """Store plain gradients (none), or the steps that Adam would take from the checkpoint's moments (adam)."""
    bias_correction: bool = False
    """With the preconditioner adam, divide the moments by 1 - beta^(step + 1) to correct their bias. LESS does not do
    this."""
    moments: str | None = None
    """Digest of the checkpoint's moments, with their betas, epsilon and step."""
    projection: Literal["rademacher", "sparse"] = "rademacher"
    """Random projection of gradients. rademacher: random signs everywhere. sparse: only four random signs for each
    parameter; this is faster."""
    dimension: int = Field(default=8192, ge=1)
    """Length of a projected gradient."""
    seed: int = Field(default=0, ge=0, lt=2**53)
    """Seed of the random projection."""
    # Influence methods need normalised vectors of samples. A history adds vectors of segments as they are.
    normalise: bool = UNRESOLVED
    """Scale every projected gradient to length 1."""
    parameters: str = UNRESOLVED
    """Digest over names and shapes of the parameters of the gradient, in their order."""
    learning_rate: DecimalText | None = None
    """Mean learning rate of the steps that led to the checkpoint; None if its folder does not say."""

    def _problems(self) -> Iterator[str]:
        if (self.preconditioner == "adam") != (self.moments is not None):
            yield "the preconditioner adam needs moments, and other preconditioners must not have moments"
        if self.bias_correction and self.preconditioner != "adam":
            yield "bias_correction works only with the preconditioner adam"
        if self.projection == "sparse" and self.dimension % SPARSE_ENTRIES:
            yield f"the sparse projection needs a dimension that is a multiple of {SPARSE_ENTRIES}"


GRADIENT_BATCH_TOKENS = 2048
"""Default of batch_tokens for gradients: a backward pass keeps the inputs of all layers in memory."""


class ExtractSpec(Spec):
    """Settings of a signal: its kind, model, inputs and storage."""

    found: ClassVar[frozenset[str]] = frozenset({"model"})

    kind: Literal["proxy", "gradient"] = "proxy"
    """Kind of the vectors. proxy: GRACE's proxy. gradient: projected gradients over the adapter's parameters."""
    gradient: GradientSpec | None = None
    """Settings of the gradients, if and only if the kind is gradient."""
    model: ModelIdentity = UNRESOLVED
    rendering: Rendering = UNRESOLVED
    """How a conversation becomes text. template: the chat template formats the whole conversation. verbatim: the
    unchanged response follows the template's generation prompt. plain: the plain text of the turns, without a
    template."""
    system: str | None = None
    """System prompt for samples that have none."""
    include_eos: bool = False
    """Count the end-of-turn token as part of the answer."""
    max_length: int = Field(default=4096, ge=2)
    """Set aside conversations with more tokens."""
    text_only: bool = False
    """Leave out images and use only the text. Without this option, a text model sets aside samples with images."""
    images_as: ImagesAs = "processor"
    """How images are prepared: size, transparency and orientation. processor: like the model's own processor, which TRL
    also uses. ms-swift or llama-factory: like this trainer."""
    min_pixels: int | None = Field(default=None, ge=1)
    """Enlarge images with fewer pixels to about this number of pixels."""
    max_pixels: int | None = Field(default=None, ge=1)
    """Shrink images with more pixels to about this number of pixels."""
    dtype: Dtype = "float32"
    """Number format in which the model runs."""
    attention: Attention = "sdpa"
    """Attention kernel of the model."""
    batch_tokens: int = Field(default=16384, ge=1)
    """Maximum number of tokens in one forward pass, with padding."""
    head_tokens: int = Field(default=512, ge=1)
    """Number of tokens whose logits are in memory at the same time."""
    packing: bool = False
    """Join samples end to end instead of padding them, if the model then gives the same numbers. This is faster with
    the attention kernel flash_attention_2."""
    share_prompts: bool = False
    """If several samples of a unit have the same prompt, run the prompt and its images through the model only once.
    This is done only if a probe at load shows that the numbers stay the same. Prompts are not shared with --packing or
    for gradients."""
    storage: Storage = "int8"
    """Number format of the stored vectors. Grams are exact in every format, and so are GRACE's scores. The methods
    less, icons and cadc, `duplicates` and `diversity` read vectors; their results are as precise as the vectors."""
    token_table: bool = True
    """Keep the log-probability, rank, entropy and error of every response token. Only for the kind proxy."""

    def _problems(self) -> Iterator[str]:
        if (self.kind == "gradient") != (self.gradient is not None):
            yield "a spec of the kind gradient needs the field gradient, and other kinds must not have it"
        if self.share_prompts and self.kind == "gradient":
            yield "share_prompts works only with the kind proxy"
        if self.share_prompts and self.packing:
            yield "share_prompts and packing cannot be used together"

    def over(self, frozen: Self, but: Collection[str] = ()) -> Self:
        """Merge as in Spec, but drop the frozen settings of gradients if another kind is given."""
        is_other = self.given().get("kind", frozen.kind) != frozen.kind
        return super().over(frozen.model_copy(update={"gradient": None}) if is_other else frozen, but)

    @property
    def vector_size(self) -> int:
        """Length of a vector: the size of the model's hidden state, or of a projected gradient."""
        return self.model.hidden_size if self.gradient is None else self.gradient.dimension

    @property
    def has_token_table(self) -> bool:
        """Whether the signal keeps the numbers of every response token."""
        return self.kind == "proxy" and self.token_table

    @property
    def is_per_sample(self) -> bool:
        """Whether each sample has one vector, and not one for each segment."""
        return self.gradient is not None and self.gradient.per == "sample"


# ---------------------------------------------------------------- settings that change only the speed

MAX_DEFAULT_THREADS = 8

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def default_threads() -> int:
    """Return OMP_NUM_THREADS if it is set, else the cores that this process may use, at most MAX_DEFAULT_THREADS."""
    named = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if named.isascii() and named.isdigit() and int(named) > 0:
        return int(named)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_DEFAULT_THREADS, allowed)


@runtime_checkable
class Mapper(Protocol):
    """The tasks of a cluster, which work instead of threads."""

    def map(self, work: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        """Yield work(item) in the order of the items; work and items are sent to the tasks."""

    def share(self, value: ItemT) -> Callable[[], ItemT]:
        """Return a function that returns the value in a task; the value is sent to each machine once."""


class RunOptions(Frozen):
    """Settings of device and speed, which may differ from run to run."""

    device: str = "auto"
    """Device to compute on: auto (an accelerator if there is one), cpu, or an accelerator by its name in torch, without
    or with a number (NAME or NAME:N)."""
    threads: int | None = Field(default=None, ge=1)
    """Number of CPU threads of each process."""
    loader_threads: int = Field(default=2, ge=1)
    """Number of threads that read and tokenise samples ahead of the model."""
    patience: int = Field(default=600, ge=1)
    """Seconds to wait for a unit or a training step. After that, a warning says that the device may hang."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|[a-z]\w*(:\d{1,4})?", value):
            raise ValueError(f"unknown value {value!r} of --device: use auto, cpu, NAME or NAME:N")
        return value
