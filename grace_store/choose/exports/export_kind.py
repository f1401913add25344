"""The interface of a kind of export (a module with one ``Export`` called EXPORT), and the chosen records to write."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import DataError
from grace_store.base.files import JSON, JSON_LINES, PARQUET, format_of, whole_file, write_json_records
from grace_store.base.states import Unusable
from grace_store.base.text import counted
from grace_store.data.dataset import Dataset
from grace_store.data.folders import name_files
from grace_store.data.record import Record
from grace_store.data.sample import Sample
from grace_store.data.sample_digests import prompt_digest
from grace_store.pool.records import image_folder, locators_at
from grace_store.scoring.weight_table import WeightTable
from grace_store.store.opened import Store

if TYPE_CHECKING:
    from grace_store.choose.selection import Subset

Cut = Callable[[Sample], Sequence[int]]
"""A function from a sample to the starts of the parts of its response, one for each segment, and the end."""


class Part(NamedTuple):
    """A part of a response, and the weight of each of its tokens."""

    text: str
    weight: float


def weighted_parts(sample: Sample, weights: FloatArray | None, cut: Cut) -> list[Part]:
    """Return the response in parts, with neighbours of equal weight joined; without weights, one part of weight 1."""
    if weights is None:
        return [Part(sample.response, 1.0)]
    rounded = np.round(weights, 6).tolist()  # precise enough for a mean of 1, and short enough to read
    parts: list[Part] = []
    for (start, stop), weight in zip(pairwise(cut(sample)), rounded, strict=True):
        text = sample.response[start:stop]
        if parts and parts[-1].weight == weight:
            parts[-1] = Part(parts[-1].text + text, weight)
        else:
            parts.append(Part(text, weight))
    return parts


def cut_by_spaces(sample: Sample) -> list[int]:
    """Cut as byte-level tokenizers do: a line end stays with the step before it, a space goes with the next word.

    >>> sample = Sample("a", (), "One. Two.\\nThree.", (0, 5, 10, 16))
    >>> [part.text for part in weighted_parts(sample, np.arange(3.0), cut_by_spaces)]
    ['One.', ' Two.\\n', 'Three.']
    """
    response, cuts = sample.response, [0]
    for before, bound in pairwise(sample.bounds[:-1]):
        takes_space = bound - before > 1 and response[bound - 1] == " " and not response[bound].isspace()
        cuts.append(bound - takes_space)
    return [*cuts, len(response)]


@dataclass(slots=True)
class Exported:
    """The files written by an export."""

    out: Path
    as_format: str
    num_samples: int
    files: list[Path] = field(default_factory=list)
    """All files that were written, the subset first."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A kind of export: a way to write a subset."""

    write: Callable[[ChosenRecords, Exported], object]
    formats: Sequence[str] = (JSON_LINES, JSON, PARQUET)
    """File formats, as base.files names them; the ending of OUT chooses one."""
    needs_dataset: bool = True
    """Whether the export reads records; without records, it is written from the table alone."""
    also_writes: Sequence[str] = ()
    """Names of further files that are written beside the subset."""
    is_of_pairs: bool = False
    """Whether the export writes pairs of a chosen and a rejected response."""
    weights: Literal["any", "masks"] | None = None
    """Step weights that the trainer can use: any, only 0 and 1, or none."""
    no_weights: str = "this format has no field for weights"
    """The reason why the export takes no weights, or only 0 and 1."""


def write_records(path: Path, records: Iterator[bytes]) -> None:
    """Write JSON records as the name of the file says: JSON lines, a JSON array, or Parquet."""
    if format_of(path) != PARQUET:
        write_json_records(path, records)
        return
    from grace_store.choose.exports.datasets import write_parquet  # imports pyarrow.parquet, which JSON does not need

    # Types of columns are known only after the last record, so records wait on the disk, not in memory.
    with whole_file(path) as partial, tempfile.TemporaryFile(prefix="grace-store-") as waiting:
        waiting.writelines(record + b"\n" for record in records)

        def read_again() -> Iterator[dict[str, Any]]:
            waiting.seek(0)
            return map(json.loads, waiting)

        write_parquet(partial, read_again)


class ChosenRecords:
    """The chosen records, read one at a time in the order of the dataset."""

    def __init__(
        self,
        subset: Subset,
        store: Store | None,
        dataset: Dataset | None,
        images: str | None = None,
        weights: WeightTable | None = None,
        model: str | None = None,
    ) -> None:
        self.subset = subset
        self.weights = weights
        self._model = model
        self._store = store
        self._dataset = dataset
        self._images = images

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def dataset(self) -> Dataset:
        assert self._dataset is not None
        return self._dataset

    @property
    def image_folder(self) -> str:
        """The folder that relative image paths start from."""
        view = next(map(self.store.signal, self.subset.scores.note.signals), None)  # none if only the plan was scored
        return image_folder(self._images, view, self.dataset)

    def raw(self, *, one_line: bool) -> Iterator[bytes]:
        """Yield the records byte for byte; with one_line, line breaks between fields become spaces."""
        return self._raw(self.subset.row, one_line=one_line)

    def _raw(self, rows: IntArray, *, one_line: bool) -> Iterator[bytes]:
        for raw in self.dataset.read_many(self._locators(rows)):
            yield raw.replace(b"\r", b" ").replace(b"\n", b" ") if one_line and b"\n" in raw else raw

    def copy(self, exported: Exported) -> None:
        """Write the records byte for byte, as JSON lines or in an array; in Parquet, their fields are columns."""
        write_records(exported.out, self.raw(one_line=format_of(exported.out) != JSON))

    def samples(self) -> Iterator[tuple[bytes, Sample]]:
        """Yield each record, on one line, with its sample."""
        return self._samples(self.subset.row)

    def weighted_samples(self, exported: Exported) -> Iterator[tuple[Sample, list[Part]]]:
        """Yield each sample with its response in weighted parts; add notes on weights and cuts in the end."""
        assert self.weights is not None  # only exports with weights call this
        token_cuts, num_without = None, 0
        if self._model is not None:
            from grace_store.model.inputs.encode_samples import TokenCuts  # the only imports here of transformers
            from grace_store.model.load.weights import describe_model

            token_cuts = TokenCuts(describe_model(self._model).tokenizer)
        for (_, sample), weights in zip(self.samples(), self.weights.segment_weights(self.subset.row), strict=True):
            num_without += weights is None
            yield sample, weighted_parts(sample, weights, token_cuts or cut_by_spaces)
        if num_without:
            exported.notes.append(
                f"{counted(num_without, 'sample')} without weights, written with weight 1 for every token"
            )
        if token_cuts is None:
            exported.notes.append(
                "steps are cut at line ends and before spaces; --model cuts where its tokenizer changes no token"
            )
        elif token_cuts.num_unlike:
            exported.notes.append(
                f"{counted(token_cuts.num_unlike, 'sample')} whose tokens change where steps are cut, by this tokenizer"
            )

    def pairs(self) -> Iterator[tuple[Sample, Sample]]:
        """Yield each chosen sample with its rejected sample; raise DataError if their prompts differ."""
        rejected = self.subset.rejected_row
        assert rejected is not None  # only exports of pairs call this
        for (_, chosen), (_, other) in zip(self.samples(), self._samples(rejected), strict=True):
            if prompt_digest(chosen) != prompt_digest(other):
                ids = f"{chosen.sample_id!r} and {other.sample_id!r}"
                raise DataError(
                    f"{ids} have different prompts or images, so they are no pair of responses to one prompt. Leave "
                    "--group-by out: then traces with the same prompt and images belong to one question."
                )
            yield chosen, other

    def _samples(self, rows: IntArray) -> Iterator[tuple[bytes, Sample]]:
        from grace_store.data.parse_records import parse_record  # all formats, which no copy of records needs

        names = name_files([Path(file.path) for file in self.store.plan.files])
        file_start = list(accumulate((file.num_records for file in self.store.plan.files), initial=0))
        for row, locator, raw in zip(rows.tolist(), self._locators(rows), self._raw(rows, one_line=True), strict=True):
            file = locator[0]
            record = Record(row, *locator, raw)
            try:
                sample = parse_record(record, self.store.plan.spec, names[file], row - file_start[file])
            except Unusable as why:  # the file is unchanged, so this version parses it differently
                raise DataError(f"Row {row} was usable when the store was planned, but is not now: {why}.") from why
            yield raw, sample

    def _locators(self, rows: IntArray) -> Iterator[tuple[int, int, int]]:
        return locators_at(self.store, self.store.positions_of(rows))
