"""The target set of an influence method: a store with its samples in subtasks, and a mean gradient for each subtask."""

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
    """The settings of a target set."""

    store: Store | str | Path
    signals: tuple[str, ...] = ()
    """One signal for each signal of the pool; if empty, the signals of the same names, or the only ones that fit."""
    subtasks: str | None = None
    """Field of the records that names the subtask; None if every file of the plan is a subtask."""
    data: tuple[str, ...] = ()
    """New paths of the target set's files, if they moved; needed only with a field."""

    def open(self) -> Store:
        return self.store if isinstance(self.store, Store) else Store.open(self.store)


@dataclass(frozen=True, slots=True)
class TargetSet:
    reader: SignalReader
    subtasks: tuple[str, ...]
    """Names of the subtasks."""
    sizes: IntArray
    """Number of samples of each subtask that every signal has; only these samples count."""
    num_set_aside: int
    """Number of records that planning or one of the signals set aside."""
    num_zero: int
    """Number of zero gradients over all signals; their cosines are 0."""
    means: FloatArray
    """(checkpoints, subtasks, D): mean directions, or mean gradients."""

    def describe(self, names: Sequence[str], targets: Targets) -> TargetsNote:
        """Return the note of the target set; names are the signals of the pool."""
        store = self.reader.store
        return TargetsNote(
            store=store.location,
            plan_sha256=store.plan.digest(),
            signals={
                name: NamedSignal(name=view.name, sha256=view.signal.identity(), num_units=len(units))
                for name, view, units in zip(names, self.reader.views, self.reader.committed, strict=True)
            },
            subtasks_by=targets.subtasks,
            subtasks=tuple(
                Subtask(name=name, num_samples=size)
                for name, size in zip(self.subtasks, self.sizes.tolist(), strict=True)
            ),
            num_set_aside=self.num_set_aside,
            num_zero=self.num_zero,
            data=tuple(targets.data),
        )


def find_subtasks(targets: Targets, store: Store) -> tuple[tuple[str, ...], IntArray]:
    """Return the names of the subtasks of a target store, and the number of the subtask of each planned sample.

    A field of the records names the subtasks, or each file of the plan is a subtask.
    """
    if targets.subtasks is None:
        if targets.data:
            raise SettingError("only --subtasks needs --target-data: give --subtasks, or leave --target-data out")
        names = name_files([Path(file.path) for file in store.plan.files])
        stems = [Path(name.removesuffix(".gz").removesuffix(".zst")).stem for name in names]
        # If two files share a stem, the names hold as much of their paths as tells files apart.
        labels = stems if len(set(stems)) == len(stems) else names
        return tuple(labels), store.column("sample_file").astype(np.int64)
    from grace_store.pool.records import SampleRecords  # the dataset's modules, which only a field needs

    values = list(SampleRecords(store, targets.data or None).each(targets.subtasks))
    empty = [place for place, value in enumerate(values) if value is None or value == ""]
    if len(empty) == len(values):
        raise SettingError(f"no record of the targets in {store.location} has a field {targets.subtasks!r}")
    if empty:
        ids = first_few(store.column("sample_id")[empty].tolist(), NAMED_IN_A_SENTENCE)
        raise SettingError(
            f"{len(empty)} of {len(values)} target samples have no field {targets.subtasks!r} ({ids}): every target "
            "sample needs a subtask"
        )
    # Values are compared as text: 1 and "1" are the same subtask.
    numbers: dict[str, int] = {}
    of_sample = np.array([numbers.setdefault(str(value), len(numbers)) for value in values], dtype=np.int64)
    return tuple(numbers), of_sample


def read_targets(targets: Targets, store: Store, signals: Sequence[str], *, restore_length: bool) -> TargetSet:
    """Return the mean gradient of every subtask for every signal. Each signal must be finished.

    Memory holds one unit at a time. Gradients are added in the order of the plan, so the result is always the same.
    """
    names, subtask = find_subtasks(targets, store)
    reader = SignalReader(store, tuple(signals), reads=("vectors",))
    reader.check_complete(may_be_partial=False)
    signals_of = range(len(reader.names))
    # A sample counts if it is done in all signals.
    counted = [np.logical_and.reduce([reader.done(n, unit) for n in signals_of]) for unit in store.plan.units]
    sizes = np.bincount(subtask[np.concatenate(counted)], minlength=len(names))
    if not sizes.all():
        lost = [one_line(name) for name, size in zip(names, sizes.tolist(), strict=True) if not size]
        named = first_few(lost, NAMED_IN_A_SENTENCE)
        raise SettingError(
            f"every target record of subtask {named} was set aside (`grace-store status {store.location}` "
            "says why): leave the subtask out of the target set, or correct its records"
        )
    means, num_zero = [], 0
    for number in signals_of:
        sums = SubtaskMeans(len(names), reader.views[0].vector_size)
        for unit, mine in enumerate(counted):
            of_sample = np.where(mine, subtask[slice(*store.plan.unit_range(unit))], -1)
            num_zero += _add_unit(reader, number, unit, of_sample, sums, restore_length=restore_length)
        means.append(sums.means())
    return TargetSet(reader, names, sizes, store.plan.num_records - int(sizes.sum()), num_zero, np.stack(means))


def _add_unit(
    reader: SignalReader, number: int, unit: int, of_sample: IntArray, sums: SubtaskMeans, *, restore_length: bool
) -> int:
    """Add a unit's gradients to their subtasks, -1 for no subtask; return the number of zero gradients."""
    found = reader.vectors(number, unit)
    assert found is not None  # check_complete was called: every unit is there
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
