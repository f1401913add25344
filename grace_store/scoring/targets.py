"""The target set of an influence method: a store of its own, its samples in subtasks, each subtask a mean gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import Corrupt, SettingError
from grace_store.base.states import Flag
from grace_store.base.text import first_few, one_line
from grace_store.data.folders import name_files
from grace_store.pool.walk import SignalReader
from grace_store.scoring.notes import NamedSignal, Subtask, TargetsNote
from grace_store.store.opened import Store
from grace_store.values.directions import ROWS_AT_ONCE, SubtaskMeans, unit_vectors

NAMED_IN_A_SENTENCE = 3


@dataclass(frozen=True, slots=True)
class Targets:
    """A target set as a user names it."""

    store: Store | str | Path
    signals: tuple[str, ...] = ()
    """One for each signal of the pool; none: those of the same names, or that fit."""
    subtasks: str | None = None
    """Field of the records that names the subtask; None: every file of the plan is one."""
    data: tuple[str, ...] = ()
    """Where the target set's files are now, if they moved; only a field needs them."""

    def open(self) -> Store:
        return self.store if isinstance(self.store, Store) else Store.open(self.store)


@dataclass(frozen=True, slots=True)
class Subtasks:
    """Which subtask every sample of the target plan belongs to."""

    by: str | None
    """The records' field, or None for the files."""
    names: tuple[str, ...]
    of_sample: IntArray
    """Number of the subtask of each sample."""


@dataclass(frozen=True, slots=True)
class TargetSet:
    """What is known of the targets once they are read."""

    reader: SignalReader
    subtasks: Subtasks
    sizes: IntArray
    """Samples of each subtask that count: those that every signal has."""
    num_set_aside: int
    """Records that do not count, because planning or one of the signals set them aside."""
    num_zero: int
    """Gradients without a direction, over all signals; their cosines are 0."""
    means: FloatArray
    """(checkpoints, subtasks, D): of directions, or of gradients as long as they were."""

    def describe(self, names: Sequence[str], data: Sequence[str]) -> TargetsNote:
        """Return what a table says of its target set; names are the pool's signals."""
        store = self.reader.store
        return TargetsNote(
            store=store.location,
            plan_sha256=store.plan.digest(),
            signals={
                name: NamedSignal(name=view.name, sha256=view.signal.identity(), num_units=len(units))
                for name, view, units in zip(names, self.reader.views, self.reader.committed, strict=True)
            },
            subtasks_by=self.subtasks.by,
            subtasks=tuple(
                Subtask(name=name, num_samples=size)
                for name, size in zip(self.subtasks.names, self.sizes.tolist(), strict=True)
            ),
            num_set_aside=self.num_set_aside,
            num_zero=self.num_zero,
            data=tuple(data),
        )


def find_subtasks(targets: Targets, store: Store) -> Subtasks:
    """Return the subtasks of a target store: by a field of its records, or one for each file of its plan."""
    if targets.subtasks is None:
        if targets.data:
            raise SettingError("--target-data is read only for --subtasks: files are subtasks by their names alone")
        return _by_file(store)
    from grace_store.pool.records import read_field  # the dataset's modules, which only a field needs

    values = read_field(store, targets.subtasks, targets.data or None)
    empty = [place for place, value in enumerate(values) if value is None or value == ""]
    if len(empty) == len(values):
        raise SettingError(f"no record of the targets in {store.location} has a field {targets.subtasks!r}")
    if empty:
        ids = first_few(store.column("sample_id")[empty].tolist(), NAMED_IN_A_SENTENCE)
        raise SettingError(
            f"{len(empty)} of {len(values)} target samples have no {targets.subtasks!r} ({ids}): every target sample "
            "needs a subtask"
        )
    # As text, as it is shown: 1 and "1" are one subtask.
    numbers: dict[str, int] = {}
    of_sample = np.array([numbers.setdefault(str(value), len(numbers)) for value in values], dtype=np.int64)
    return Subtasks(targets.subtasks, tuple(numbers), of_sample)


def _by_file(store: Store) -> Subtasks:
    names = name_files([Path(file.path) for file in store.plan.files])
    stems = [Path(name.removesuffix(".gz").removesuffix(".zst")).stem for name in names]
    # Files that share a stem are told apart by as much of their paths as that takes.
    labels = stems if len(set(stems)) == len(stems) else names
    return Subtasks(None, tuple(labels), store.column("sample_file").astype(np.int64))


def read_targets(store: Store, signals: Sequence[str], subtasks: Subtasks, *, restore_length: bool) -> TargetSet:
    """Return the mean gradient of every subtask for every signal. Each signal must be finished.

    One unit is in memory at a time, and gradients are added up in their order, so the result is always the same.
    """
    reader = SignalReader(store, tuple(signals), reads=("vectors",))
    reader.check_complete(may_be_partial=False)
    signals_of = range(len(reader.names))
    # A sample counts if it is done in all signals.
    counted = [np.logical_and.reduce([reader.done(n, unit) for n in signals_of]) for unit in store.plan.units]
    sizes = np.bincount(subtasks.of_sample[np.concatenate(counted)], minlength=len(subtasks.names))
    if not sizes.all():
        lost = [one_line(name) for name, size in zip(subtasks.names, sizes.tolist(), strict=True) if not size]
        named = first_few(lost, NAMED_IN_A_SENTENCE)
        raise SettingError(
            f"every target record of subtask {named} was set aside (`grace-store status {store.location}` "
            "says why): leave the subtask out of the target set, or mend its records"
        )
    means, num_zero = [], 0
    for number in signals_of:
        sums = SubtaskMeans(len(subtasks.names), reader.dimension)
        for unit, mine in enumerate(counted):
            of_sample = np.where(mine, subtasks.of_sample[slice(*store.plan.unit_range(unit))], -1)
            num_zero += _add_unit(reader, number, unit, of_sample, sums, restore_length=restore_length)
        means.append(sums.means())
    num_set_aside = store.plan.num_records - int(sizes.sum())
    return TargetSet(reader, subtasks, sizes, num_set_aside, num_zero, np.stack(means))


def _add_unit(
    reader: SignalReader, number: int, unit: int, of_sample: IntArray, sums: SubtaskMeans, *, restore_length: bool
) -> int:
    """Add a unit's gradients to their subtasks, -1 for none, and return how many of them have no direction."""
    found = reader.vectors(number, unit)
    assert found is not None  # every unit is there: that was asked first
    counted, num_zero = np.flatnonzero(of_sample >= 0), 0
    for start in range(0, len(counted), ROWS_AT_ONCE):
        rows = counted[start : start + ROWS_AT_ONCE]
        vectors, flags = unit_vectors(found.decoded(rows))
        length = found.length[rows].astype(np.float64)
        if (flags & np.uint8(Flag.NOT_FINITE)).any() or not np.isfinite(length).all():
            raise Corrupt(
                f"{reader.store.location}: unit {unit} of signal {reader.names[number]} has gradients that are not "
                "finite. Run `grace-store verify --repair`."
            )
        sums.add(vectors * length[:, None] if restore_length else vectors, of_sample[rows])
        num_zero += int((flags & np.uint8(Flag.ZERO_VECTOR) > 0).sum())
    return num_zero
