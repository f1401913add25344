"""Read a store: its plan, its samples, its signals. Opening never writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.errors import ArrayNotFoundError

from grace_store.base.arrays import Array, ByteArray, Float32Array, FloatArray, Int32Array, IntArray
from grace_store.base.errors import Corrupt, NotAStore, Unfinished, UnknownName
from grace_store.base.metadata import Commit, Completion, Plan, Signal
from grace_store.base.states import STATE_CODES
from grace_store.store import layout
from grace_store.store.backend import Backend, LocalBackend, open_backend
from grace_store.store.layout import SAMPLES, SIGNALS
from grace_store.store.sealed import from_bytes, group_document, sealed_body, unseal
from grace_store.store.vectors import Rotation, decode, encode
from grace_store.store.version import check_version


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The plan's columns for a range of samples."""

    start: int
    sample_id: list[str]
    row: IntArray
    file: Int32Array
    offset: IntArray
    length: IntArray
    digest: ByteArray
    num_steps: Int32Array

    def __len__(self) -> int:
        return len(self.sample_id)


class Group:
    """Arrays of one Zarr group, opened when first asked for and held against what the plan implies.

    With keep_chunks, of each array the chunk is kept that was read last: for those of which a chunk serves many reads.
    """

    def __init__(
        self, backend: Backend, path: str, arrays: Sequence[layout.ArraySpec], *, keep_chunks: bool = False
    ) -> None:  # fmt: skip
        self._backend = backend
        self._path = path
        self._specs = {spec.name: spec for spec in arrays}
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self._keep_chunks = keep_chunks
        self._kept: dict[str, tuple[int, Array]] = {}
        """The number of a chunk and its values, by array."""

    def __getitem__(self, name: str) -> zarr.Array[Any]:
        if name not in self._specs:
            raise UnknownName(f"{self._backend.location}: {self._path} has no array {name}.")
        if name not in self._arrays:
            try:
                array = zarr.open_array(
                    self._backend.zarr_store(), path=f"{self._path}/{name}", mode="r", zarr_format=3
                )
            except (ArrayNotFoundError, FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._unreadable(name, f"cannot be opened ({error})") from error
            spec = self._specs[name]
            if (array.shape, array.shards or array.chunks) != (spec.shape, spec.chunks) or not _has_dtype(array, spec):
                raise self._unreadable(
                    name,
                    f"is {array.dtype} {array.shape} in chunks of {array.shards or array.chunks}, the plan implies "
                    f"{spec.dtype} {spec.shape} in chunks of {spec.chunks}",
                )
            self._arrays[name] = array
        return self._arrays[name]

    def _unreadable(self, name: str, why: str) -> Corrupt:
        return Corrupt(
            f"{self._backend.location}: the array {self._path}/{name} {why}. "
            "`grace-store verify` says what else is wrong."
        )

    def read(self, name: str, start: int, stop: int) -> Array:
        """Return rows start..stop; a chunk that is missing or fails its checksum raises Corrupt."""
        num_rows, length = self[name].shape[0], self._specs[name].chunks[0]
        number = start // length
        first = number * length
        if not self._keep_chunks or stop > first + length:
            return self._read(name, start, stop)
        kept = self._kept.get(name)
        if kept is None or kept[0] != number:
            whole = self._read(name, first, min(first + length, num_rows))
            whole.flags.writeable = False
            kept = self._kept[name] = number, whole
        return kept[1][start - first : stop - first]

    def _read(self, name: str, start: int, stop: int) -> Array:
        array = self[name]
        try:
            return np.asarray(array[start:stop])
        except (ValueError, RuntimeError, OSError) as error:
            raise Corrupt(
                f"{self._backend.location}: rows {start}..{stop} of {self._path}/{name} cannot be read ({error}). "
                "Run `grace-store verify --deep`, then `grace-store repair`."
            ) from error


def _has_dtype(array: zarr.Array[Any], spec: layout.ArraySpec) -> bool:
    return array.dtype.kind in "TO" if spec.dtype == "string" else array.dtype == np.dtype(spec.dtype)


class Store:
    """A planned store, open for reading.

    Use ``Store.open(path)``; ``store.plan`` says what was frozen, ``store.signal(name)`` reads vectors.
    """

    def __init__(self, backend: Backend, plan: Plan) -> None:
        self.backend = backend
        self.plan = plan
        self._samples = Group(
            backend, SAMPLES, layout.sample_arrays(plan.num_samples, sum(plan.set_aside.values())), keep_chunks=True
        )  # fmt: skip

    @classmethod
    def open(cls, location: str | Path | Backend) -> Store:
        backend = open_backend(location) if isinstance(location, (str, Path)) else location
        raw = backend.read("zarr.json")
        if raw is None:
            found = "nothing is there" if not backend.names("") else "it has no plan (planning may have been cut short)"
            if isinstance(backend, LocalBackend) and backend.root.is_file():
                found = "it is a file"
            raise NotAStore(f"{backend.location} is not a grace-store store: {found}. `grace-store plan` makes one.")
        try:
            return cls(backend, _plan_document(raw, backend.location))
        except (Corrupt, NotAStore) as error:
            if backend.size(layout.PLAN_COPY) is not None:
                error.add_note("There is a copy of the plan, which `grace-store repair` puts back.")
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        """A store that is sent to another process is opened there, by its location."""
        return Store.open, (self.location,)

    @property
    def location(self) -> str:
        return self.backend.location

    @property
    def signal_names(self) -> list[str]:
        """Names of the signals, sorted. A signal exists when its group's metadata does."""
        names = [name for name in self.backend.names(SIGNALS) if name != "zarr.json"]
        documents = self.backend.read_all(f"{layout.signal_key(name)}/zarr.json" for name in names)
        return [name for name, document in zip(names, documents, strict=True) if document is not None]

    def signal(self, name: str | None = None) -> SignalView:
        """Return a signal by name; without a name, the only one there is."""
        if name is None:
            names = self.signal_names
            if not names:
                raise UnknownName(f"{self.location} has no signal yet; `grace-store extract` writes one.")
            if len(names) > 1:
                raise UnknownName(
                    f"{self.location}: say which signal is meant (there are: {', '.join(names)}) by --signal."
                )
            name = names[0]
        elif name not in self.backend.names(SIGNALS) or not self._has_signal(name):
            known = ", ".join(self.signal_names) or "none yet: run `grace-store extract`"
            raise UnknownName(f"{self.location} has no signal {name!r} (there are: {known}).")
        return SignalView(self, name)

    def _has_signal(self, name: str) -> bool:
        return self.backend.size(f"{layout.signal_key(name)}/zarr.json") is not None

    def samples(self, start: int, stop: int) -> SampleRows:
        """Return the plan's rows for samples start..stop."""
        read = self._samples.read
        return SampleRows(
            start=start,
            sample_id=read("sample_id", start, stop).tolist(),
            row=read("sample_row", start, stop),
            file=read("sample_file", start, stop),
            offset=read("sample_offset", start, stop),
            length=read("sample_length", start, stop),
            digest=read("sample_digest", start, stop),
            num_steps=read("sample_num_steps", start, stop),
        )

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Return one array of the plan, or a part of it."""
        return self._samples.read(name, start, self._samples[name].shape[0] if stop is None else stop)

    def positions_of(self, row: IntArray) -> IntArray:
        """Return where the samples with these dataset rows stand in the plan."""
        return np.searchsorted(self.column("sample_row"), row)

    def find(self, sample: str) -> int:
        """Return the position of a sample given by id, or by ``#row`` for its row in the dataset."""
        by_row = sample.startswith("#") and sample[1:].isdigit()
        name = "sample_row" if by_row else "sample_id"
        wanted: Any = int(sample[1:]) if by_row else sample
        for start in range(0, self.plan.num_samples, layout.SAMPLES_PER_CHUNK):
            hits = np.flatnonzero(
                self.column(name, start, min(start + layout.SAMPLES_PER_CHUNK, self.plan.num_samples)) == wanted
            )
            if len(hits):
                return start + int(hits[0])
        raise UnknownName(
            f"{self.location} has no sample {sample!r}. Give an id as `score` lists them, or #ROW for a dataset row; "
            "a record that was set aside is no sample (see `grace-store status`)."
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
        self.key = layout.signal_key(name)
        where = f"{store.location}/{self.key}/zarr.json"
        self.signal = group_document(store.backend.read(f"{self.key}/zarr.json"), Signal, where)
        if self.signal.name != name:
            raise Corrupt(
                f"{where} is the document of the signal {self.signal.name!r}. `grace-store repair` puts the right one "
                "back if there is a copy of it."
            )
        self._group = Group(store.backend, self.key, self.arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return SignalView, (self.store, self.name)

    @property
    def vector_size(self) -> int:
        return self.signal.spec.vector_size

    @property
    def per_sample(self) -> bool:
        """Whether a sample has one vector, and no Gram, instead of one for each segment."""
        return self.signal.spec.is_per_sample

    @cached_property
    def identity(self) -> str:
        """The digest that every commit of the signal names; made once, not for each of them."""
        return self.signal.identity()

    @cached_property
    def arrays(self) -> list[layout.ArraySpec]:
        return layout.signal_arrays(self.store.plan, self.signal.spec)

    def committed_units(self) -> list[int]:
        """Return the units whose commit exists, in order; one listing, no reads."""
        names = self.store.backend.names(f"{layout.COMMITS}/{self.name}")
        return [int(name[:-5]) for name in names if is_commit_name(name)]

    def commit(self, unit: int) -> Commit:
        """Return a unit's commit; Corrupt if it is missing, damaged or another signal's."""
        return self.parsed_commit(unit, self.store.backend.read(layout.commit_key(self.name, unit)))

    def commits(self, units: Sequence[int]) -> Iterator[Commit]:
        """Yield the commits of units as commit does, several being read at a time."""
        keys = [layout.commit_key(self.name, unit) for unit in units]
        return map(self.parsed_commit, units, self.store.backend.read_all(keys))

    def parsed_commit(self, unit: int, raw: bytes | None) -> Commit:
        """Return the commit of a unit from what lies at its key; Corrupt if that is none of its."""
        key = layout.commit_key(self.name, unit)
        commit = unseal(from_bytes(raw, key), Commit, key)
        if commit.unit != unit or commit.signal_sha256 != self.identity:
            raise Corrupt(f"{key} belongs to another unit or signal.")
        return commit

    def completion(self) -> Completion | None:
        """Return the totals if every unit was committed when they were written."""
        key = layout.completion_key(self.name)
        raw = self.store.backend.read(key)
        return None if raw is None else unseal(from_bytes(raw, key), Completion, key)

    def unit_array(self, name: str, unit: int) -> Array:
        """Return the whole chunk that a unit fills in one of the signal's arrays, padding included."""
        spec = self._spec(name)
        length = spec.chunks[0]
        return self._group.read(name, unit * length, min((unit + 1) * length, spec.shape[0]))

    def array(self, name: str) -> zarr.Array[Any]:
        """Return one of the signal's arrays, open for reading and held against what the plan implies."""
        return self._group[name]

    def constant(self, name: str) -> Array:
        """Return one of the arrays that have nothing to do with units."""
        return self._group.read(name, 0, self._spec(name).shape[0])

    def _spec(self, name: str) -> layout.ArraySpec:
        spec = next((array for array in self.arrays if array.name == name), None)
        if spec is None:
            per = "sample" if self.per_sample else "segment"
            raise UnknownName(f"Signal {self.name!r} of {self.store.location} has vectors per {per}, and no {name}.")
        return spec

    def segment_rows(self, sample: int) -> slice:
        """Return the rows of a sample in every segment_* array."""
        start = int(self.store.column("sample_segment_start", sample, sample + 1)[0])
        return slice(start, start + int(self.store.column("sample_num_steps", sample, sample + 1)[0]) + 1)

    def segments(self, name: str, sample: int) -> Array:
        """Return one segment_* array's values for a sample, the answer last."""
        self._require_unit_of(sample)
        rows = self.segment_rows(sample)
        return self._group.read(name, rows.start, rows.stop)

    def sample_value(self, name: str, sample: int) -> Any:
        """Return one sample_* array's value for a sample."""
        self._require_unit_of(sample)
        return self._group.read(name, sample, sample + 1)[0]

    def vectors(self, sample: int) -> Float32Array:
        """Return a sample's K+1 vectors as float32, decoded from their stored form."""
        return self.decode(
            self.segments("segment_vector", sample),
            None if self.signal.spec.storage == "float32" else self.segments("segment_scale", sample),
        )

    def unit_vectors(self, unit: int) -> Float32Array:
        """Return every segment's vector of a unit, padding included."""
        return self._unit_vectors("segment", unit)

    def sample_vectors(self, unit: int) -> Float32Array:
        """Return the vector of each of a unit's samples, (samples in the unit, vector_size); zero if set aside."""
        return self._unit_vectors("sample", unit)

    def _unit_vectors(self, of: str, unit: int) -> Float32Array:
        has_scale = self.signal.spec.storage != "float32"
        return self.decode(
            self.unit_array(f"{of}_vector", unit), self.unit_array(f"{of}_scale", unit) if has_scale else None
        )

    def decode(self, stored: Array, scale: Float32Array | None) -> Float32Array:
        if self.signal.spec.storage != "int4":
            return decode(stored, scale, self.signal.spec.storage)
        return decode(stored, scale, "int4", self._rotation, self.constant("vector_codebook"))

    def as_stored(self, vectors: Float32Array) -> Float32Array:
        """Return vectors as they would be read if they were written."""
        return self.decode(*encode(vectors, self.signal.spec.storage))

    def gram(self, sample: int) -> FloatArray:
        """Return a sample's full (K+1, K+1) Gram."""
        self._require_unit_of(sample)
        start = int(self.store.column("sample_gram_start", sample, sample + 1)[0])
        m = int(self.store.column("sample_num_steps", sample, sample + 1)[0]) + 1
        full = np.zeros((m, m))
        full[np.tril_indices(m)] = self._group.read("sample_gram", start, start + m * (m + 1) // 2)
        return np.asarray(full + np.tril(full, -1).T)

    def state(self, sample: int) -> str:
        """Return a sample's state: planned, done, or the reason it was set aside."""
        unit = self.store.plan.unit_of(sample)
        if not is_committed(self, unit):
            return "planned"
        code = int(self._group.read("sample_state", sample, sample + 1)[0])
        return next((word for word, value in STATE_CODES.items() if value == code), str(code))

    def _require_unit_of(self, sample: int) -> None:
        unit = self.store.plan.unit_of(sample)
        if not is_committed(self, unit):
            raise Unfinished(
                f"{self.store.location}: sample {sample} is in unit {unit} of {self.name}, which is not done yet. "
                "Run `grace-store extract` again to finish it."
            )

    @cached_property
    def _rotation(self) -> Rotation:
        return Rotation(self.constant("rotation_sign"), self.constant("rotation_order"))


def _plan_document(raw: bytes, location: str) -> Plan:
    """Return the plan that a root's zarr.json holds, of a version that this code knows."""
    where = f"{location}/zarr.json"
    node = from_bytes(raw, where)
    attributes = node.get("attributes") if isinstance(node, dict) else None
    if not isinstance(attributes, dict) or "grace_store" not in attributes:
        raise NotAStore(f"{location} holds a Zarr group that grace-store did not make.")
    check_version(sealed_body(attributes, where), location)
    return group_document(raw, Plan, where)


def is_commit_name(name: str) -> bool:
    """Return whether a file's name is that of a unit's commit."""
    return re.fullmatch(r"[0-9]{8}[.]json", name) is not None


def is_committed(view: SignalView, unit: int) -> bool:
    """Return whether a unit is done."""
    return view.store.backend.size(layout.commit_key(view.name, unit)) is not None
