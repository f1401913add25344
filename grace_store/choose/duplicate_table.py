"""The table of duplicates: Parquet, one row for each sample, with a note in the metadata. It can be grouped again."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from grace_store.base.arrays import BoolArray, Float32Array, FloatArray, IntArray
from grace_store.base.documents import document_metadata
from grace_store.base.errors import DataError, SettingError
from grace_store.base.text import counted, percent
from grace_store.likeness.duplicate_groups import (
    SHOWN_THRESHOLDS,
    Keep,
    ThresholdCount,
    check_thresholds,
    choose_kept,
    count_groups,
    group_samples,
)
from grace_store.pool.arrow_arrays import numpy_numbers
from grace_store.scoring.notes import DuplicatesNote, GroupSpec
from grace_store.scoring.parquet_columns import read_columns, read_note, write_whole

SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("row", pa.int64()),
        ("group", pa.int64()),
        ("nearest", pa.string()),
        ("similarity", pa.float32()),
        ("keep", pa.bool_()),
        ("exact", pa.bool_()),
        ("value", pa.float64()),
        ("num_tokens", pa.int64()),
        ("link", pa.int64()),
        ("link_similarity", pa.float32()),
    ]
)


@dataclass(frozen=True, slots=True, repr=False)
class DuplicateTable:
    """Samples in the order of their records, their groups, and whether each sample is kept."""

    sample_id: list[str]
    row: IntArray
    """Dataset rows of their records."""
    nearest: IntArray
    """Place in the table of the most similar sample, however similar; -1 for a vector of zeros."""
    similarity: Float32Array
    """Cosine with the nearest sample; NaN if there is none. 1 for the same text."""
    exact: BoolArray
    """Whether another sample has the same text."""
    link: IntArray
    """Place of the sample that this sample is linked to, or -1. The links that reach a threshold make the groups."""
    link_similarity: Float32Array
    value: FloatArray
    """NaN without scores."""
    num_tokens: IntArray
    """Tokens in the response."""
    note: DuplicatesNote
    path: Path | None = None
    group: IntArray = field(init=False)
    """The group of each sample, numbered from 0 by earliest samples; -1 for a sample alone."""
    keep: BoolArray = field(init=False)

    def __post_init__(self) -> None:
        group = group_samples(self.link, self.link_similarity, self.threshold)
        kept = choose_kept(group, self.note.spec.keep, value=self.value, num_tokens=self.num_tokens, row=self.row)
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "keep", kept)

    @property
    def threshold(self) -> float:
        return self.note.spec.threshold

    @property
    def floor(self) -> float:
        """The lowest threshold that the links cover."""
        return self.note.spec.floor

    @property
    def num_groups(self) -> int:
        return int(self.group.max(initial=-1)) + 1

    @property
    def dropped(self) -> list[str]:
        """The ids of the samples that are not kept, in the order of the records."""
        return [self.sample_id[place] for place in np.flatnonzero(~self.keep).tolist()]

    @property
    def conclusion(self) -> str:
        """One or two sentences about the number of samples that could be dropped."""
        num_dropped, of = int((~self.keep).sum()), counted(len(self), "sample")
        if not num_dropped:
            return f"None of {of} could go: no two have the same text, or a cosine of {self.threshold:g} or more."
        groups = f"{'is' if self.num_groups == 1 else 'are'} {counted(self.num_groups, 'group')} of samples"
        share = f"{num_dropped} of {of} ({percent(num_dropped / len(self))}) could go"
        told = f"{share}: there {groups} that are alike (cosine {self.threshold:g} or more), and one of each"
        text, exact = "text" if self.note.exact_by == "text" else "record", int(self.exact.sum())
        copies = f"{exact} have the same {text} as another" if exact else f"No two have the same {text}"
        told = f"{told} is kept. {copies}."
        most = len(self) // 2
        stricter = [each for each in self.counts() if each.threshold > self.threshold and each.num_dropped <= most]
        if num_dropped > most and stricter:
            fewer = f"from {stricter[0].threshold:g} up, {stricter[0].num_dropped} would go"
            told += f" That is more than half, perhaps too many: {fewer}."
        return told

    @property
    def table(self) -> pa.Table:
        """The table as it is written."""
        ids = pa.array(self.sample_id, pa.string())
        has_link = self.link >= 0
        columns = [
            ids,
            pa.array(self.row, pa.int64()),
            pa.array(self.group, pa.int64(), mask=self.group < 0),
            ids.take(pa.array(self.nearest, pa.int64(), mask=self.nearest < 0)),
            pa.array(self.similarity, pa.float32(), from_pandas=True),
            pa.array(self.keep, pa.bool_()),
            pa.array(self.exact, pa.bool_()),
            pa.array(self.value, pa.float64(), from_pandas=True),
            pa.array(self.num_tokens, pa.int64()),
            # As a dataset row, which stays valid when the table is sorted or filtered.
            pa.array(self.row[np.where(has_link, self.link, 0)] if len(self) else self.row, pa.int64(), mask=~has_link),
            pa.array(self.link_similarity, pa.float32(), from_pandas=True),
        ]
        return pa.table(columns, schema=SCHEMA.with_metadata(document_metadata(self.note)))

    def regrouped(
        self, threshold: float | None = None, keep: Keep | None = None, value: FloatArray | None = None
    ) -> Self:
        """Return the table grouped by another threshold, another policy or other values, without a new search."""
        threshold = self.threshold if threshold is None else threshold
        if 0 < threshold < self.floor:
            raise SettingError(
                f"threshold {threshold:g} is below {self.floor:g}, where the search stopped: the table has no pairs "
                f"that are less similar. Search again with --floor {threshold:g}."
            )
        check_thresholds(threshold, self.floor)
        spec = GroupSpec(threshold=threshold, floor=self.floor, keep=keep or self.note.spec.keep)
        made_by = DuplicatesNote.model_fields["made_by"].default  # this version, not the one that wrote the table
        note = self.note.model_copy(update={"spec": spec, "made_by": made_by})
        return replace(self, value=self.value if value is None else value, note=note, path=None)

    def counts(self, thresholds: Sequence[float] | None = None) -> list[ThresholdCount]:
        """Return the numbers of groups and samples at the given thresholds, or at a few from the floor up."""
        if thresholds is None:
            shown = (each for each in SHOWN_THRESHOLDS if each >= self.floor)
            thresholds = sorted({*shown, self.floor, self.threshold})
        for threshold in thresholds:
            if threshold < self.floor:
                raise SettingError(f"threshold {threshold:g} is below {self.floor:g}, where the search stopped")
        return count_groups(self.link, self.link_similarity, thresholds)

    def write(self, path: str | Path) -> None:
        """Write the table; the file gets its name only when it is complete."""
        write_whole(Path(path), self.table, self.note)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; pandas must be installed."""
        return self.table.to_pandas()

    def __len__(self) -> int:
        return len(self.sample_id)

    def __repr__(self) -> str:
        groups = counted(self.num_groups, "group")
        return f"<DuplicateTable: {counted(len(self), 'sample')}, {groups} from {self.threshold:g} up>"


def read_duplicates(path: str | Path) -> DuplicateTable:
    """Read a table of duplicates; raise DataError if the file is not one."""
    path = Path(path)
    note = read_note(path, DuplicatesNote)
    table = read_columns(path, dict(zip(SCHEMA.names, SCHEMA.types, strict=True)), note.maker)
    row = _ints(table, "row")
    if len(row) != note.num_samples or (np.diff(row) <= 0).any():
        raise DataError(f"{path} does not hold the {note.num_samples} samples it was written with, in their order.")
    ids: list[str] = table["sample_id"].to_pylist()
    place = {text: number for number, text in enumerate(ids)}
    named, linked = table["nearest"].to_pylist(), _ints(table, "link")
    if any(text is not None and text not in place for text in named) or not np.isin(linked[linked >= 0], row).all():
        raise DataError(f"{path} names samples that are not in the table. Look for duplicates again.")
    return DuplicateTable(
        sample_id=ids,
        row=row,
        nearest=np.array([-1 if text is None else place[text] for text in named], dtype=np.int64),
        similarity=numpy_numbers(table["similarity"]),
        exact=np.asarray(table["exact"].to_numpy(zero_copy_only=False), dtype=np.bool_),
        link=np.where(linked < 0, -1, np.searchsorted(row, linked)),
        link_similarity=numpy_numbers(table["link_similarity"]),
        value=numpy_numbers(table["value"]),
        num_tokens=_ints(table, "num_tokens"),
        note=note,
        path=path,
    )


def _ints(table: pa.Table, name: str) -> IntArray:
    return np.asarray(table[name].fill_null(-1).to_numpy(), dtype=np.int64)
