"""Pools: which samples of a store are looked at, by which signals, and where their records are.

Fields of the records, and what is known of samples, say which of them --where keeps and which groups --by makes.
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
from grace_store.base.errors import SettingError, UnknownName
from grace_store.base.finding import PoolNote, SignalNote, WhereNote
from grace_store.base.text import one_line
from grace_store.data.record import value_of
from grace_store.pool.walk import SignalReader, Threads
from grace_store.store.opened import SignalView, Store, StoreLike

if TYPE_CHECKING:
    from grace_store.pool.filter_expression import FilterExpression
    from grace_store.pool.records import SampleRecords

ROWS_AT_ONCE = 512
"""Samples that are filtered together: few, because a field may hold a whole trace."""
EXAMPLES_SHOWN = 3
RECORDS_SEEN = 1000
"""Records among which examples are looked for."""
_MISSING = object()

KnownColumns = Mapping[str, Callable[[int, int], Sequence[object]]]
"""What is known of samples without their records, by name: the values of samples start..stop."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Which of some samples a filter keeps."""

    where: str
    """The filter, in SQL."""
    is_kept: BoolArray
    num_samples: int
    """Samples that it was asked of, which may be fewer than all."""

    @property
    def num_kept(self) -> int:
        return int(np.count_nonzero(self.is_kept))

    @property
    def note(self) -> WhereNote:
        """What a document says of the filter."""
        return WhereNote(sql=self.where, num_samples=self.num_samples, num_kept=self.num_kept)

    @property
    def places(self) -> IntArray:
        """Where those that are kept stand among the samples."""
        return np.flatnonzero(self.is_kept)


def keep_planned(store: Store, where: str, data: Sequence[str | Path] | None = None) -> Kept:
    """Return which samples of a plan a filter keeps, by position."""
    from grace_store.pool.records import SampleRecords  # the dataset's modules, which only filters need

    return keep(where, planned_columns(store), store.plan.num_samples, lambda: SampleRecords(store, data))


def planned_columns(store: Store) -> KnownColumns:
    """Return what a plan knows of its samples."""
    names = {"id": "sample_id", "row": "sample_row", "num_steps": "sample_num_steps"}

    def column(name: str) -> Callable[[int, int], Sequence[object]]:
        return lambda start, stop: store.column(name, start, stop).tolist()

    return {name: column(array) for name, array in names.items()}


def keep(where: str, known: KnownColumns, num_samples: int, records: Callable[[], SampleRecords]) -> Kept:
    """Return which samples a filter keeps, in blocks; records are opened if the filter reads a field of theirs."""
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
    """The first values that were found in each field that a filter reads."""

    examples: dict[str, list[object]]
    is_there: set[str] = field(default_factory=set)
    num_seen: int = 0

    def values(self, record: object) -> list[object]:
        """Return the fields of a record, None for what it lacks."""
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
        """Raise for a field that no record has."""
        for name in self.examples.keys() - self.is_there:
            error = records.unknown(name, known)
            if expression.is_quoted(name):
                error.add_note("Double quotes are for names of fields; a text stands in single quotes.")
            raise error

    def in_words(self) -> str:
        """Return what the fields hold, for one who expected something else of them."""
        shown = (f"{n} is {', '.join(one_line(repr(each)) for each in some)}" for n, some in self.examples.items())
        return f": {'; '.join(shown)}, for example" if self.examples else ""


# ---------------------------------------------------------------- groups


def parse_names(text: str) -> list[str]:
    """Return the names of a list; one that has a comma itself stands in double quotes.

    >>> parse_names('source,"a, b"')
    ['source', 'a, b']
    """
    try:
        names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True, strict=True), [])]
    except csv.Error as error:
        raise SettingError(f"{text!r} is no list of fields ({error})") from None
    if not names or not all(names) or len(set(names)) < len(names):
        raise SettingError(f"{text!r} is no list of different fields, such as source,level")
    return names


def read_groups(by: str, known: KnownColumns, num_samples: int, records: Callable[[], SampleRecords]) -> list[object]:
    """Return the group of each sample: its value of a field, or the values of several, as a tuple."""
    names = parse_names(by)
    columns: dict[str, Sequence[object]] = {
        name: known[name](0, num_samples) if name in known else [] for name in names
    }
    if fields := [name for name in names if name not in known]:
        columns |= _read_columns(records(), fields, list(known))
    return list(columns[names[0]]) if len(names) == 1 else list(zip(*columns.values(), strict=True))


def _read_columns(records: SampleRecords, fields: Sequence[str], known: Sequence[str]) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {name: [] for name in fields}
    for record in records:
        for name, values in columns.items():
            values.append(value_of(record, name))
    for name, values in columns.items():
        if all(value is None for value in values):
            raise records.unknown(name, known)
    return columns


@dataclass(frozen=True, slots=True)
class SignalWeights:
    """Signals that are scored together, each with its weight; names in the order given."""

    weights: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.weights)

    def __str__(self) -> str:
        equal = len(set(self.weights.values())) == 1
        return ",".join(name if equal else f"{name}={weight:g}" for name, weight in self.weights.items())


Signals = str | Sequence[str] | Mapping[str, float] | SignalWeights | None
"""Signals as a user names them: one, several (each "name" or "name=weight"), with weights, or the only one (None)."""


def resolve_signals(store: Store, signals: Signals = None) -> SignalWeights:
    """Return the signals meant, all of them in the store. Weights are finite and above 0, 1 if not given."""
    if isinstance(signals, SignalWeights):
        signals = signals.weights
    if signals is None or not signals:
        return SignalWeights({store.signal(None).name: 1.0})
    if isinstance(signals, Mapping):
        pairs = [(name, float(weight)) for name, weight in signals.items()]
    else:
        given = [name_and_weight(store, text) for text in ([signals] if isinstance(signals, str) else signals)]
        pairs = [(name, 1.0 if weight is None else weight) for name, weight in given]
    _check_pairs(store, pairs)
    return SignalWeights(dict(pairs))


def _check_pairs(store: Store, pairs: Sequence[tuple[str, float]]) -> None:
    names = [name for name, _ in pairs]
    if unknown := [name for name in names if name not in store.signal_names]:
        known = ", ".join(store.signal_names) or "none yet: run `grace-store extract`"
        raise UnknownName(f"{store.location} has no signal {', '.join(map(repr, unknown))} (there are: {known}).")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"Signal {', '.join(map(repr, repeated))} is given twice: give each once, with its weight")
    for name, weight in pairs:
        if not (np.isfinite(weight) and weight > 0):
            raise SettingError(f"Signal {name!r} has weight {weight:g}: a weight is a number above 0")


def name_and_weight(store: Store, text: str) -> tuple[str, float | None]:
    """Return the signal that "name" or "name=weight" means, and the weight if one is given."""
    # A signal's name may itself hold "=", so a name that is there counts as one.
    name, equals, weight = text.rpartition("=")
    if not equals or text in store.signal_names:
        return text, None
    try:
        return name, float(weight)
    except ValueError:
        return text, None


def stepwise_signals(store: Store) -> tuple[str, ...]:
    """Return the signals that have vectors for steps, and so Grams."""
    return tuple(name for name in store.signal_names if not store.signal(name).signal.spec.is_per_sample)


@dataclass(frozen=True, repr=False)
class Pool:
    """Some samples of a store. Whatever reads a store takes a pool, or a store or its place for all of its samples."""

    store: Store
    signals: Signals = None
    """A name, several, or {name: weight}; None for the only one, or for all, as the reader says."""
    where: str | Kept | None = None
    """A condition in SQL over fields of the records, id, row and num_steps; or what one kept."""
    group_by: str | None = None
    """The field of the records that names a trace's question; None for the same prompt and images."""
    partial: bool = False
    """Read what is there of unfinished signals."""
    data: Sequence[str | Path] | None = None
    """Where the dataset is now, if it moved."""
    threads: Threads = None
    """What reads the store; changes only the speed."""

    @classmethod
    def of(cls, given: PoolLike, **more: Any) -> Pool:
        """Return a pool, opening a store that is given by its place; more are fields to change."""
        if isinstance(given, Pool):
            return replace(given, **more) if more else given
        return cls(given if isinstance(given, Store) else Store.open(given), **more)

    def __repr__(self) -> str:
        return f"<Pool of {self.store!r}>"

    # ------------------------------------------------------------ samples

    @cached_property
    def kept(self) -> Kept | None:
        """What the filter keeps, by position; None without one."""
        if self.where is None or isinstance(self.where, Kept):
            return self.where
        return keep_planned(self.store, self.where, self.data)

    @property
    def wanted(self) -> BoolArray | None:
        """Whether each sample of the plan is in the pool; None if all are."""
        return None if self.kept is None else self.kept.is_kept

    @property
    def positions(self) -> Positions:
        """Where the pool's samples stand in the plan, ascending."""
        return Positions(np.arange(self.store.plan.num_samples) if self.kept is None else self.kept.places)

    @property
    def rows(self) -> Rows:
        """The pool's rows of the dataset, in the order of the plan."""
        return Rows(self.store.column("sample_row")[self.positions].astype(np.int64))

    def questions(self, positions: Positions | None = None) -> IntArray:
        """Return the question of each of the pool's samples, or of those at some positions, numbered from 0."""
        from grace_store.pool.records import question_groups

        return question_groups(self.store, self.group_by, self.data, self.positions if positions is None else positions)

    # ------------------------------------------------------------ signals

    @cached_property
    def weights(self) -> SignalWeights:
        """The signals meant, each with its weight; the only one where none is named."""
        return resolve_signals(self.store, self.signals)

    @property
    def signal(self) -> SignalView:
        """The one signal meant."""
        if len(names := self.weights.names) > 1:
            raise UnknownName(f"One signal is wanted, and {len(names)} are given: {', '.join(names)}.")
        return self.store.signal(names[0])

    def stepwise(self) -> tuple[list[str], list[str]]:
        """Return the signals meant, or all that have steps, and those left out for having one vector a sample."""
        if self.signals:
            return list(self.weights.names), []
        names = list(stepwise_signals(self.store))
        if not names:
            raise UnknownName(f"{self.store.location} has no signal with steps yet; `grace-store extract` writes one.")
        return names, [name for name in self.store.signal_names if name not in names]

    # ------------------------------------------------------------ what is said of it

    def note(self, signals: SignalReader | None = None) -> PoolNote:
        """Return what a document says of the pool, and of the signals that were read."""
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
