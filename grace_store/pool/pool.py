"""Pools: some samples of a store, with the signals to read, the filter (--where), the questions and the labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grace_store.base.arrays import BoolArray, IntArray, Positions, Rows
from grace_store.base.errors import SettingError, UnknownName
from grace_store.base.finding import LabelsFile, PoolNote, SignalNote, WhereNote
from grace_store.pool.sample_fields import Kept, KnownColumns, SampleFields
from grace_store.pool.walk import SignalReader, Threads
from grace_store.store.opened import SignalView, Store, StoreLike

if TYPE_CHECKING:
    from grace_store.pool.label_columns import LabelColumns, LabelsLike
    from grace_store.pool.records import SampleRecords


def planned_columns(store: Store, positions: IntArray | None = None) -> KnownColumns:
    """Return the columns that a plan has of its samples, or of the samples at some positions."""

    def column(name: str) -> Callable[[int, int], Sequence[object]]:
        chosen = cache(lambda: store.column(f"sample_{name}")[positions])
        if positions is not None:
            return lambda start, stop: chosen()[start:stop].tolist()
        return lambda start, stop: store.column(f"sample_{name}", start, stop).tolist()

    return {name: column(name) for name in ("id", "row", "num_steps")}


@dataclass(frozen=True, slots=True)
class SignalWeights:
    """Signals that are scored together, each with its weight, in the given order."""

    weights: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.weights)

    @property
    def shares(self) -> list[float]:
        """The weights divided by their sum."""
        total = sum(self.weights.values())
        return [weight / total for weight in self.weights.values()]

    def __str__(self) -> str:
        equal = len(set(self.weights.values())) == 1
        return ",".join(name if equal else f"{name}={weight:g}" for name, weight in self.weights.items())


Signals = str | Sequence[str] | Mapping[str, float] | SignalWeights | None
"""Signals as a user gives them: a name, several ("name" or "name=weight"), {name: weight}, or None for the only one."""


def resolve_signals(store: Store, signals: Signals = None) -> SignalWeights:
    """Return the given signals with their weights, 1 by default; raise for an unknown signal or a bad weight."""
    if isinstance(signals, SignalWeights):
        signals = signals.weights
    if signals is None or not signals:
        return SignalWeights({store.signal(None).name: 1.0})
    if isinstance(signals, Mapping):
        pairs = [(name, float(weight)) for name, weight in signals.items()]
    else:
        given = [name_and_weight(store, text) for text in ([signals] if isinstance(signals, str) else signals)]
        pairs = [(name, 1.0 if weight is None else weight) for name, weight in given]
    names = [name for name, _ in pairs]
    if unknown := [name for name in names if name not in store.signal_names]:
        known = ", ".join(store.signal_names) or "none yet: run `grace-store extract`"
        raise UnknownName(f"{store.location} has no signal {', '.join(map(repr, unknown))} (there are: {known}).")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(
            f"Signal {', '.join(map(repr, repeated))} is given twice: give each signal once, with its weight"
        )
    for name, weight in pairs:
        if not (np.isfinite(weight) and weight > 0):
            raise SettingError(f"Signal {name!r} has weight {weight:g}: a weight is a number above 0")
    return SignalWeights(dict(pairs))


def name_and_weight(store: Store, text: str) -> tuple[str, float | None]:
    """Return the signal of "name" or "name=weight", and the weight if there is one."""
    # The name of a signal may contain "=", so a text that is a signal's name has no weight.
    name, equals, weight = text.rpartition("=")
    if not equals or text in store.signal_names:
        return text, None
    try:
        return name, float(weight)
    except ValueError:
        return text, None


def stepwise_signals(store: Store) -> tuple[str, ...]:
    """Return the signals that have vectors of steps, and so Grams."""
    return tuple(name for name in store.signal_names if not store.signal(name).signal.spec.is_per_sample)


@dataclass(frozen=True, repr=False)
class Pool:
    """Some samples of a store. Functions that read a store take a pool, or a store for all of its samples."""

    store: Store
    signals: Signals = None
    """A name, several names, or {name: weight}; None for the only signal, or for all, as the function says."""
    where: str | Kept | None = None
    """A condition in SQL over fields of the records, id, row and num_steps; or the samples that it keeps."""
    group_by: str | None = None
    """The field of the records that names the question of a trace; None for the same prompt and images."""
    partial: bool = False
    """Accept unfinished signals, and read their finished units."""
    data: Sequence[str | Path] | None = None
    """New paths of the dataset, if it moved."""
    threads: Threads = None
    """Threads or tasks that read the store; changes only the speed."""
    labels: LabelsLike | None = None
    """A file (CSV, TSV, JSON lines, Parquet) with a column id. Its other columns are used as if they were fields."""

    @classmethod
    def of(cls, given: PoolLike, **more: Any) -> Pool:
        """Return a pool of a pool, a store or a path; more are fields to change."""
        if isinstance(given, Pool):
            return replace(given, **more) if more else given
        return cls(given if isinstance(given, Store) else Store.open(given), **more)

    def __repr__(self) -> str:
        return f"<Pool of {self.store!r}>"

    # ------------------------------------------------------------ samples

    @cached_property
    def kept(self) -> Kept | None:
        """The samples that the filter keeps, by position; None without a filter."""
        if self.where is None or isinstance(self.where, Kept):
            return self.where
        return self.fields().where(self.where)

    @cached_property
    def label_columns(self) -> LabelColumns | None:
        """The columns of the file of labels, for all samples of the plan."""
        from grace_store.pool.label_columns import join_labels  # imports pyarrow

        return None if self.labels is None else join_labels(self.labels, self.store.column("sample_id"))

    def records(self, positions: IntArray | None = None) -> SampleRecords:
        """Return the records, with their labels, of the samples at some positions, or of all samples of the plan."""
        from grace_store.pool.records import SampleRecords  # the dataset's modules, which few functions need

        records = SampleRecords(self.store, self.data, None, self.label_columns)
        return records if positions is None else records.at(positions)

    def fields(self, positions: IntArray | None = None) -> SampleFields:
        """Return the fields of the samples at some positions, or of all samples of the plan."""
        num = self.store.plan.num_samples if positions is None else len(positions)
        labels = None if self.label_columns is None else self.label_columns.at(positions)
        return SampleFields(planned_columns(self.store, positions), num, lambda: self.records(positions), labels)

    @property
    def wanted(self) -> BoolArray | None:
        """Whether each sample of the plan is in the pool; None if all samples are."""
        return None if self.kept is None else self.kept.is_kept

    @property
    def positions(self) -> Positions:
        """Positions of the pool's samples in the plan, ascending."""
        return Positions(np.arange(self.store.plan.num_samples) if self.kept is None else self.kept.places)

    @property
    def rows(self) -> Rows:
        """The pool's rows of the dataset, in the order of the plan."""
        return Rows(self.store.column("sample_row")[self.positions].astype(np.int64))

    def questions(self, positions: Positions | None = None) -> IntArray:
        """Return the number of the question of each sample of the pool, or of the samples at some positions."""
        return self._questions if positions is None else self.records(positions).questions(self.group_by)

    @cached_property
    def _questions(self) -> IntArray:
        """The questions of the pool's samples, kept: those of a field are found by reading every record."""
        return self.records(self.positions).questions(self.group_by)

    def questions_by_row(self) -> IntArray:
        """Return the question of each row of the dataset, -1 outside the pool."""
        found = np.full(self.store.plan.num_records, -1)
        found[self.rows] = self.questions()
        return found

    # ------------------------------------------------------------ signals

    @cached_property
    def weights(self) -> SignalWeights:
        """The signals of the pool with their weights; the only signal if none is named."""
        return resolve_signals(self.store, self.signals)

    @property
    def signal(self) -> SignalView:
        """The one signal of the pool."""
        if len(names := self.weights.names) > 1:
            raise UnknownName(f"Give one signal: {len(names)} are given, {', '.join(names)}.")
        return self.store.signal(names[0])

    def stepwise(self) -> tuple[list[str], list[str]]:
        """Return the named signals, or all signals with steps; and the signals without steps that were left out."""
        if self.signals:
            return list(self.weights.names), []
        names = list(stepwise_signals(self.store))
        if not names:
            raise UnknownName(f"{self.store.location} has no signal with steps yet. Run `grace-store extract`.")
        return names, [name for name in self.store.signal_names if name not in names]

    def note(self, signals: SignalReader | None = None) -> PoolNote:
        """Return the note of the pool, and of the signals that were read, for documents."""
        plan = self.store.plan
        found = {} if signals is None else dict(zip(signals.views, signals.committed, strict=True))
        return PoolNote(
            store=self.store.location,
            plan_sha256=plan.digest(),
            num_units=plan.num_units,
            partial=signals is not None and signals.is_partial,
            signals={
                view.name: SignalNote(sha256=view.signal.identity(), num_units=len(units))
                for view, units in found.items()
            },
            **self.filter_notes,
        )

    @property
    def filter_notes(self) -> dict[str, WhereNote | LabelsFile | None]:
        """The notes of the filter and of the file of labels, by the names of these fields in documents."""
        labels = self.label_columns
        return {
            "where": None if self.kept is None else self.kept.note,
            "labels": None if labels is None else labels.note,
        }


PoolLike = Pool | StoreLike
