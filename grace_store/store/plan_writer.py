"""Write a plan from a stream of samples. The metadata of the root group is written last and makes the store exist."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import Array, IntArray
from grace_store.base.errors import NotAStore
from grace_store.base.metadata import DataFile, Plan
from grace_store.base.settings import DataSpec
from grace_store.base.states import STATE_CODES, TEXT_FLAGS, Reason, text_mask
from grace_store.store import layout
from grace_store.store.array_group import ArrayEncoder
from grace_store.store.backend import (
    COMMITS,
    GROUPS,
    LEDGER_GROUP,
    PLAN_COPY,
    SAMPLES_GROUP,
    SIGNAL_COPIES,
    SIGNALS_GROUP,
    TMP,
    Backend,
    open_backend,
)
from grace_store.store.digested_json import group_bytes
from grace_store.store.layout import PlannedSample, sample_arrays
from grace_store.store.lock import Lease
from grace_store.store.metadata_backup import write_copy
from grace_store.store.opened import Store
from grace_store.store.storages import num_packed

Count = Callable[[IntArray], IntArray]
"""A function from the numbers of steps of samples to the number of entries of each sample in an array."""

_UNBOUNDED = 1 << 40
"""A stand-in for the unknown number of samples; the bytes of chunks do not depend on it."""


class PlanWriter:
    """Writes samples and records set aside, a chunk at a time. Only the numbers of steps stay in memory."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._flagged = dict.fromkeys(TEXT_FLAGS, 0)
        self._specs = {spec.name: spec for spec in sample_arrays(_UNBOUNDED, _UNBOUNDED)}
        self._encoder = ArrayEncoder(list(self._specs.values()))
        self._hashes = {name: hashlib.sha256() for name in self._specs}
        self._samples: list[PlannedSample] = []
        self._asides: list[tuple[int, Reason, str]] = []
        self._num_steps: list[npt.NDArray[np.unsignedinteger[Any]]] = []
        """Numbers of steps of the samples of each chunk."""
        self._num_tokens: list[IntArray] = []
        """Rows that the samples of each chunk may need in the token table."""
        self._num_written = 0
        self.set_aside: Counter[str] = Counter()
        check_claimable(backend)
        self.discard()

    @property
    def num_samples(self) -> int:
        return self._num_written + len(self._samples)

    def add(self, sample: PlannedSample) -> None:
        self._samples.append(sample)
        if len(self._samples) == layout.SAMPLES_PER_CHUNK:
            self._flush_samples()

    def add_set_aside(self, row: int, reason: Reason, detail: str) -> None:
        self._asides.append((row, reason, detail))
        self.set_aside[reason.value] += 1
        if len(self._asides) == layout.SAMPLES_PER_CHUNK:
            self._flush_asides()

    def discard(self) -> None:
        """Delete the remains of a plan that was cancelled or cut short."""
        for group in (SAMPLES_GROUP, SIGNALS_GROUP):
            self._backend.delete_tree(group)
        self._backend.delete(PLAN_COPY)

    def finish(self, spec: DataSpec, files: Iterable[DataFile], samples_per_unit: int | None, created_by: str) -> Plan:
        """Write the remaining samples and then the plan."""
        self._flush_samples()
        self._flush_asides()
        num_samples = self.num_samples
        per_unit = samples_per_unit or layout.default_samples_per_unit(num_samples)
        layout.check_samples_per_unit(per_unit)
        rows_per_unit, gram_per_unit = self._place(per_unit)
        tokens_per_unit = max(int(stop.max()) for _, stop in _placed(self._num_tokens, per_unit))
        files = tuple(files)
        plan = Plan(
            spec=spec,
            files=files,
            num_records=sum(file.num_records for file in files),
            num_samples=num_samples,
            set_aside=dict(sorted(self.set_aside.items())),
            samples_per_unit=per_unit,
            num_units=-(-num_samples // per_unit),
            rows_per_unit=rows_per_unit,
            gram_per_unit=gram_per_unit,
            tokens_per_unit=_in_whole_chunks(tokens_per_unit, layout.TOKENS_PER_INNER_CHUNK),
            samples_sha256=combined_digest(digest.hexdigest() for digest in self._hashes.values()),
            flagged=self._flagged,
            created_by=created_by,
        )
        documents = plan_documents(plan)
        root = documents.pop("zarr.json")
        self._backend.write_all(documents)
        write_copy(self._backend, plan)
        self._backend.flush()
        self._backend.write("zarr.json", root)
        self._backend.flush()
        return plan

    def _place(self, per_unit: int) -> tuple[int, int]:
        """Write the starts of every sample; return the number of rows and of Gram entries of a unit."""
        counts: tuple[Count, Count] = (lambda num_steps: num_steps + 1, lambda num_steps: num_packed(num_steps + 1))
        most = [max(int(stop.max()) for _, stop in self._placed(count, per_unit)) for count in counts]
        rows_per_unit, gram_per_unit = _in_whole_chunks(most[0], layout.ROWS_PER_INNER_CHUNK), most[1]
        placed = zip(*(self._placed(count, per_unit) for count in counts), strict=True)
        start = 0
        for (segment_start, _), (gram_start, _) in placed:
            unit = np.arange(start, start + len(segment_start)) // per_unit
            segment, gram = unit * rows_per_unit + segment_start, unit * gram_per_unit + gram_start
            self._write(start, {"sample_segment_start": segment, "sample_gram_start": gram})
            start += len(segment_start)
        return rows_per_unit, gram_per_unit

    def _placed(self, count: Count, per_unit: int) -> Iterator[tuple[IntArray, IntArray]]:
        return _placed((count(num_steps.astype(np.int64)) for num_steps in self._num_steps), per_unit)

    def _flush_samples(self) -> None:
        if not self._samples:
            return
        block, self._samples = self._samples, []
        num_steps = np.array([sample.num_steps for sample in block], dtype=np.int32)
        self._num_steps.append(num_steps.astype(np.min_scalar_type(int(num_steps.max()))))
        # One row more for an end of turn.
        self._num_tokens.append(np.array([sample.num_bytes + 1 for sample in block], dtype=np.uint32))
        columns: dict[str, Array] = {
            f"sample_{name}": np.array([getattr(sample, name) for sample in block], self._specs[f"sample_{name}"].dtype)
            for name in ("row", "file", "offset", "length", "flags", "num_characters")
        }
        for name in ("digest", "question"):
            digests = np.frombuffer(b"".join(getattr(sample, name) for sample in block), dtype=np.uint8)
            columns[f"sample_{name}"] = digests.reshape(len(block), 16)
        for name in TEXT_FLAGS:
            self._flagged[name] += int(np.count_nonzero(columns["sample_flags"] & text_mask(name)))
        columns["sample_num_steps"] = num_steps
        self._write(self._num_written, columns | {"sample_id": text_array([sample.sample_id for sample in block])})
        self._num_written += len(block)

    def _flush_asides(self) -> None:
        if not self._asides:
            return
        block, self._asides = self._asides, []
        columns: dict[str, Array] = {
            "set_aside_row": np.array([row for row, _, _ in block], dtype=np.int64),
            "set_aside_reason": np.array([STATE_CODES[reason] for _, reason, _ in block], dtype=np.uint8),
            "set_aside_detail": text_array([detail for _, _, detail in block]),
        }
        self._write(self.set_aside.total() - len(block), columns)

    def _write(self, start: int, columns: dict[str, Array]) -> None:
        for name, values in columns.items():
            update_digest(self._hashes[name], values)
        chunks = self._encoder.encode({name: (start, values) for name, values in columns.items()})
        self._backend.write_all({f"{SAMPLES_GROUP}/{key}": value for key, value in chunks.items()})


def _placed(by_chunk: Iterable[IntArray], per_unit: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield where each sample's entries begin and end in its unit, by chunk; a unit may span several chunks."""
    num_before = num_before_unit = position = 0
    for each in by_chunk:
        counts = each.astype(np.int64)
        before = num_before + np.cumsum(counts) - counts
        opens_unit = np.arange(position, position + len(counts)) % per_unit == 0
        # The sums only grow, so the sum at the latest start of a unit is the largest.
        before_unit = np.maximum.accumulate(np.where(opens_unit, before, num_before_unit))
        yield before - before_unit, before - before_unit + counts
        num_before, num_before_unit = int(before[-1] + counts[-1]), int(before_unit[-1])
        position += len(counts)


def _in_whole_chunks(num_rows: int, inner: int) -> int:
    """Return a number of rows as a multiple of the rows of an inner chunk, unless one chunk holds them all."""
    return num_rows if num_rows <= inner else -(-num_rows // inner) * inner


def is_begun(store: Store) -> bool:
    """Return whether a store has a signal, intact or damaged, so that its plan must not change."""
    return bool(store.signal_names or store.backend.names(COMMITS))


@contextmanager
def staged(lease: Lease) -> Iterator[Backend]:
    """Yield an empty backend inside a store, to write a plan before it replaces the old one."""
    place = f"{lease.scratch}/plan.zarr"
    lease.backend.delete_tree(place)  # the remains of a killed run
    try:
        yield open_backend(f"{lease.backend.location.rstrip('/')}/{place}")
    finally:
        lease.backend.delete_tree(place)


def replace_plan(backend: Backend, stage: Backend) -> None:
    """Replace a plan that has no signal by a complete plan.

    If the run is killed, the store has either the old plan or no plan; without a plan, the next planning starts again.
    The copy of the old plan is replaced last, so that the next planning can read its settings.
    """
    unfinished = [f"{SIGNALS_GROUP}/{name}" for name in backend.names(SIGNALS_GROUP) if name != "zarr.json"]
    for remains in (*unfinished, SIGNAL_COPIES):
        backend.delete_tree(remains)
    backend.flush()
    backend.delete("zarr.json")
    backend.flush()
    backend.delete_tree(SAMPLES_GROUP)
    last = (PLAN_COPY, "zarr.json")
    first = [key for key in stage.walk() if key not in last and not key.startswith(TMP)]
    for together in (first, *([key] for key in last)):
        for key in together:
            if (value := stage.read(key)) is not None:
                backend.write(key, value)
        backend.flush()


def plan_documents(plan: Plan) -> dict[str, bytes]:
    """Return {key: bytes} of all metadata of a plan; the zarr.json of the root is last."""
    arrays = layout.plan_arrays(plan)
    documents = {f"{SAMPLES_GROUP}/{key}": value for key, value in ArrayEncoder(arrays).metadata.items()}
    documents |= {f"{group}/zarr.json": group_bytes() for group in GROUPS}
    return documents | {"zarr.json": group_bytes(plan)}


def check_claimable(backend: Backend) -> None:
    """Raise NotAStore unless the location is empty or has only the remains of an unfinished plan."""
    arrays = "|".join(spec.name for spec in sample_arrays(1, 1))
    samples = rf"{SAMPLES_GROUP}/(({arrays})/(zarr\.json|c/[0-9/]+)|zarr\.json)"
    ours = re.compile(rf"{samples}|{SIGNALS_GROUP}/zarr\.json|{LEDGER_GROUP}/.*")
    if not (strangers := [name for name in backend.names("") if name not in GROUPS]):
        if backend.names(COMMITS):
            raise NotAStore(
                f"{backend.location} holds units of a store whose plan (zarr.json) is gone. `grace-store verify "
                "--repair` restores the plan from its copy in ledger/plan.json. Or choose another place."
            )
        strangers = [key for key in backend.walk() if not ours.fullmatch(key)]
    if strangers:
        raise NotAStore(
            f"{backend.location} is not empty and not a grace-store store (it holds {', '.join(strangers[:3])}). "
            "Choose another place for the store, or empty this folder."
        )


def text_array(values: list[str]) -> Array:
    return np.array(values, dtype=np.dtypes.StringDType())


def update_digest(digest: hashlib._Hash, values: Array) -> None:
    """Add values to an array's digest: numbers as little-endian bytes, each text followed by the byte 0xFF."""
    if values.dtype.kind in "TO":
        digest.update(b"".join(text.encode() + b"\xff" for text in values.tolist()))
    else:
        digest.update(np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes())


def combined_digest(digests: Iterable[str]) -> str:
    """Return the SHA-256 of hexadecimal digests, each followed by a newline."""
    return hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()
