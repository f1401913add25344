"""Settings, in two kinds: what changes the numbers (frozen, fingerprinted) and what changes only the speed."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Storage = Literal["float32", "float16", "int8", "int4"]
Dtype = Literal["float32", "bfloat16", "float16"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]
Rendering = Literal["template", "verbatim", "plain"]


class Frozen(BaseModel):
    """A value object: immutable, no unknown fields, one canonical JSON form."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def canonical(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))

    def digest(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text that fingerprints and sealed documents are made from."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def short(value: object) -> str:
    """Return a value for a sentence: a digest by its beginning, anything else whole."""
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text


# ---------------------------------------------------------------- what changes the numbers


class DataSpec(Frozen):
    """How records become samples."""

    format: str
    """Name of the record format."""
    splitter: str = "format"
    """How a response becomes steps: "format" (the format's own way), "lines", "paragraphs" or "marker:REGEX"."""
    answer: str = "format"
    """How the answer is found: "format", "last" (the last step), "boxed" or "marker:REGEX"."""
    min_steps: int = Field(default=8, ge=1)
    max_steps: int = Field(default=512, ge=1)


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


class ExtractSpec(Frozen):
    """What a signal's vectors are vectors of."""

    kind: Literal["proxy"] = "proxy"
    model: ModelIdentity
    rendering: Rendering
    """How the conversation becomes text: the chat template with the response inside; the template's generation
    prompt and the response as it stands; or the turns' plain text."""
    system: str | None = None
    """A system prompt put before every sample that has none."""
    include_eos: bool = False
    """Whether the end-of-turn token counts as part of the answer."""
    max_length: int = Field(default=4096, ge=2)
    """Longest conversation in tokens; a longer sample is set aside."""
    text_only: bool = False
    """Leave the images out instead of setting the sample aside."""
    min_pixels: int | None = Field(default=None, ge=1)
    """Images with fewer pixels are enlarged to about so many; None leaves it to the model's processor."""
    max_pixels: int | None = Field(default=None, ge=1)
    """Images with more pixels are shrunk to about so many; None leaves it to the model's processor."""
    dtype: Dtype = "float32"
    attention: Attention = "sdpa"
    storage: Storage = "int8"
    """How vectors are kept. Grams, and so scores, are exact in all of them."""


# ---------------------------------------------------------------- what a user asked for; None is "not said"


class DataRequest(Frozen):
    """Wishes about the data. What is not said comes from the plan, or else from DataSpec's defaults."""

    format: str | None = None
    splitter: str | None = None
    answer: str | None = None
    min_steps: int | None = Field(default=None, ge=1)
    max_steps: int | None = Field(default=None, ge=1)


class ExtractRequest(Frozen):
    """Wishes about a signal. What is not said comes from the signal, or else from ExtractSpec's defaults."""

    rendering: Rendering | None = None
    system: str | None = None
    include_eos: bool | None = None
    max_length: int | None = Field(default=None, ge=2)
    text_only: bool | None = None
    min_pixels: int | None = Field(default=None, ge=1)
    max_pixels: int | None = Field(default=None, ge=1)
    dtype: Dtype | None = None
    attention: Attention | None = None
    storage: Storage | None = None


def said(request: Frozen) -> dict[str, Any]:
    """Return only the wishes that were expressed."""
    return request.model_dump(exclude_none=True)


# ---------------------------------------------------------------- what changes only the speed

MAX_DEFAULT_THREADS = 8


def default_threads() -> int:
    """Return how many threads to use unless told: the cores this process may run on, up to eight."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_DEFAULT_THREADS, allowed)


class RunOptions(Frozen):
    """How fast, on what. May differ from run to run."""

    batch_tokens: int = Field(default=16384, ge=1)
    """Padded tokens in one forward pass."""
    head_tokens: int = Field(default=512, ge=1)
    """Tokens whose logits are held at a time."""
    packing: bool = False
    """Run samples end to end without padding, if the model gives the same for it. Pays with flash attention."""
    device: str = "auto"
    """"auto", "cpu", "cuda", "cuda:1"..."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of each worker."""
    loader_threads: int = Field(default=2, ge=1)
    """Threads that read and tokenise ahead of the device."""
    queue_units: int = Field(default=2, ge=1)
    """Units that may wait before the device, and behind it."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if value not in ("auto", "cpu", "cuda", "mps") and not value.startswith("cuda:"):
            raise ValueError(f"device {value!r} is none of auto, cpu, cuda, cuda:N, mps")
        return value
