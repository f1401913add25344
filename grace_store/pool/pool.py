"""Pools: some samples of a store, with the signals to read, the filter (--where) and the groups (--by) of samples.

Filters and groups read fields of the records, and columns that a plan or a table has.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grace_store.base.arrays import BoolArray, IntArray, Positions, Rows
from grace_store.base.errors import DataError, DatasetChanged, SettingError, UnknownName
from grace_store.base.finding import PoolNote, SignalNote, WhereNote
from grace_store.base.text import one_line
from grace_store.data.record import value_of
from grace_store.pool.walk import SignalReader, Threads
from grace_store.store.opened import SignalView, Store, StoreLike

if TYPE_CHECKING:
    from grace_store.pool.filter_expression import FilterExpression
    from grace_store.pool.records import SampleRecords

ROWS_AT_ONCE = 512
"""Samples that are filtered together; a small number, because a field may hold a whole trace."""
EXAMPLES_SHOWN = 3
RECORDS_SEEN = 1000
"""Records that are searched for examples."""
_MISSING = object()

KnownColumns = Mapping[str, Callable[[int, int], Sequence[object]]]
"""Columns that are known without the records: by name, a function that returns the values of samples start..stop."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The samples that a filter keeps."""

    where: str
    """The filter, in SQL."""
    is_kept: BoolArray
    num_samples: int
    """Number of samples that the filter was applied to, which may be fewer than all."""

    @property
    def num_kept(self) -> int:
        return int(np.count_nonzero(self.is_kept))

    @property
    def note(self) -> WhereNote:
        """The note of the filter for documents."""
        return WhereNote(sql=self.where, num_samples=self.num_samples, num_kept=self.num_kept)

    @property
    def places(self) -> IntArray:
        """Indices of the samples that the filter keeps."""
        return np.flatnonzero(self.is_kept)


def keep_planned(store: Store, where: str, data: Sequence[str | Path] | None = None) -> Kept:
    """Return the samples of a plan that a filter keeps, by position."""
    from grace_store.pool.records import SampleRecords  # the dataset's modules, which only filters need

    return keep(where, planned_columns(store), store.plan.num_samples, lambda: SampleRecords(store, data))


def planned_columns(store: Store) -> KnownColumns:
    """Return the columns that a plan has of its samples."""

    def column(name: str) -> Callable[[int, int], Sequence[object]]:
        return lambda start, stop: store.column(f"sample_{name}", start, stop).tolist()

    return {name: column(name) for name in ("id", "row", "num_steps")}


def keep(where: str, known: KnownColumns, num_samples: int, records: Callable[[], SampleRecords]) -> Kept:
    """Return the samples that a filter keeps; records are opened only if the filter reads one of their fields."""
    from grace_store.pool.filter_expression import FilterExpression

    expression = FilterExpression(where, list(known))
    is_kept = np.zeros(num_samples, dtype=np.bool_)
    seen = _Seen({name: [] for name in expression.names})
    found = records() if expression.names else None
    rows = iter(found) if found is not None else iter(lambda: None, 0)
    for start in range(0, num_samples, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, num_samples)
        columns = [known[name](start, stop) for name in expression.known]
        fields = [seen.values(record) for record in islice(rows, stop - start)]
        block = [(*each, *more) for *each, more in zip(*columns, fields, strict=True)]
        is_kept[[start + place for place in expression.keeps(block)]] = True
    if found is not None:
        seen.check(expression, found, list(known))
    if num_samples and not is_kept.any():
        raise SettingError(f"--where {one_line(where)!r} keeps none of the {num_samples} samples{seen.in_words()}")
    return Kept(where, is_kept, num_samples)


@dataclass(slots=True)
class _Seen:
    """The first values of each field that a filter reads, as examples for errors."""

    examples: dict[str, list[object]]
    is_there: set[str] = field(default_factory=set)
    num_seen: int = 0

    def values(self, record: object) -> list[object]:
        """Return the fields of a record, None for a field that the record lacks."""
        if self.num_seen >= RECORDS_SEEN and len(self.is_there) == len(self.examples):
            return [value_of(record, name) for name in self.examples]
        self.num_seen += 1
        found = {name: value_of(record, name, _MISSING) for name in self.examples}
        there = {name: value for name, value in found.items() if value is not _MISSING}
        self.is_there.update(there)
        for name, value in there.items():
            if len(some := self.examples[name]) < EXAMPLES_SHOWN and value not in some:
                some.append(value)
        return [there.get(name) for name in found]

    def check(self, expression: FilterExpression, records: SampleRecords, known: Sequence[str]) -> None:
        """Raise SettingError for a field that no record has."""
        for name in self.examples.keys() - self.is_there:
            error = records.unknown(name, known)
            if name in expression.quoted:
                error.add_note("Double quotes are for names of fields; a text stands in single quotes.")
            raise error

    def in_words(self) -> str:
        """Return examples of values, for the error of a filter that keeps no sample."""
        shown = (f"{n} is {', '.join(one_line(repr(each)) for each in some)}" for n, some in self.examples.items())
        return f": {'; '.join(shown)}, for example" if self.examples else ""


# ---------------------------------------------------------------- groups


def parse_names(text: str) -> list[str]:
    """Return the names of a list; a name with a comma stands in double quotes.

    >>> parse_names('source,"a, b"')
    ['source', 'a, b']
    """
    try:
        names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True, strict=True), [])]
    except csv.Error as error:
        raise SettingError(f"{text!r} is not a list of fields ({error})") from None
    if not names or not all(names) or len(set(names)) < len(names):
        raise SettingError(f"{text!r} is not a list of different fields: write source,level for example")
    return names


def read_groups(by: str, known: KnownColumns, num_samples: int, records: Callable[[], SampleRecords]) -> list[object]:
    """Return the group of each sample: its value of a field, or a tuple of its values of several fields."""
    names = parse_names(by)
    columns: dict[str, Sequence[object]] = {
        name: known[name](0, num_samples) if name in known else [] for name in names
    }
    if fields := [name for name in names if name not in known]:
        opened = records()
        columns |= (found := opened.fields(fields))
        for name, values in found.items():
            if all(value is None for value in values):
                raise opened.unknown(name, list(known))
    return list(columns[names[0]]) if len(names) == 1 else list(zip(*columns.values(), strict=True))


@dataclass(frozen=True, slots=True)
class SignalWeights:
    """Signals that are scored together, each with its weight, in the given order."""

    weights: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.weights)

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
        return keep_planned(self.store, self.where, self.data)

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
        from grace_store.pool.records import question_groups

        return question_groups(self.store, self.group_by, self.data, self.positions if positions is None else positions)

    def questions_by_row(self) -> IntArray | None:
        """Return the question of each row of the dataset, -1 outside the pool; None if the dataset is not there."""
        found = np.full(self.store.plan.num_records, -1)
        try:
            found[self.rows] = self.questions()
        except (DataError, DatasetChanged):
            return None
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
        plan, kept = self.store.plan, self.kept
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
            where=None if kept is None else kept.note,
        )


PoolLike = Pool | StoreLike
