"""The rows of a scores table that a filter keeps, and the groups that fields of their records make."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.artifacts.arrow_arrays import arrow_flags
from grace_store.artifacts.made_from import open_store_of
from grace_store.artifacts.notes import WhereNote
from grace_store.artifacts.score_table import ScoreTable
from grace_store.read.kept_samples import Kept, KnownColumns, keep, keep_planned, read_groups
from grace_store.read.records import SampleRecords
from grace_store.store.opened import Store


def where_note(kept: Kept | None) -> WhereNote | None:
    """Return what a note says of a filter."""
    if kept is None:
        return None
    return WhereNote(sql=kept.where, num_samples=kept.num_samples, num_kept=kept.num_kept)


def filter_scores(
    table: ScoreTable, where: str | None, store: str | None = None, data: Sequence[str | Path] | None = None
) -> tuple[ScoreTable, WhereNote | None]:
    """Return the rows that a filter keeps; store and data say where these are now, if they moved."""
    if where is None:
        return table, None
    kept = keep(where, scored_columns(table), len(table), lambda: records_of(table, store, data))
    return replace(table, table=table.table.filter(arrow_flags(kept.is_kept))), where_note(kept)


def keep_samples(
    store: Store, where: str | Kept | None, table: ScoreTable | None = None, data: Sequence[str | Path] | None = None
) -> Kept | None:
    """Return which samples of a plan a filter keeps, None without one; of those in a table, if there is one."""
    if where is None or isinstance(where, Kept):
        return where
    if table is None:
        return keep_planned(store, where, data)
    positions = store.positions_of(table.row)
    found = keep(where, scored_columns(table), len(table), lambda: SampleRecords(store, data, positions))
    is_kept = np.zeros(store.plan.num_samples, dtype=np.bool_)
    is_kept[positions[found.is_kept]] = True
    return Kept(where, is_kept, len(table))


def groups_of(
    table: ScoreTable, by: str, store: str | None = None, data: Sequence[str | Path] | None = None
) -> list[object]:
    """Return the group of every row: the value of a field, or of several that a comma joins."""
    return read_groups(by, scored_columns(table), len(table), lambda: records_of(table, store, data))


def records_of(table: ScoreTable, store: str | None = None, data: Sequence[str | Path] | None = None) -> SampleRecords:
    """Return the records of the samples of a table."""
    opened = open_store_of(table, store)
    return SampleRecords(opened, data, opened.positions_of(table.row))


def scored_columns(table: ScoreTable) -> KnownColumns:
    """Return what a table knows of its samples; flags are joined by commas."""

    def values(name: str, start: int, stop: int) -> list[Any]:
        found: list[Any] = table.table[name].slice(start, stop - start).to_pylist()
        return found

    return {
        "id": lambda start, stop: values("sample_id", start, stop),
        "row": lambda start, stop: values("row", start, stop),
        "num_steps": lambda start, stop: values("num_steps", start, stop),
        "num_tokens": lambda start, stop: values("num_tokens", start, stop),
        "value": lambda start, stop: values("value", start, stop),
        "flags": lambda start, stop: [",".join(each) for each in values("flags", start, stop)],
    }
