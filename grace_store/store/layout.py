"""The arrays of a store (shapes, chunks, types) as in schemas/FORMAT.md. Pure functions of the plan."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np

from grace_store.base.errors import MissingExtra, SettingError
from grace_store.base.metadata import Plan
from grace_store.base.settings import ExtractSpec
from grace_store.base.states import STATE_CODES, TEXT_FLAGS, text_mask
from grace_store.store.backend import chunk_key
from grace_store.store.storages import storage_of

LOWEST_ZARR = (3, 1, 3)


def check_zarr(installed: str) -> None:
    """Raise MissingExtra for a version of zarr that fails to start or reports intact stores as damaged."""
    if tuple(map(int, re.findall(r"\d+", installed)[:3])) < LOWEST_ZARR:
        lowest = ".".join(map(str, LOWEST_ZARR))
        raise MissingExtra(f"zarr {installed} is too old for grace-store. Run `pip install 'zarr>={lowest}'`.")


SAMPLES_PER_CHUNK = 16384
"""Chunk length of the plan's arrays."""
ROWS_PER_INNER_CHUNK = 128
"""Rows of segment_vector or sample_vector that are compressed, checked and read together."""
TOKENS_PER_INNER_CHUNK = 16384
"""Rows of the token table that are compressed, checked and read together."""
MAX_SAMPLES_PER_UNIT = 4096
MAX_RESPONSE_BYTES = 2**31
"""Largest mean size of the responses of a unit in a plan that is believed."""


class PlannedSample(NamedTuple):
    """One usable record: its place and its number of steps."""

    sample_id: str
    row: int
    file: int
    offset: int
    length: int
    digest: bytes
    num_steps: int
    flags: int = 0
    """Bits of the flags of its text; 0 if flags were not computed."""
    question: bytes = bytes(16)
    """Digest of prompt and images."""
    num_characters: int = 0
    """Characters of the response."""
    num_bytes: int = 0
    """UTF-8 bytes of the response, which limit its number of tokens."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of the format."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    about: str
    inner: tuple[int, ...] | None = None
    """Shape of the inner chunks, if a chunk is a shard."""
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def is_per_unit(self) -> bool:
        return self.dims[0] in ("segment", "gram_entry", "sample", "token")

    def chunk_key(self, number: int) -> str:
        """Return the key of a chunk, relative to the group; the number of a chunk of a unit is that of the unit."""
        return chunk_key(self.name, len(self.dims), number)

    @property
    def chunk_bytes(self) -> int:
        """Size of a chunk of numbers before compression."""
        return prod(self.chunks) * np.dtype(self.dtype).itemsize


def array_keys(arrays: Sequence[ArraySpec]) -> Iterator[str]:
    """Yield all keys of complete arrays, relative to their group."""
    for array in arrays:
        yield f"{array.name}/zarr.json"
        for number in range(-(-array.shape[0] // array.chunks[0])):
            yield array.chunk_key(number)


def default_samples_per_unit(num_samples: int) -> int:
    """Return a power of two that makes about a thousand units: little work is lost with a unit, and listing is fast."""
    return min(MAX_SAMPLES_PER_UNIT, 1 << (max(16, -(-num_samples // 1024)) - 1).bit_length())


def check_samples_per_unit(samples_per_unit: int) -> int:
    if not 1 <= samples_per_unit <= MAX_SAMPLES_PER_UNIT or samples_per_unit & (samples_per_unit - 1):
        raise SettingError(f"--unit-samples is {samples_per_unit}. Give a power of two up to {MAX_SAMPLES_PER_UNIT}.")
    return samples_per_unit


def are_possible(plan: Plan) -> bool:
    """Return whether the counts of a plan are consistent."""
    most_segments = plan.spec.max_steps + 1
    samples_per_unit = plan.samples_per_unit
    return (
        plan.num_samples >= 0
        and min(plan.set_aside.values(), default=0) >= 0
        and plan.num_samples + sum(plan.set_aside.values()) == plan.num_records
        and 1 <= samples_per_unit <= MAX_SAMPLES_PER_UNIT
        and plan.num_units == -(-plan.num_samples // samples_per_unit)
        and 0 < plan.rows_per_unit <= samples_per_unit * most_segments + ROWS_PER_INNER_CHUNK
        and plan.flagged.keys() == set(TEXT_FLAGS)
        and 0 < plan.tokens_per_unit <= samples_per_unit * MAX_RESPONSE_BYTES
        and 0 < plan.gram_per_unit <= samples_per_unit * most_segments * (most_segments + 1) // 2
    )


def plan_arrays(plan: Plan) -> list[ArraySpec]:
    return sample_arrays(plan.num_samples, sum(plan.set_aside.values()))


def sample_arrays(num_samples: int, num_set_aside: int) -> list[ArraySpec]:
    """Return the arrays of a plan, in the order of their combined digest."""

    def column(name: str, dtype: str, about: str, **attributes: Any) -> ArraySpec:
        dim, num_rows = ("sample", num_samples) if name.startswith("sample_") else ("set_aside", num_set_aside)
        return ArraySpec(name, (dim,), (num_rows,), (SAMPLES_PER_CHUNK,), dtype, about, None, attributes)

    masks = {"flag_masks": [text_mask(name) for name in TEXT_FLAGS], "flag_meanings": " ".join(TEXT_FLAGS)}
    digest = ("sample", "digest_byte"), (num_samples, 16), (SAMPLES_PER_CHUNK, 16), "uint8"
    return [
        column("sample_id", "string", "the record's own id, or file name and row"),
        column("sample_row", "int64", "row of the record over all files of the dataset"),
        column("sample_file", "int32", "which of the plan's files holds the record"),
        column("sample_offset", "int64", "byte offset in the decompressed file; row number in Parquet and Arrow"),
        column("sample_length", "int64", "length of the record in bytes; 0 in Parquet and Arrow"),
        ArraySpec("sample_digest", *digest, "first 16 bytes of the SHA-256 of the record"),
        column("sample_num_steps", "int32", "K, the number of steps; the sample has K+1 segments"),
        column("sample_segment_start", "int64", "first of the sample's K+1 rows in every segment_* array"),
        column("sample_gram_start", "int64", "first of the sample's (K+1)(K+2)/2 entries in sample_gram"),
        column("set_aside_row", "int64", "row of a record that is no sample"),
        column("set_aside_reason", "uint8", "why", **flag_attributes()),
        column("set_aside_detail", "string", "the reason in words"),
        column("sample_flags", "uint16", "what is doubtful about the sample's text, a bit each", **masks),
        ArraySpec("sample_question", *digest, "digest of prompt and images: the same for all traces of a question"),
        column("sample_num_characters", "int32", "characters of the response"),
    ]


def flag_attributes() -> dict[str, Any]:
    """Return the CF attributes that explain the codes of a state."""
    return {"flag_values": list(STATE_CODES.values()), "flag_meanings": " ".join(STATE_CODES)}


def signal_arrays(plan: Plan, spec: ExtractSpec) -> list[ArraySpec]:
    """Return the arrays of a signal. Chunk u along the first dimension belongs to unit u."""
    arrays = _sample_vector_arrays(plan, spec) if spec.is_per_sample else _segment_arrays(plan, spec)
    about = "0 planned, 1 done, otherwise why it was set aside"
    shape, chunks = (plan.num_samples,), (plan.samples_per_unit,)
    arrays.append(ArraySpec("sample_state", ("sample",), shape, chunks, "uint8", about, None, flag_attributes()))
    for name, (dims, values, about) in storage_of(spec).constants().items():
        arrays.append(ArraySpec(name, dims, values.shape, values.shape, values.dtype.name, about))
    return arrays


def _vector_arrays(of: str, num_rows: int, rows: int, spec: ExtractSpec) -> list[ArraySpec]:
    """Return the arrays for the vectors of samples or segments; a unit has space for rows vectors."""
    storage = storage_of(spec)
    columns = storage.num_columns
    vector = ArraySpec(
        name=f"{of}_vector",
        dims=(of, "component"),
        shape=(num_rows, columns),
        chunks=(rows, columns),
        dtype=storage.dtype,
        about=f"the stored form of each {of}'s vector",
        inner=(min(ROWS_PER_INNER_CHUNK, rows), columns),
        attributes={"storage": spec.storage, "vector_size": spec.vector_size},
    )
    if not storage.has_scale:
        return [vector]
    about = "what the stored form is multiplied by"
    return [vector, ArraySpec(f"{of}_scale", (of,), (num_rows,), (rows,), "float32", about)]


def _sample_vector_arrays(plan: Plan, spec: ExtractSpec) -> list[ArraySpec]:
    shape, chunks = (plan.num_samples,), (plan.samples_per_unit,)
    about_loss = "mean cross-entropy over those tokens, in nats"
    return [
        *_vector_arrays("sample", plan.num_samples, plan.samples_per_unit, spec),
        ArraySpec("sample_norm", ("sample",), shape, chunks, "float32", "length of the vector before normalisation"),
        ArraySpec("sample_num_tokens", ("sample",), shape, chunks, "int32", "tokens in the sample's segments"),
        ArraySpec("sample_loss", ("sample",), shape, chunks, "float32", about_loss),
    ]


def _segment_arrays(plan: Plan, spec: ExtractSpec) -> list[ArraySpec]:
    num_rows, rows = plan.num_units * plan.rows_per_unit, plan.rows_per_unit

    def per_segment(name: str, dtype: str, about: str) -> ArraySpec:
        return ArraySpec(name, ("segment",), (num_rows,), (rows,), dtype, about)

    about_span = "half-open character span of the segment in the response"
    shape, chunks = (plan.num_samples,), (plan.samples_per_unit,)
    about_top = "sum of the entropies of the 0.5 % of the sample's tokens with the largest entropy, in nats"
    about_gram = "inner products of a sample's vectors before compression: lower triangle, row by row, answer last"
    num_entries, entries = plan.num_units * plan.gram_per_unit, plan.gram_per_unit
    return [
        *_vector_arrays("segment", num_rows, rows, spec),
        ArraySpec("segment_span", ("segment", "bound"), (num_rows, 2), (rows, 2), "int32", about_span),
        per_segment("segment_num_tokens", "int32", "tokens in the segment"),
        per_segment("segment_loss", "float32", "mean cross-entropy over the segment's tokens, in nats"),
        per_segment("segment_entropy", "float32", "mean entropy of the model's prediction, in nats"),
        per_segment("segment_hit_rate", "float32", "share of tokens that were the model's first choice"),
        per_segment("segment_rank", "float32", "mean of min(rank, 100) over the segment's tokens"),
        per_segment("segment_first_loss", "float32", "cross-entropy of the segment's first token, in nats"),
        per_segment("segment_error", "float32", "mean of |p - y| over the segment's tokens"),
        ArraySpec("sample_gram", ("gram_entry",), (num_entries,), (entries,), "float32", about_gram),
        ArraySpec("sample_top_entropy", ("sample",), shape, chunks, "float32", about_top),
        *(_token_arrays(plan) if spec.has_token_table else ()),
    ]


def _token_arrays(plan: Plan) -> Iterator[ArraySpec]:
    """Yield the arrays of the token table: the rows of a unit's samples follow each other, then zeros."""
    rows = plan.tokens_per_unit
    inner = (min(TOKENS_PER_INNER_CHUNK, rows),)
    columns = {
        "log_probability": ("float32", "log-probability of the token, in nats"),
        "rank": ("uint16", "1 + the number of tokens with a larger logit, at most 65535"),
        "entropy": ("float16", "entropy of the model's prediction, in nats"),
        "error": ("float16", "|p - y|, the length of the error of the prediction"),
        "num_characters": ("uint16", "characters of the response from this token to the next"),
    }
    about = "rows of the sample in the token_* arrays"
    yield ArraySpec("sample_num_token_rows", ("sample",), (plan.num_samples,), (plan.samples_per_unit,), "int32", about)
    for name, (dtype, about) in columns.items():
        yield ArraySpec(f"token_{name}", ("token",), (plan.num_units * rows,), (rows,), dtype, about, inner)
