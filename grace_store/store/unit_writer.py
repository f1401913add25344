"""Write a signal: create it, write its units, complete it. The commit of a unit comes last and lists its chunks."""

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from grace_store.base.arrays import Array, Int32Array, IntArray
from grace_store.base.errors import Corrupt
from grace_store.base.metadata import ChunkDigest, Commit, Completion, SampleSetAside, Sharing, SharingDocument, Signal
from grace_store.base.states import STATE_CODES, STATE_DONE, UnitOutcome, UnitSignals
from grace_store.base.text import counted
from grace_store.store import layout
from grace_store.store.array_group import ArrayEncoder
from grace_store.store.backend import check_signal_name, commit_key, completion_key, sharing_key, signal_key
from grace_store.store.digested_json import group_bytes, seal, to_bytes
from grace_store.store.lock import Lease
from grace_store.store.metadata_backup import write_copy
from grace_store.store.opened import SignalView, Store
from grace_store.store.storages import packed_grams, storage_of

WHOLE_SECONDS = 10.0
"""Time that another run may take to write a small document on a file system without hard links."""
_POLL_SECONDS = 0.1


def create_signal(store: Store, signal: Signal) -> SignalView:
    """Write the empty arrays of a signal, and last the metadata that makes the signal exist."""
    check_signal_name(signal.name)
    write_copy(store.backend, signal)
    write_metadata(store, signal)
    return store.signal(signal.name)


def keep_sharing(view: SignalView, found: Sharing) -> None:
    """Store how samples of a signal share prompts and images, unless another run has stored an intact document.

    Without hard links, a document is visible while it is written, and disappears if the writing fails.
    """
    document = to_bytes(seal(SharingDocument(signal_sha256=view.identity, sharing=found)))
    deadline = time.monotonic() + WHOLE_SECONDS
    while not view.store.backend.write_new(sharing_key(view.name), document):
        try:
            if view.sharing() is None:
                where = f"{view.store.location}/{sharing_key(view.name)}"
                raise Corrupt(f"{where} can neither be read nor written. Delete this file and run the command again.")
        except Corrupt:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return
    view.store.backend.flush()


def drop_damaged_sharing(view: SignalView) -> None:
    """Delete a damaged document of shared prompts; after all units are withdrawn, the next run writes a new one."""
    try:
        view.sharing()
    except Corrupt:
        view.store.backend.delete(sharing_key(view.name))


def write_metadata(store: Store, signal: Signal) -> None:
    """Write the metadata of a signal's arrays, the arrays that decode vectors, and last the metadata of its group."""
    constants = {name: (0, values) for name, (_, values, _) in storage_of(signal.spec).constants().items()}
    encoder = ArrayEncoder(layout.signal_arrays(store.plan, signal.spec))
    documents = encoder.metadata | encoder.encode(constants)
    key = signal_key(signal.name)
    store.backend.write_all({f"{key}/{name}": value for name, value in documents.items()})
    store.backend.flush()
    store.backend.write(f"{key}/zarr.json", group_bytes(signal))
    store.backend.flush()


class UnitWriter:
    """Encodes, writes and commits units of one signal. Not thread-safe: each writer thread has its own.

    The lease is confirmed before chunks and before commits; a store that no other run can reach needs no lease.
    """

    def __init__(self, view: SignalView, lease: Lease | None = None) -> None:
        self._view = view
        self._plan = view.store.plan
        self.confirm = lease.confirm if lease else lambda: None
        self._encoder = ArrayEncoder(view.arrays)
        self._dtypes = {array.name: np.dtype(array.dtype) for array in view.arrays}

    def write(self, unit: int, signals: UnitOutcome, spans: Int32Array) -> Commit:
        """Write all chunks of a unit durably, then its commit. spans is (rows, 2); vectors per sample do not use it."""
        start, stop = self._plan.unit_range(unit)
        samples = self._columns(unit, signals, "sample", stop - start)
        regions = {name: (start, values) for name, values in samples.items()}
        if isinstance(signals, UnitSignals):
            num_segments = self._view.store.column("sample_num_steps", start, stop).astype(np.int64) + 1
            regions |= self._segment_regions(unit, signals, spans, num_segments)
        state = np.full(stop - start, STATE_DONE, dtype=np.uint8)
        for position, why in signals.set_aside.items():
            state[position] = STATE_CODES[why.reason]
        chunks = self._encoder.encode({**regions, "sample_state": (start, state)})
        backend = self._view.store.backend
        self.confirm()
        backend.write_all({f"{self._view.key}/{name}": value for name, value in chunks.items()})
        backend.flush()
        commit = Commit(
            unit=unit,
            signal_sha256=self._view.signal.identity(),
            num_samples=stop - start,
            num_done=stop - start - len(signals.set_aside),
            num_tokens=signals.num_tokens,
            images_sha256=signals.images_sha256,
            set_aside=tuple(
                SampleSetAside(sample=start + position, reason=why.reason, detail=why.detail)
                for position, why in sorted(signals.set_aside.items())
            ),
            split=signals.split,
            chunks={name: digest_of(value) for name, value in chunks.items()},
        )
        self.confirm()
        backend.write(commit_key(self._view.name, unit), to_bytes(seal(commit)))
        backend.flush()
        return commit

    def _segment_regions(
        self, unit: int, signals: UnitSignals, spans: Int32Array, num_segments: IntArray
    ) -> dict[str, tuple[int, Array]]:
        """Return the start along the first dimension, and the values, of each array of a unit's segments."""
        rows, entries, token_rows = self._plan.rows_per_unit, self._plan.gram_per_unit, self._plan.tokens_per_unit
        segments = self._columns(unit, signals, "segment", int(num_segments.sum()), segment_span=spans)
        tokens = self._columns(unit, signals, "token", int(signals.sample_num_token_rows.sum()))
        return {
            **{name: (unit * rows, _padded(values, rows)) for name, values in segments.items()},
            **{name: (unit * token_rows, _padded(values, token_rows)) for name, values in tokens.items()},
            "sample_gram": (unit * entries, _padded(packed_grams(signals.segment_vector, num_segments), entries)),
        }

    def _columns(self, unit: int, signals: UnitOutcome, of: str, num_rows: int, **more: Array) -> dict[str, Array]:
        """Return the stored arrays of a unit's parts of a kind; raise ValueError for values outside the format."""
        names = [each.name for each in fields(signals) if each.name.startswith(f"{of}_") and each.name in self._dtypes]
        columns = {name: _in_range(getattr(signals, name), self._dtypes[name]) for name in names} | more
        for name, values in columns.items():
            if len(values) != num_rows:
                raise ValueError(f"unit {unit} has {num_rows} {of}s, {name} has {len(values)} rows")
        if of != self._view.vectors_of:
            return columns
        if not np.isfinite(vectors := getattr(signals, f"{of}_vector")).all():
            raise ValueError(f"unit {unit} has vectors that are not finite")
        columns[f"{of}_vector"], scale = self._view.storage.encode(vectors)
        return columns if scale is None else columns | {f"{of}_scale": scale}


def _in_range(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values for an array of a type; numbers above the range of a small whole number are its largest."""
    return np.minimum(values, np.iinfo(dtype).max).astype(dtype) if dtype == np.uint16 else values


def digest_of(value: bytes) -> ChunkDigest:
    return ChunkDigest(num_bytes=len(value), sha256=hashlib.sha256(value).hexdigest())


def _padded(values: Array, length: int) -> Array:
    return np.concatenate((values, np.zeros((length - len(values), *values.shape[1:]), values.dtype)))


def complete_signal(view: SignalView) -> Completion:
    """Write the totals over all commits of a finished signal."""
    if (units := view.committed_units()) != list(view.store.plan.units):
        wanted = counted(view.store.plan.num_units, "unit")
        raise Corrupt(f"{view.name} has {len(units)} of {wanted}, so the signal is not complete.")
    completion = Totals(view.commits(units)).completion(view.signal)
    view.store.backend.write(completion_key(view.name), to_bytes(seal(completion)))
    view.store.backend.flush()
    return completion


def withdraw_units(view: SignalView, units: Sequence[int]) -> None:
    """Delete commits, so that the next run computes these units again."""
    backend = view.store.backend
    backend.delete(completion_key(view.name))
    backend.delete(*(commit_key(view.name, unit) for unit in units))
    backend.flush()


# ---------------------------------------------------------------- totals of a signal
# The sums for the completion of a signal, or for the status of its units so far.


class Totals:
    """Sums over commits, which must be added in the order of their units. Keeps no commit in memory."""

    def __init__(self, commits: Iterable[Commit] = ()) -> None:
        self.num_units = self.num_samples = self.num_done = self.num_tokens = self.num_bytes = 0
        self._set_aside: Counter[str] = Counter()
        self._digests = hashlib.sha256()
        for commit in commits:
            self.add(commit)

    def add(self, commit: Commit) -> None:
        self.num_units += 1
        self.num_samples += commit.num_samples
        self.num_done += commit.num_done
        self.num_tokens += commit.num_tokens
        self.num_bytes += sum(chunk.num_bytes for chunk in commit.chunks.values())
        self._set_aside.update(why.reason.value for why in commit.set_aside)
        self._digests.update(f"{commit.digest()}\n".encode())

    @property
    def set_aside(self) -> dict[str, int]:
        """{reason: samples}, sorted by reason."""
        return dict(sorted(self._set_aside.items()))

    def completion(self, signal: Signal) -> Completion:
        """Return the completion document of a signal, after all its commits were added."""
        names = ("num_units", "num_done", "set_aside", "num_tokens", "num_bytes")
        digests = {"signal_sha256": signal.identity(), "commits_sha256": self._digests.hexdigest()}
        return Completion(**digests, **{name: getattr(self, name) for name in names})
