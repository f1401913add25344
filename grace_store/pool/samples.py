"""The samples of a store one by one, for studies in Python: their Grams, token counts, vectors, losses and texts."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from grace_store.base.arrays import Array, Float32Array, FloatArray, Int32Array, IntArray, offsets_of
from grace_store.base.errors import DataError
from grace_store.base.states import STATE_DONE, TOKEN_COLUMNS
from grace_store.base.text import counted
from grace_store.data.sample import Sample
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.pool.walk import SignalReader, map_ordered
from grace_store.store.opened import SignalView, Store

READ_AHEAD_THREADS = 2


def open_store(location: str | Path) -> Store:
    """Open a store for reading. ``store.signal_names`` lists its signals, ``store.plan`` has its settings."""
    return Store.open(location)


def iter_samples(pool: PoolLike) -> Iterator[StoredSample]:
    """Yield the done samples of a pool in its one signal, in the order of the plan."""
    pool = Pool.of(pool)
    opened = pool.store
    committed = SignalReader(opened, (pool.signal.name,), reads=("responses",))
    committed.check_complete(partial=pool.partial)
    view, texts = _WalkedSignal(opened, committed.names[0]), _Texts(opened, pool.data)
    names = ["sample_state", f"{view.vectors_of}_num_tokens", *(() if view.per_sample else ("sample_gram",))]
    units = sorted(committed.committed[0])
    read_ahead = map_ordered(lambda unit: view.unit_arrays(unit, names), units, READ_AHEAD_THREADS)
    for unit, arrays in zip(units, read_ahead, strict=True):
        view.hold(unit, arrays)
        start, stop = opened.plan.unit_range(unit)
        rows = opened.samples(start, stop)
        is_done = arrays["sample_state"][: stop - start] == STATE_DONE
        for place in np.flatnonzero(is_done if pool.wanted is None else is_done & pool.wanted[start:stop]).tolist():
            known = rows.sample_id[place], int(rows.row[place]), start + place, int(rows.num_steps[place])
            yield StoredSample(*known, view, texts)


def read_sample(pool: PoolLike, sample: str) -> StoredSample:
    """Return one done sample by its id, or by ``#row`` for its row in the dataset, in the signal of the pool."""
    pool = Pool.of(pool)
    return samples_at(pool.signal, [pool.store.find(sample)], pool.data)[0]


def samples_at(
    view: SignalView, positions: Sequence[int], data: Sequence[str | Path] | None = None
) -> list[StoredSample]:
    """Return the samples at some positions in the plan; raise DataError if one is not done in the signal."""
    store, texts, found = view.store, _Texts(view.store, data), []
    for position in positions:
        rows = store.samples(position, position + 1)
        view.require_unit_of(position)
        if (state := view.state(position)) != "done":
            who = f"Sample {rows.sample_id[0]!r} has no vectors in signal {view.name!r}"
            raise DataError(f"{who}: the sample was set aside ({state}).")
        known = rows.sample_id[0], int(rows.row[0]), position, int(rows.num_steps[0])
        found.append(StoredSample(*known, view, texts))
    return found


@dataclass(frozen=True, eq=False, repr=False)
class StoredSample:
    """One done sample of a signal. Each access reads an array from the store again.

    Segments are the K steps and, last, the answer. A signal with one vector per sample has one row instead of K+1,
    and no Gram, entropy, hit rate, spans or tokens.
    """

    sample_id: str
    row: int
    """Row of the record in the dataset."""
    position: int
    """Position of the sample in the plan."""
    num_steps: int
    _view: SignalView
    _texts: _Texts

    def __repr__(self) -> str:
        return f"<Sample {self.sample_id}, row {self.row}: {counted(self.num_steps, 'step')}, signal {self._view.name}>"

    @property
    def gram(self) -> FloatArray:
        """(K + 1, K + 1) inner products of its vectors, the answer last; exact in every storage."""
        return self._view.gram(self.position)

    @property
    def num_tokens(self) -> IntArray:
        """(K + 1,) tokens in each segment."""
        return self._rows("num_tokens").astype(np.int64)

    @property
    def vectors(self) -> Float32Array:
        """(K + 1, d) vectors as float32, decoded from their stored form."""
        return self._view.vectors(self.position)

    @property
    def loss(self) -> Float32Array:
        """(K + 1,) mean cross-entropy over each segment's tokens, in nats."""
        return self._rows("loss")

    @property
    def entropy(self) -> Float32Array:
        """(K + 1,) mean entropy of the model's predictions, in nats."""
        return self._rows("entropy")

    @property
    def hit_rate(self) -> Float32Array:
        """(K + 1,) share of each segment's tokens that the model ranks first."""
        return self._rows("hit_rate")

    @property
    def span(self) -> Int32Array:
        """(K + 1, 2) half-open spans of the segments in the response, in characters."""
        return self._rows("span")

    @property
    def tokens(self) -> dict[str, Array] | None:
        """Numbers of the response tokens by name (see `token_table`)."""
        return token_table(self._view, self.position)

    @property
    def segments(self) -> list[str]:
        """Texts of the segments, from the dataset; raises DatasetChanged if the dataset moved or changed."""
        return self._texts.read(self.position).segments

    @property
    def prompt(self) -> str:
        """Text of the prompt, from the dataset; raises DatasetChanged if the dataset moved or changed."""
        return "\n".join(turn.text for turn in self._texts.read(self.position).turns)

    def _rows(self, name: str) -> Array:
        if self._view.per_sample:
            return np.array([self._view.sample_value(f"sample_{name}", self.position)])
        return self._view.segments(f"segment_{name}", self.position)


def token_table(view: SignalView, sample: int) -> dict[str, Array] | None:
    """Return the rows of a sample in the token table of a signal; None if the signal or the sample has none.

    The columns are log_probability (nats), rank (from 1), entropy (nats), error (|p - y|) and num_characters (of the
    response, from this token to the next), in the order of the text.
    """
    view.require_unit_of(sample)
    if not view.signal.spec.has_token_table:
        return None
    unit = view.store.plan.unit_of(sample)
    first, last = view.store.plan.unit_range(unit)
    rows = offsets_of(view.rows("sample_num_token_rows", first, last)) + unit * view.store.plan.tokens_per_unit
    start, stop = rows[sample - first : sample - first + 2].tolist()
    return {name: view.rows(f"token_{name}", start, stop) for name in TOKEN_COLUMNS} if stop > start else None


class _WalkedSignal(SignalView):
    """A signal that is read unit by unit; arrays of the current unit stay in memory."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(store, name)
        self._held = -1
        self._arrays: dict[str, Array] = {}

    def hold(self, unit: int, arrays: dict[str, Array]) -> None:
        """Keep the arrays of a unit, and forget those of the previous unit."""
        self._held, self._arrays = unit, arrays

    def rows(self, name: str, start: int, stop: int) -> Array:
        length = self.array_spec(name).chunks[0]
        if start // length != self._held:
            return super().rows(name, start, stop)
        if name not in self._arrays:
            self._arrays[name] = self.unit_array(name, self._held)
        return self._arrays[name][start % length : start % length + stop - start]

    def require_unit_of(self, sample: int) -> None:
        if self.store.plan.unit_of(sample) != self._held:
            super().require_unit_of(sample)


@dataclass(eq=False)
class _Texts:
    """The samples of the dataset. The dataset is opened at the first read, and closed with this object."""

    _store: Store
    _data: Sequence[str | Path] | None

    @cached_property
    def _loader(self) -> UnitLoader:
        dataset = open_dataset(self._store, self._data, by_content=False)
        weakref.finalize(self, dataset.close)
        return UnitLoader(self._store, dataset)

    def read(self, position: int) -> Sample:
        return self._loader.read(position, position + 1)[0]
