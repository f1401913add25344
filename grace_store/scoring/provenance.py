"""The origin of results: notes about a store, and the check that the store is unchanged.

Also the rows of a table of scores that a filter keeps, and the check that a result replaces none of its sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grace_store.base.errors import NotAStore, ResumeMismatch, SettingError
from grace_store.base.files import overlaps
from grace_store.base.finding import LabelsFile, PoolNote, SignalNote, WhereNote
from grace_store.pool.arrow_arrays import arrow_flags
from grace_store.pool.label_columns import LabelColumns, LabelsLike, join_labels
from grace_store.pool.pool import Pool, SignalWeights
from grace_store.pool.sample_fields import Kept, KnownColumns, SampleFields
from grace_store.pool.walk import SignalReader
from grace_store.scoring.notes import NamedSignal, ScoredSignal, ScoresNote, StoreNote, TargetsNote, check_plan_of
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.backend import is_url
from grace_store.store.opened import Store, StoreLike
from grace_store.values.methods.method import MethodSpec

if TYPE_CHECKING:
    from grace_store.pool.records import SampleRecords
    from grace_store.scoring.sweep_table import SweepNote


def scores_note(signals: SignalReader, spec: MethodSpec, weights: SignalWeights, **more: Any) -> ScoresNote:
    """Return the note of a table of scores; more are fields of some methods."""
    return ScoresNote(spec=spec, signals=weighted_signals(signals, weights), **signals.origin, **more)


def noted_pool(
    note: ScoresNote | SweepNote, where: WhereNote | None = None, labels: LabelColumns | None = None
) -> PoolNote:
    """Return the pool of a table, for a finding; where is a filter on its rows."""
    signals = {name: SignalNote(sha256=each.sha256, num_units=each.num_units) for name, each in note.signals.items()}
    return PoolNote(
        store=note.store,
        plan_sha256=note.plan_sha256,
        num_units=note.num_units,
        signals=signals,
        partial=note.partial,
        where=where or note.where,
        labels=note.labels if labels is None else labels.note,
    )


def weighted_signals(signals: SignalReader, weights: SignalWeights) -> dict[str, ScoredSignal]:
    """Return the notes of some signals, with their weights."""
    return {
        view.name: ScoredSignal(sha256=view.signal.identity(), num_units=len(units), weight=weights.weights[view.name])
        for view, units in zip(signals.views, signals.committed, strict=True)
    }


def open_made_from(note: StoreNote | TargetsNote, moved: StoreLike | None, what: str, option: str) -> Store:
    """Open the store of a result, at its old or its new path; option is the option for the new path."""
    if moved is not None:
        return moved if isinstance(moved, Store) else Store.open(moved)
    try:
        return Store.open(note.store)
    except NotAStore:
        raise NotAStore(
            f"The {what} was made from {note.store}, but there is no store there now. If the store moved, "
            f"give its new path with {option}."
        ) from None


def check_signals_of(signals: Mapping[str, SignalNote], store: Store) -> None:
    """Raise ResumeMismatch unless the signals of the store have the same settings and number of units."""
    for key, then in signals.items():
        name = then.name if isinstance(then, NamedSignal) else key
        view = store.signal(name)
        if view.signal.identity() != then.sha256:
            raise ResumeMismatch(
                f"Signal {name!r} of {store.location} is not the signal that the scores were made from. Score again."
            )
        num_units = len(view.committed_units())
        if num_units != then.num_units:
            raise ResumeMismatch(
                f"Signal {name!r} of {store.location} had {then.num_units} units when it was scored and has "
                f"{num_units} now, so the same table cannot be made. Score it again."
            )


def open_store_of(scores: ScoreTable, location: str | None = None) -> Store:
    """Open the store of a table, or a copy of it; raise ResumeMismatch if the store has another plan."""
    store = open_made_from(scores.note, location or None, scores.what, "--store")
    check_plan_of(scores.note, store, scores.what)
    return store


def moved_labels(noted: LabelsFile | None, moved: str | Path | None, what: str) -> LabelsFile | None:
    """Return the note of a file of labels with the new path of the file, if the file moved."""
    if moved is None:
        return noted
    if noted is None:
        raise SettingError(f"{what} was made without a file of labels: leave --labels out")
    return noted.model_copy(update={"path": str(moved)})


def filter_scores(
    table: ScoreTable,
    where: str | None,
    store: str | None = None,
    data: Sequence[str | Path] | None = None,
    labels: LabelsLike | None = None,
) -> tuple[ScoreTable, SampleFields, WhereNote | None]:
    """Return the rows that a filter keeps, their fields, and the filter's note.

    store and data are the new paths, if they moved; labels is a file of labels.
    """
    joined = None if labels is None else join_labels(labels, table.table["sample_id"])
    fields = fields_of(table, store, data, joined)
    if where is None:
        return table, fields, None
    kept = fields.where(where)
    table = replace(table, table=table.table.filter(arrow_flags(kept.is_kept)))
    return table, fields_of(table, store, data, None if joined is None else joined.at(kept.places)), kept.note


def fields_of(
    table: ScoreTable, store: str | None, data: Sequence[str | Path] | None, labels: LabelColumns | None
) -> SampleFields:
    def records() -> SampleRecords:
        from grace_store.pool.records import SampleRecords  # the dataset's modules, which few filters need

        opened = open_store_of(table, store)
        return SampleRecords(opened, data, opened.positions_of(table.row), labels)

    return SampleFields(scored_columns(table), len(table), records, labels)


def keep_samples(pool: Pool, table: ScoreTable | None = None) -> Kept | None:
    """Return the samples of a plan that a filter keeps, None without a filter; with a table, only its samples."""
    if table is None or pool.where is None or isinstance(pool.where, Kept):
        return pool.kept
    positions = pool.store.positions_of(table.row)
    fields = replace(pool.fields(positions), known=scored_columns(table))
    is_kept = np.zeros(pool.store.plan.num_samples, dtype=np.bool_)
    is_kept[positions[fields.where(pool.where).is_kept]] = True
    return Kept(pool.where, is_kept, len(table))


def scored_columns(table: ScoreTable) -> KnownColumns:
    """Return the columns of a table that filters and groups can use; flags are joined by commas."""

    def column(name: str) -> Callable[[int, int], Sequence[object]]:
        def values(start: int, stop: int) -> list[object]:
            found = table.table["sample_id" if name == "id" else name].slice(start, stop - start).to_pylist()
            return [",".join(each) for each in found] if name == "flags" else list(found)

        return values

    return {name: column(name) for name in ("id", "row", "num_steps", "num_tokens", "value", "flags")}


Source = tuple[Path, str]
"""A path, and its role in words."""


def sources_of(store: Store, labels: LabelsLike | None = None) -> list[Source]:
    """Return the paths of the store, of the files that it was planned from, and of a file of labels."""
    planned = [(Path(file.path), "which the store was planned from") for file in store.plan.files]
    path = labels.path if isinstance(labels, LabelsFile) else labels
    return [*planned, *place_of(store.location), *([] if path is None else [(Path(path), "the labels")])]


def place_of(location: str) -> list[Source]:
    """Return the path of a store; none for a store in an object store, where results are never written."""
    return [] if is_url(location) else [(Path(location), "the store")]


def check_results(
    store: Store | str | Path | None, targets: Sequence[Path | None], inputs: Sequence[Path | None] = ()
) -> None:
    """Raise SettingError if an output would replace the store or an input, or if two outputs are the same file."""
    sources = [] if store is None else sources_of(store if isinstance(store, Store) else Store.open(store))
    given = [path for path in targets if path is not None]
    for number, path in enumerate(given):
        if any(overlaps(path, other) for other in given[:number]):
            raise SettingError(f"{path} would be written twice: give each file a different name")
    check_outputs(given, [*sources, *((path, "which is read for it") for path in inputs if path is not None)])


def check_outputs(targets: Sequence[Path], sources: Iterable[Source]) -> None:
    """Raise SettingError if an output is, contains or lies in one of its sources."""
    for source, what in sources:
        for target in targets:
            if overlaps(target, source):
                raise SettingError(
                    f"Writing {target} would replace or change {source}, {what}; choose another --out. "
                    "Nothing was written."
                )
