"""The dataset of a planned store: the check that it is unchanged, its records, its samples, and their questions.

Knows no model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grace_store.base.arrays import Array, BitArray, Int32Array, IntArray, ascend, find_rows
from grace_store.base.errors import DataError, DatasetChanged, SettingError
from grace_store.base.files import file_sha256
from grace_store.base.states import Unusable
from grace_store.base.text import first_few, one_line
from grace_store.data.dataset import Dataset
from grace_store.data.expand import Expansion
from grace_store.data.folders import default_image_folder, name_files
from grace_store.data.record import Record, fields_in, value_of
from grace_store.data.sample import Sample
from grace_store.data.sample_digests import QUESTION_BYTES, field_digest
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import SampleRows, SignalView, Store

if TYPE_CHECKING:
    from grace_store.pool.label_columns import LabelColumns

CHANGES_SHOWN = 3
FIELDS_SHOWN, CLOSE_SHOWN = 12, 3
RECORDS_LOOKED_AT = 1000
"""Records that are read to list the fields."""
FIRST_RECORDS = 20
"""Records that are searched for a field with the name of a label."""
GATHERED_AT_ONCE = 1 << 18
"""Samples that are looked up together if neighbours in the dataset are far apart in the plan."""

PositionsLike = IntArray | Sequence[int]
"""Positions of samples in a plan."""


def open_dataset(store: Store, paths: Sequence[str | Path] | None = None, *, by_content: bool = True) -> Dataset:
    """Open the files that the store was planned from, or the same content at other paths.

    Without by_content only the number and sizes of files are checked; a changed record is refused when it is read.
    """
    planned = [file.path for file in store.plan.files]
    if not paths and (missing := [path for path in planned if not Path(path).exists()]):
        raise DatasetChanged(
            f"{store.location} was planned from {', '.join(missing)}, which is no longer there. "
            "Give the files' new place with --data (in Python: data=[...])."
        )
    try:
        # Names the given paths that are missing.
        dataset = Dataset.open(paths or planned, Expansion.of(store.plan.spec))
    except DataError:
        if paths:
            raise
        # The message does not show the content: a stranger's store may name a private file.
        raise DatasetChanged(
            f"{store.location} was planned from {', '.join(planned)}, where no such records are now. "
            "Give the files with --data (in Python: data=[...])."
        ) from None
    check_files(store, dataset, by_content=by_content)
    return dataset


def image_folder(given: str | None, view: SignalView | None, dataset: Dataset) -> str:
    """Return the folder for relative image paths: the given one, that of the signal's first run, or the data's."""
    of_run = None if view is None else view.signal.origin.get("images")
    return given or of_run or default_image_folder([file.path for file in dataset.files])


def check_files(store: Store, dataset: Dataset, *, by_content: bool = True) -> None:
    """Raise DatasetChanged, with the files and the first changed records, unless the content is unchanged."""
    planned = store.plan.files
    if len(planned) != len(dataset.files):
        raise DatasetChanged(
            f"{store.location} was planned from {len(planned)} file(s), {len(dataset.files)} given: "
            f"{', '.join(Path(file.path).name for file in dataset.files)}. Give the same data, or choose a new store."
        )
    changed = [
        index
        for index, (then, now) in enumerate(zip(planned, dataset.files, strict=True))
        if then.num_bytes != now.num_bytes or (by_content and then.sha256 != file_sha256(Path(now.path)))
    ]
    if changed:
        raise DatasetChanged(
            f"The data differs from what {store.location} was planned from:\n  "
            + "\n  ".join([_describe_change(store, dataset, index) for index in changed])
            + "\nRestore the files, or choose a new store and plan again."
        )


def _describe_change(store: Store, dataset: Dataset, index: int) -> str:
    """Return the change of a file in words, with the first few changed records."""
    then, now = store.plan.files[index], dataset.files[index]
    moved = "" if str(now.path) == then.path else f" (planned as {then.path})"
    text = f"{now.path}{moved}: planned {then.num_bytes} bytes, now {now.num_bytes}"
    start = sum(file.num_records for file in store.plan.files[:index])
    found: list[str] = []
    num_records = 0
    rows = store.column("sample_row")
    wanted = np.flatnonzero((rows >= start) & (rows < start + then.num_records))
    pieces = rows_at(store, wanted[np.argsort(rows[wanted])])
    digests = ((int(row), bytes(digest)) for some in pieces for row, digest in zip(some.row, some.digest, strict=True))
    row, digest = next(digests, (-1, b""))
    with Dataset.open([now.path], Expansion.of(store.plan.spec)) as single:
        for record in single.scan():
            num_records = record.row + 1
            while 0 <= row < start + record.row:
                row, digest = next(digests, (-1, b""))
            if row == start + record.row and digest != record.digest:
                found.append(str(record.row))
                if len(found) > CHANGES_SHOWN:
                    break
    if found:
        more = " and more" if len(found) > CHANGES_SHOWN else ""
        return f"{text}; changed records: row {', '.join(found[:CHANGES_SHOWN])}{more}"
    return f"{text}; planned {then.num_records} records, now {num_records}"


def rows_at(store: Store, positions: PositionsLike) -> Iterator[SampleRows]:
    """Yield the columns of the plan for samples at some positions, a piece at a time."""
    names = [f"sample_{name}" for name in SampleRows.COLUMNS]
    for piece in _pieces(store, positions):
        ids, *columns = _columns_at(store, names, piece)
        yield SampleRows(ids.tolist(), *columns)


def locators_at(store: Store, positions: PositionsLike) -> Iterator[tuple[int, int, int]]:
    """Yield file, offset and length of the records of samples at some positions."""
    for piece in _pieces(store, positions):
        columns = _columns_at(store, ["sample_file", "sample_offset", "sample_length"], piece)
        yield from zip(*(column.tolist() for column in columns), strict=True)


def _pieces(store: Store, positions: PositionsLike) -> Iterator[IntArray]:
    # In a plan that gathers, any piece may need every chunk: with large pieces, each chunk is read only a few times.
    length = GATHERED_AT_ONCE if store.plan.spec.gather else SAMPLES_PER_CHUNK
    for start in range(0, len(positions), length):
        yield np.asarray(positions[start : start + length], dtype=np.int64)


def _columns_at(store: Store, names: Sequence[str], positions: IntArray) -> list[Array]:
    """Return arrays of the plan at some positions; each chunk is read once."""
    chunk = positions // SAMPLES_PER_CHUNK
    order = np.argsort(chunk, kind="stable")
    parts = np.split(positions[order], np.flatnonzero(np.diff(chunk[order])) + 1)
    back = np.argsort(order)
    return [np.concatenate([_within_chunk(store, name, part) for part in parts])[back] for name in names]


def _within_chunk(store: Store, name: str, positions: IntArray) -> Array:
    first, last = (int(positions.min()), int(positions.max())) if len(positions) else (0, -1)
    return store.column(name, first, last + 1)[positions - first]


class UnitLoader:
    """Reads and parses the records of one unit at a time. Threads may share it."""

    def __init__(self, store: Store, dataset: Dataset) -> None:
        self._store = store
        self._dataset = dataset
        # Ids come from the planned paths, so data that was moved keeps its ids.
        self._names = name_files([Path(file.path) for file in store.plan.files])
        self._file_start = list(accumulate((file.num_records for file in store.plan.files), initial=0))

    def load(self, unit: int) -> tuple[list[Sample], Int32Array]:
        """Return the samples of a unit, and the character spans of their segments, shape (rows, 2)."""
        start, stop = self._store.plan.unit_range(unit)
        samples = self.read(start, stop)
        spans = [span for sample in samples for span in zip(sample.bounds, sample.bounds[1:], strict=False)]
        return samples, np.array(spans, dtype=np.int32).reshape(-1, 2)

    def read(self, start: int, stop: int) -> list[Sample]:
        """Return samples start..stop, each checked against the digest and number of steps in the plan."""
        return self.read_some(np.arange(start, stop))

    def read_some(self, positions: PositionsLike) -> list[Sample]:
        """Return the samples at positions in any order, with the same checks."""
        positions = np.asarray(positions, dtype=np.int64)
        is_gathered = self._store.plan.spec.gather
        # In the order of the dataset: some files can only be read forwards.
        order = np.argsort(_columns_at(self._store, ["sample_row"], positions)[0] if is_gathered else positions)
        found = dict(zip(order.tolist(), self.each(positions[order]), strict=True))
        return [found[place] for place in range(len(positions))]

    def each(self, positions: PositionsLike) -> Iterator[Sample]:
        """Yield the samples at positions in any order, with the same checks; memory holds one sample at a time."""
        for rows in rows_at(self._store, positions):
            yield from self._parsed(rows)

    def _parsed(self, rows: SampleRows) -> Iterator[Sample]:
        from grace_store.data.parse_records import parse_record  # imports all formats, which copies do not need

        locators = list(zip(rows.file.tolist(), rows.offset.tolist(), rows.length.tolist(), strict=True))
        for i, raw in enumerate(self._dataset.read_many(locators)):
            record = Record(int(rows.row[i]), *locators[i], raw)
            if record.digest != rows.digest[i].tobytes():
                raise self._changed(record)
            row_in_file = record.row - self._file_start[record.file]
            try:
                sample = parse_record(record, self._store.plan.spec, self._names[record.file], row_in_file)
            except Unusable as why:
                raise self._changed(record) from why
            if (sample.num_steps, sample.sample_id) != (int(rows.num_steps[i]), rows.sample_id[i]):
                raise self._changed(record)
            yield sample

    def _changed(self, record: Record) -> DatasetChanged:
        name = self._store.plan.files[record.file].path
        return DatasetChanged(
            f"Row {record.row} ({name}) is not what it was when {self._store.location} was planned. "
            "Restore the file, or choose a new store and plan again."
        )


@dataclass(frozen=True, slots=True)
class SampleRecords:
    """The records of some samples of a store, read one at a time."""

    store: Store
    data: Sequence[str | Path] | None = None
    """New paths of the dataset, if it moved."""
    positions: IntArray | None = None
    """Positions in the plan; None for all samples."""
    labels: LabelColumns | None = None
    """Columns of a file of labels for these samples; they are further fields."""

    def __len__(self) -> int:
        return self.store.plan.num_samples if self.positions is None else len(self.positions)

    def __iter__(self) -> Iterator[Any]:
        """Yield each record as a JSON value."""
        with open_dataset(self.store, self.data) as dataset:
            positions = range(len(self)) if self.positions is None else self.positions
            yield from map(json.loads, dataset.read_many(locators_at(self.store, positions)))

    def spread(self, most: int) -> SampleRecords:
        """Return at most this many of the records, evenly spread."""
        return self.at(np.unique(np.linspace(0, len(self) - 1, min(most, len(self))).astype(np.int64)))

    def at(self, places: IntArray) -> SampleRecords:
        """Return the records at some places among these records."""
        labels = None if self.labels is None else self.labels.at(places)
        return replace(self, positions=places if self.positions is None else self.positions[places], labels=labels)

    def unknown(self, field: str, known: Sequence[str] = ()) -> SettingError:
        """Return the error for a field that no record has, with the fields that exist; known are further names."""
        found = list(dict.fromkeys([*known, *self.spread(RECORDS_LOOKED_AT).field_names()]))
        close = get_close_matches(field, found, CLOSE_SHOWN)
        meant = f" Did you mean {' or '.join(close)}?" if close else ""
        others = first_few([one_line(name) for name in found if name not in close], FIELDS_SHOWN)
        more = "" if close or self.labels is not None else ". A column of a file of labels needs --labels"
        told = f"No record of {self.store.location} has a field {one_line(field)!r}."
        return SettingError(f"{told}{meant} There are: {others or 'none'}{more}")

    def field_names(self) -> list[str]:
        """Return the names of labels, then of fields, the most frequent first; a nested field has a dot in its name."""
        counts: Counter[str] = Counter([] if self.labels is None else {name: len(self) for name in self.labels.names})
        for record in self:
            counts.update(name for name, _ in fields_in(record))
        return [name for name, _ in counts.most_common()]

    def fields(self, names: Sequence[str]) -> dict[str, list[object]]:
        """Return fields of the records as columns, None where a record lacks the field.

        A dot leads into an object; lists and objects are returned as JSON texts.
        """
        known = [] if self.labels is None else self.labels.names
        found = {name: list(self.each(name)) if name in known else [] for name in names}
        of_records = [(name, found[name]) for name in found if name not in known]
        for record in self if of_records else ():
            for name, values in of_records:
                values.append(value_of(record, name))
        return found

    def each(self, name: str) -> Iterator[object]:
        """Yield the values of one field, None where a record lacks the field."""
        if self.labels is not None and name in self.labels.names:
            return iter(self.labels.column(name, self.first_fields).to_pylist())
        return (value_of(record, name) for record in self)

    def first_fields(self) -> set[str]:
        """Return the fields of the first records of the dataset, without labels. A record has objects, too."""
        first = range(min(FIRST_RECORDS, self.store.plan.num_samples))
        with open_dataset(self.store, self.data, by_content=False) as dataset:
            records = map(json.loads, dataset.read_many(locators_at(self.store, first)))
            return {name for record in records for name in (*record, *dict(fields_in(record)))}

    def questions(self, by: str | None = None) -> IntArray:
        """Return the number of the question of each sample; questions are numbered as they occur in the plan.

        by is a field, None for the same prompt and images. A sample without a value in this field has a question of its
        own. For a field, records are read one at a time, and memory holds 64 bits for each.
        """
        wanted = np.arange(len(self)) if self.positions is None else self.positions
        if not ascend(wanted):
            _, first, place = np.unique(wanted, return_index=True, return_inverse=True)
            return np.asarray(self.at(first).questions(by)[place])
        if by is None:
            return _numbered(question_digests(self.store, wanted))
        return _numbered(_as_numbers(self._of_field(by, wanted.tolist())))

    def _of_field(self, by: str, positions: Sequence[int]) -> Iterator[bytes]:
        found_any = False
        for position, value in zip(positions, self.each(by), strict=True):
            found_any |= value is not None
            yield field_digest(value, position)
        if positions and not found_any:
            raise self.unknown(by)


def columns_of_rows(
    store: Store, row: IntArray, fields: Sequence[str], data: Sequence[str | Path] | None = None
) -> dict[str, list[object]]:
    """Return fields of the records in some rows of the dataset, as columns in the order of the rows."""
    places, is_there = find_rows(store.column("sample_row"), row)
    if len(wrong := np.flatnonzero(~is_there)):
        raise DataError(f"Row {int(row[wrong[0]])} of the dataset is not a sample of {store.location}.")
    return SampleRecords(store, data, places).fields(fields)


def question_digests(store: Store, positions: IntArray) -> BitArray:
    """Return 64 bits of a digest of each sample's prompt and images, which the plan keeps; the same in all stores."""
    (digests,) = _columns_at(store, ["sample_question"], positions)
    return np.ascontiguousarray(digests[:, :QUESTION_BYTES]).view(">u8")[:, 0].astype(np.uint64)


def digest_samples(
    store: Store, data: Sequence[str | Path] | None, positions: IntArray, digest: Callable[[Sample], bytes]
) -> BitArray:
    """Return 64 bits of a digest of each sample, the same in all stores; positions ascend."""
    # Each record is checked against its digest in the plan, so the files are not checked as a whole.
    with open_dataset(store, data, by_content=False) as dataset:
        return _as_numbers(map(digest, UnitLoader(store, dataset).each(positions)))


def _as_numbers(digests: Iterable[bytes]) -> BitArray:
    return np.fromiter((int.from_bytes(digest[:QUESTION_BYTES]) for digest in digests), np.uint64)


def _numbered(digests: BitArray) -> IntArray:
    """Return the number of each digest, from 0 in the order of first occurrence.

    >>> _numbered(np.array([9, 4, 9, 1], dtype=np.uint64))
    array([0, 1, 0, 2])
    """
    ordered = np.sort(digests)
    if (ordered[1:] != ordered[:-1]).all():  # each occurs once
        return np.arange(len(digests))
    _, first, place = np.unique(digests, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[place]
