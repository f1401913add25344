"""Read a store: its plan, its samples, its signals. Opening never writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import zarr

from grace_store.base.arrays import (
    Array,
    ByteArray,
    Float32Array,
    FloatArray,
    Int32Array,
    IntArray,
    Positions,
    find_rows,
)
from grace_store.base.documents import SampleRef
from grace_store.base.errors import Corrupt, GraceStoreError, NotAStore, Unfinished, UnknownName
from grace_store.base.metadata import Commit, Completion, Plan, Sharing, SharingDocument, Signal
from grace_store.base.states import STATE_CODES, TEXT_SHIFT
from grace_store.base.text import counted
from grace_store.store import layout
from grace_store.store.array_group import ArrayGroup, ChunkReader
from grace_store.store.backend import (
    COMMITS,
    PLAN_COPY,
    SAMPLES_GROUP,
    SIGNALS_GROUP,
    Backend,
    LocalBackend,
    commit_key,
    completion_key,
    open_backend,
    sharing_key,
    signal_key,
)
from grace_store.store.digested_json import from_bytes, group_document, unseal
from grace_store.store.storages import VectorStorage, storage_of

CHUNKS_BELIEVED = 64
"""If a plan has more chunks of samples than this, opening it checks that they exist."""
_REDO_ALL = "Without this file the signal cannot be continued. `grace-store verify --repair` computes all units again."


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The plan's columns for some samples."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("id", "row", "file", "offset", "length", "digest", "num_steps")

    sample_id: list[str]
    row: IntArray
    file: Int32Array
    offset: IntArray
    length: IntArray
    digest: ByteArray
    num_steps: Int32Array

    def __len__(self) -> int:
        return len(self.sample_id)


class Store:
    """A planned store, open for reading: ``plan`` has the fixed settings, ``signal(name)`` reads vectors."""

    def __init__(self, backend: Backend, plan: Plan) -> None:
        self.backend = backend
        self.plan = plan
        self._samples = ArrayGroup(backend, SAMPLES_GROUP, layout.plan_arrays(plan), keep_chunks=True)

    @classmethod
    def open(cls, location: str | Path | Backend) -> Store:
        backend = open_backend(location) if isinstance(location, (str, Path)) else location
        if (raw := backend.read("zarr.json")) is None:
            why = "the folder has no plan, perhaps because planning was interrupted"
            if isinstance(backend, LocalBackend) and backend.root.is_file():
                why = "this is a file"
            elif not backend.names(""):
                why = "nothing is there"
            raise NotAStore(f"{backend.location} is not a grace-store store: {why}. `grace-store plan` makes a store.")
        try:
            plan = _plan_document(raw, backend.location)
            num_chunks = -(-plan.num_samples // layout.SAMPLES_PER_CHUNK)
            # If a large plan lacks most of its samples, a search for each of them would take too long.
            column = f"{SAMPLES_GROUP}/sample_num_steps/c"
            if num_chunks > CHUNKS_BELIEVED and len(backend.names(column)) < num_chunks // 2:
                what = f"the plan has {plan.num_samples} samples, but most of its arrays are missing"
                raise Corrupt(f"{backend.location}: {what}.")
            return cls(backend, plan)
        except (Corrupt, NotAStore) as error:
            if backend.size(PLAN_COPY) is not None:
                error.add_note("`grace-store verify --repair` restores the plan from its copy.")
            raise

    def __repr__(self) -> str:
        try:
            signals = ", ".join(self.signal_names) or "none yet"
        except (GraceStoreError, OSError):  # the storage is gone, but the plan is in memory
            signals = "cannot be listed"
        plan = self.plan
        samples = f"{counted(plan.num_samples, 'sample')} of {counted(plan.num_records, 'record')}"
        return f"<Store {self.location}: {samples}, {counted(plan.num_units, 'unit')}; signals: {signals}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the store again, by its location, in another process."""
        return Store.open, (self.location,)

    @property
    def location(self) -> str:
        return self.backend.location

    @property
    def signal_names(self) -> list[str]:
        """Names of the signals, sorted. A signal exists if the metadata of its group exists."""
        names = [name for name in self.backend.names(SIGNALS_GROUP) if name != "zarr.json"]
        documents = self.backend.read_all(f"{signal_key(name)}/zarr.json" for name in names)
        return [name for name, document in zip(names, documents, strict=True) if document is not None]

    def signal(self, name: str | None = None) -> SignalView:
        """Return a signal by name; without a name, the only signal of the store."""
        if name is None:
            if not (names := self.signal_names):
                raise UnknownName(f"{self.location} has no signal yet. `grace-store extract` writes a signal.")
            if len(names) > 1:
                known = ", ".join(names)
                raise UnknownName(f"{self.location} has several signals ({known}). Choose a signal with --signal.")
            name = names[0]
        elif (
            name not in self.backend.names(SIGNALS_GROUP) or self.backend.size(f"{signal_key(name)}/zarr.json") is None
        ):
            known = ", ".join(self.signal_names) or "none yet: run `grace-store extract`"
            raise UnknownName(f"{self.location} has no signal {name!r} (there are: {known}).")
        return SignalView(self, name)

    def samples(self, start: int, stop: int) -> SampleRows:
        """Return the plan's rows for samples start..stop."""
        ids, *columns = (self._samples.read(f"sample_{name}", start, stop) for name in SampleRows.COLUMNS)
        return SampleRows(ids.tolist(), *columns)

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Return one array of the plan, or a part of it."""
        return self._samples.read(name, start, self._samples[name].shape[0] if stop is None else stop)

    def text_flags(self, start: int, stop: int) -> Array:
        """Return the flags of the samples' texts as bits of `base.states.Flag`."""
        return self.column("sample_flags", start, stop).astype(np.uint32) << TEXT_SHIFT

    def num_steps(self, sample: int) -> int:
        """Return the number of steps of a sample."""
        return int(self.column("sample_num_steps", sample, sample + 1)[0])

    def positions_of(self, row: IntArray) -> Positions:
        """Return the positions in the plan of the samples with these dataset rows."""
        return Positions(find_rows(self.column("sample_row"), row)[0])

    def refs(self, positions: IntArray) -> tuple[SampleRef, ...]:
        """Return the ids and dataset rows of the samples at some positions, for documents."""
        ids, rows = self.column("sample_id"), self.column("sample_row")
        return tuple(SampleRef(sample_id=str(ids[i]), row=int(rows[i])) for i in positions.tolist())

    def find(self, sample: str) -> int:
        """Return the position of a sample from its id, or from ``#row`` for its row in the dataset."""
        by_row = sample.startswith("#") and sample[1:].isdigit()
        name = "sample_row" if by_row else "sample_id"
        wanted: Any = int(sample[1:]) if by_row else sample
        for start in range(0, self.plan.num_samples, layout.SAMPLES_PER_CHUNK):
            stop = min(start + layout.SAMPLES_PER_CHUNK, self.plan.num_samples)
            if len(hits := np.flatnonzero(self.column(name, start, stop) == wanted)):
                return start + int(hits[0])
        raise UnknownName(
            f"{self.location} has no sample {sample!r}. Give an id that `score` lists, or #ROW for a dataset row. "
            "A record that was set aside is not a sample: `grace-store status` lists these records."
        )

    def records_set_aside(self) -> Iterator[tuple[int, str, str]]:
        """Yield (row, reason, detail) of every record that did not become a sample."""
        names = {code: word for word, code in STATE_CODES.items()}
        total = sum(self.plan.set_aside.values())
        for start in range(0, total, layout.SAMPLES_PER_CHUNK):
            stop = min(start + layout.SAMPLES_PER_CHUNK, total)
            columns = [self.column(f"set_aside_{name}", start, stop).tolist() for name in ("row", "reason", "detail")]
            for row, code, detail in zip(*columns, strict=True):
                yield row, names.get(code, str(code)), detail


class SignalView:
    """One signal of a store, open for reading. Only committed units count."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.key = signal_key(name)
        where = f"{store.location}/{self.key}/zarr.json"
        self.signal = group_document(store.backend.read(f"{self.key}/zarr.json"), Signal, where)
        if self.signal.name != name:
            raise Corrupt(
                f"{where} belongs to the signal {self.signal.name!r}. `grace-store verify --repair` restores "
                "the right document if there is a copy."
            )
        self._group = ArrayGroup(store.backend, self.key, self.arrays)

    def __repr__(self) -> str:
        spec = self.signal.spec
        what = f"{spec.kind}, a vector of {self.vector_size} for each {self.vectors_of}, {spec.storage}"
        return f"<Signal {self.name} of {self.store.location}: {what}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return SignalView, (self.store, self.name)

    @property
    def vector_size(self) -> int:
        return self.signal.spec.vector_size

    @property
    def per_sample(self) -> bool:
        """Whether each sample has one vector and no Gram, instead of a vector for each segment."""
        return self.signal.spec.is_per_sample

    @property
    def vectors_of(self) -> str:
        """The owner of each vector: "sample" or "segment"."""
        return "sample" if self.per_sample else "segment"

    @cached_property
    def storage(self) -> VectorStorage:
        return storage_of(self.signal.spec)

    @property
    def vector_arrays(self) -> list[str]:
        """Names of the arrays from which vectors are decoded."""
        names = [f"{self.vectors_of}_vector"]
        return [*names, f"{self.vectors_of}_scale"] if self.storage.has_scale else names

    @cached_property
    def identity(self) -> str:
        """The digest of the signal that every commit contains, computed once."""
        return self.signal.identity()

    @cached_property
    def arrays(self) -> list[layout.ArraySpec]:
        return layout.signal_arrays(self.store.plan, self.signal.spec)

    def committed_units(self) -> list[int]:
        """Return the units that have a commit, in order, from one listing."""
        return [int(name[:-5]) for name in self.store.backend.names(f"{COMMITS}/{self.name}") if is_commit_name(name)]

    def commit(self, unit: int) -> Commit:
        """Return a unit's commit; raise Corrupt if it is missing, damaged or of another signal."""
        return self.parsed_commit(unit, self.store.backend.read(commit_key(self.name, unit)))

    def commits(self, units: Sequence[int]) -> Iterator[Commit]:
        """Yield the commits of units as commit does; the backend may read several at a time."""
        found = self.store.backend.read_all([commit_key(self.name, unit) for unit in units])
        return map(self.parsed_commit, units, found)

    def parsed_commit(self, unit: int, raw: bytes | None) -> Commit:
        """Return a unit's commit from its bytes; raise Corrupt if they are not a commit of this unit and signal."""
        key = commit_key(self.name, unit)
        commit = unseal(from_bytes(raw, key), Commit, key)
        if commit.unit != unit or commit.signal_sha256 != self.identity:
            raise Corrupt(f"{key} belongs to another unit or signal.")
        return commit

    def completion(self) -> Completion | None:
        """Return the totals of the signal; None if it is not complete."""
        key = completion_key(self.name)
        raw = self.store.backend.read(key)
        return None if raw is None else unseal(from_bytes(raw, key), Completion, key)

    def sharing(self) -> Sharing | None:
        """Return how samples share prompts and images, from the probe of the first run; None before it."""
        key = sharing_key(self.name)
        if (raw := self.store.backend.read(key)) is None:
            return None
        try:
            document = unseal(from_bytes(raw, key), SharingDocument, key)
        except Corrupt as error:
            raise Corrupt(f"{error} {_REDO_ALL}") from error
        if document.signal_sha256 != self.identity:
            raise Corrupt(f"{key} belongs to another signal. {_REDO_ALL}")
        return document.sharing

    @cached_property
    def chunks(self) -> ChunkReader:
        """The reader of whole chunks of committed units."""
        return ChunkReader(self.name, self.identity, self._group)

    def unit_arrays(self, unit: int, names: Sequence[str]) -> dict[str, Array]:
        """Return a unit's chunks of some arrays of the signal, with their padding, after a check against the commit."""
        wanted = [(self.array_spec(name).name, unit) for name in names]
        return dict(zip(names, self.chunks.read(wanted, self.chunks.digests([unit])), strict=True))

    def unit_array(self, name: str, unit: int) -> Array:
        """Return a unit's chunk of one array of the signal, with its padding, after a check against the commit."""
        return self.unit_arrays(unit, [name])[name]

    def array(self, name: str) -> zarr.Array[Any]:
        """Return one of the signal's arrays, open for reading, after a check of its metadata against the plan."""
        return self._group[name]

    def constant(self, name: str) -> Array:
        """Return one of the arrays that do not belong to units."""
        return self._group.read(name, 0, self.array_spec(name).shape[0])

    def array_spec(self, name: str) -> layout.ArraySpec:
        """Return the specification of one of the signal's arrays."""
        if (spec := self._group.specs.get(name)) is None:
            what = f"has vectors per {self.vectors_of}, and no {name}"
            raise UnknownName(f"Signal {self.name!r} of {self.store.location} {what}.")
        return spec

    def segment_rows(self, sample: int) -> slice:
        """Return the rows of a sample in every segment_* array."""
        start = int(self.store.column("sample_segment_start", sample, sample + 1)[0])
        return slice(start, start + self.store.num_steps(sample) + 1)

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Return rows of one committed unit from one of the signal's arrays, after a check against the commit.

        Of vectors only the given rows are read, and only their checksums are checked, because the digest in the commit
        needs the whole chunk.
        """
        if (spec := self.array_spec(name)).inner:
            return self._group.read(spec.name, start, stop)
        unit = start // spec.chunks[0]
        first = unit * spec.chunks[0]
        return self.unit_array(name, unit)[start - first : stop - first]

    def segments(self, name: str, sample: int) -> Array:
        """Return a segment_* array's values for a sample; the answer is last."""
        self.require_unit_of(sample)
        rows = self.segment_rows(sample)
        return self.rows(name, rows.start, rows.stop)

    def sample_value(self, name: str, sample: int) -> Any:
        """Return a sample_* array's value for a sample."""
        self.require_unit_of(sample)
        return self.rows(name, sample, sample + 1)[0]

    def vectors(self, sample: int) -> Float32Array:
        """Return a sample's K+1 vectors, or its one vector, decoded to float32."""
        self.require_unit_of(sample)
        rows = slice(sample, sample + 1) if self.per_sample else self.segment_rows(sample)
        return self.decode({name: self.rows(name, rows.start, rows.stop) for name in self.vector_arrays})

    def unit_vectors(self, unit: int) -> Float32Array:
        """Return all vectors of a unit with their padding; samples that were set aside have zeros."""
        return self.decode(self.unit_arrays(unit, self.vector_arrays))

    def decode(self, stored: Mapping[str, Array], rows: slice | Array = slice(None)) -> Float32Array:
        """Decode vectors, or some rows of them, from their stored arrays."""
        found = [stored[name][rows] for name in self.vector_arrays]
        return self.storage.decode(found[0], found[1] if self.storage.has_scale else None, self._constants)

    def gram(self, sample: int) -> FloatArray:
        """Return a sample's full (K+1, K+1) Gram."""
        self.require_unit_of(sample)
        start = int(self.store.column("sample_gram_start", sample, sample + 1)[0])
        m = self.store.num_steps(sample) + 1
        full = np.zeros((m, m))
        full[np.tril_indices(m)] = self.rows("sample_gram", start, start + m * (m + 1) // 2)
        return np.asarray(full + np.tril(full, -1).T)

    def state(self, sample: int) -> str:
        """Return a sample's state: planned, done, or the reason it was set aside."""
        if not is_committed(self, self.store.plan.unit_of(sample)):
            return "planned"
        code = int(self.rows("sample_state", sample, sample + 1)[0])
        return next((word for word, value in STATE_CODES.items() if value == code), str(code))

    def require_unit_of(self, sample: int) -> None:
        """Raise Unfinished unless the unit of a sample is committed."""
        if not is_committed(self, unit := self.store.plan.unit_of(sample)):
            raise Unfinished(
                f"{self.store.location}: sample {sample} is in unit {unit} of {self.name}. This unit is not done yet. "
                "Run `grace-store extract` again to finish the signal."
            )

    @cached_property
    def _constants(self) -> dict[str, Array]:
        return {name: self.constant(name) for name in self.storage.constants()}


def _plan_document(raw: bytes, location: str) -> Plan:
    """Return the plan from the zarr.json of the root group."""
    where = f"{location}/zarr.json"
    node = from_bytes(raw, where)
    attributes = node.get("attributes") if isinstance(node, dict) else None
    if not isinstance(attributes, dict) or "grace_store" not in attributes:
        raise NotAStore(f"{location} holds a Zarr group that grace-store did not make.")
    if not layout.are_possible(plan := group_document(raw, Plan, where)):
        raise Corrupt(
            f"{where} has counts that contradict each other: {plan.num_samples} samples of {plan.num_records} records "
            f"in {plan.num_units} units of {plan.samples_per_unit}, with {plan.rows_per_unit} rows each."
        )
    return plan


def is_commit_name(name: str) -> bool:
    """Return whether a file name is the name of a unit's commit."""
    return re.fullmatch(r"[0-9]{8}[.]json", name) is not None


def is_committed(view: SignalView, unit: int) -> bool:
    return view.store.backend.size(commit_key(view.name, unit)) is not None


StoreLike = Store | str | Path
"""A store or its location."""
