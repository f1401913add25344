"""Labels that came after the plan: the columns of a file, joined to samples by their ids. Knows no condition."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace_store.base.arrays import Array, BoolArray, IntArray
from grace_store.base.errors import DataError, GraceStoreError, ResumeMismatch, SettingError
from grace_store.base.files import file_sha256
from grace_store.base.finding import LabelsFile
from grace_store.base.text import counted, first_few, one_line
from grace_store.data.tables import ID, plain_column, read_labels_table
from grace_store.pool.arrow_arrays import arrow_numbers, arrow_texts

LabelsLike: TypeAlias = str | Path | LabelsFile
"""The path of a file of labels, or the note of one, whose content must not have changed."""
RESERVED = ("row", "num_steps", "num_tokens", "value", "flags")
"""Names of columns that plans and tables of scores have."""
COLUMNS_SHOWN = 12


def refuse_unread(labels: LabelsLike | None, readers: str, *, is_read: bool) -> None:
    """Raise SettingError if labels are given, and not from a note, that nothing reads; readers are options."""
    if labels is not None and not isinstance(labels, LabelsFile) and not is_read:
        raise SettingError(f"--labels adds fields that nothing here reads: give {readers}, too")


@dataclass(frozen=True, slots=True)
class LabelColumns:
    """The columns of a file of labels, for some samples."""

    note: LabelsFile
    table: pa.Table
    """The columns in the order of the file, without the ids."""
    place: pa.Array
    """The row of the file for each sample; null for a sample without a row."""

    @property
    def names(self) -> list[str]:
        return list(self.table.column_names)

    @property
    def has_row(self) -> BoolArray:
        """Whether each sample has a row in the file."""
        return np.asarray(pc.is_valid(self.place).to_numpy(zero_copy_only=False))

    def are_in(self, condition: str) -> bool:
        """Return whether a condition may name one of the columns."""
        return any(name.lower() in condition.replace('""', '"').lower() for name in self.names)

    def at(self, positions: IntArray | None) -> LabelColumns:
        """Return the labels of the samples at some positions; None for all samples."""
        return self if positions is None else replace(self, place=self.place.take(arrow_numbers(positions, pa.int64())))

    def column(self, name: str, fields: Callable[[], Collection[str]]) -> pa.Array:
        """Return a column in the order of the samples; raise SettingError if records have a field of this name, too.

        fields returns the fields of the first records. If they cannot be read, only the column can be meant.
        """
        try:
            # Conditions ignore upper and lower case.
            same = next((field for field in fields() if field.lower() == name.lower()), None)
        except (GraceStoreError, OSError):
            same = None
        if same is not None:
            what = f"{one_line(name)!r} is a column of {self.note.path}, and {one_line(same)!r} a field of the records"
            raise SettingError(f"{what}: rename the column")
        return plain_column(self.table[name]).take(self.place)


def join_labels(given: LabelsLike, ids: Array | pa.ChunkedArray) -> LabelColumns:
    """Read a file of labels, and find the row of each sample by its id; raise if the file cannot be used."""
    noted = given if isinstance(given, LabelsFile) else None
    path = Path(given.path if isinstance(given, LabelsFile) else given)
    if not path.is_file():
        moved = " If the file moved, give its new path with --labels." if noted else ""
        raise SettingError(f"There is no file of labels {path}.{moved}")
    if noted is not None and file_sha256(path) != noted.sha256:
        raise ResumeMismatch(
            f"{path} is not the file of labels that was used: its content differs. Give the earlier file with "
            "--labels, or make the result again with the new labels."
        )
    table = read_labels_table(path)
    _check_names(path, table.column_names)
    wanted = ids if isinstance(ids, pa.ChunkedArray) else pa.chunked_array([arrow_texts(ids.tolist())])
    if not len(table) and len(wanted):
        raise DataError(f"{path} has no rows. Give it a row for each sample that has a label.")
    found = table[ID]
    if pa.types.is_floating(found.type):  # as pandas writes whole numbers if some are missing
        with suppress(pa.ArrowInvalid):
            found = pa.chunked_array([plain_column(found).cast(pa.int64())])
    found, wanted = found.cast(pa.large_string()), wanted.cast(pa.large_string())
    if len((known := found.drop_null()).unique()) < len(known):
        counts = known.value_counts()
        twice = counts.filter(pc.greater(counts.field("counts"), 1))
        example = one_line(twice[0]["values"].as_py())
        raise DataError(
            f"{path} has several rows with the same id: {counted(len(twice), 'id')}, such as {example!r} in "
            f"{twice[0]['counts']} rows. Give each sample one row."
        )
    place = pc.index_in(wanted, found.combine_chunks(), skip_nulls=True)
    num_matched = len(place.drop_null().unique())
    has_all = num_matched == len(found)
    note = LabelsFile(
        path=str(path.absolute()),
        sha256=file_sha256(path),
        num_rows=len(found),
        num_samples=len(wanted),
        num_matched=num_matched,
        unknown_id=None if has_all else _first(found, pc.invert(pc.is_in(found, wanted.drop_null()))),
        unlabelled_id=_first(wanted, pc.is_null(place)),
    )
    if not note.num_matched and len(wanted):
        raise DataError(
            f"No row of {path} has the id of a sample: its ids are like {note.unknown_id!r}, those of samples like "
            f"{note.unlabelled_id!r}. The column {ID} must have the ids of samples."
        )
    return LabelColumns(note, table.drop_columns([ID]), place.combine_chunks())


def _check_names(path: Path, names: list[str]) -> None:
    """Raise DataError for a file without ids, or with names of columns that mean something else or the same."""
    if ID not in names:
        shown = first_few([one_line(name) for name in names], COLUMNS_SHOWN) or "none"
        raise DataError(f"{path} has no column {ID} with the ids of samples. Its columns are: {shown}.")
    seen = dict.fromkeys(RESERVED, "a column that every sample has")
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            raise DataError(
                f"{path} has a column {one_line(name)!r}, and that is the name of {other}. Rename the column."
            )
        seen[name.lower()] = f"another column, {one_line(name)!r}: conditions ignore upper and lower case"


def _first(texts: pa.ChunkedArray | pa.Array, chosen: pa.ChunkedArray | pa.Array) -> str | None:
    found = texts.filter(chosen)
    return None if not len(found) else "null" if found[0].as_py() is None else found[0].as_py()
