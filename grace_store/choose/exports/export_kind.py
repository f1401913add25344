"""What a kind of export is (a module with one ``Export`` called EXPORT), and the chosen records that it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import DataError
from grace_store.base.files import JSON, JSON_LINES, format_of, write_records
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
    from grace_store.model.inputs.encode_samples import TokenCuts

Cut = Callable[[Sample], Sequence[int]]
"""From a sample to where the parts of its response begin, one for each segment, and where the last one ends."""
DIGITS = 6
"""Of a weight, after the point: enough for a mean of 1, few enough to read."""


class Part(NamedTuple):
    """Some of a response, and how much each of its tokens counts."""

    text: str
    weight: float


def weighted_parts(sample: Sample, weights: FloatArray | None, cut: Cut) -> list[Part]:
    """Return the response in parts, neighbours of one weight together; without weights, all of it with weight 1."""
    if weights is None:
        return [Part(sample.response, 1.0)]
    rounded = np.round(weights, DIGITS).tolist()
    parts: list[Part] = []
    for (start, stop), weight in zip(pairwise(cut(sample)), rounded, strict=True):
        text = sample.response[start:stop]
        if parts and parts[-1].weight == weight:
            parts[-1] = Part(parts[-1].text + text, weight)
        else:
            parts.append(Part(text, weight))
    return parts


def cut_by_spaces(sample: Sample) -> list[int]:
    """Cut where byte-level tokenizers do: line ends stay with the step before, the space before a word goes with it.

    >>> sample = Sample("a", (), "One. Two.\\nThree.", (0, 5, 10, 16))
    >>> [part.text for part in weighted_parts(sample, np.arange(3.0), cut_by_spaces)]
    ['One.', ' Two.\\n', 'Three.']
    """
    return [0, *_moved(sample.response, sample.bounds), len(sample.response)]


def _moved(response: str, bounds: Sequence[int]) -> Iterator[int]:
    for before, bound in pairwise(bounds[:-1]):
        takes_space = bound - before > 1 and response[bound - 1] == " " and not response[bound].isspace()
        yield bound - takes_space


@dataclass(slots=True)
class Exported:
    """What was written."""

    out: Path
    as_format: str
    num_samples: int
    files: list[Path] = field(default_factory=list)
    """All files that were written, the subset first."""
    notes: list[str] = field(default_factory=list)
    """What the user should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One way of writing a subset."""

    write: Callable[[ChosenRecords, Exported], object]
    formats: Sequence[str] = (JSON_LINES, JSON)
    """Of base.files, what it writes under a name that says so."""
    needs_dataset: bool = True
    """Whether records are read; an export without records is written from the table alone."""
    also_writes: Sequence[str] = ()
    """Names of files beside the subset that are written too."""
    is_of_pairs: bool = False
    """Whether it writes pairs of a chosen and a rejected response."""
    weights: Literal["any", "masks"] | None = None
    """Which step weights its reader can use: any, only those that are 0 or 1, or none."""
    no_weights: str = "what is written has no place for them"
    """Why it takes no weights, or no others than 0 and 1."""


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
        view = self.store.signal(next(iter(self.subset.scores.note.signals)))
        return image_folder(self._images, view, self.dataset)

    def raw(self, *, one_line: bool) -> Iterator[bytes]:
        """Yield the records byte for byte; on one line, a line break between its fields becomes a space."""
        return self._raw(self.subset.row, one_line=one_line)

    def _raw(self, rows: IntArray, *, one_line: bool) -> Iterator[bytes]:
        for raw in self.dataset.read_many(self._locators(rows)):
            yield raw.replace(b"\r", b" ").replace(b"\n", b" ") if one_line and b"\n" in raw else raw

    def copy(self, exported: Exported) -> None:
        """Write the records byte for byte: as JSON lines or, if the name of the file ends in .json, as an array."""
        write_records(exported.out, self.raw(one_line=format_of(exported.out) != JSON))

    def samples(self) -> Iterator[tuple[bytes, Sample]]:
        """Yield the records on one line each, with the samples they are."""
        return self._samples(self.subset.row)

    def weighted_samples(self, exported: Exported) -> Iterator[tuple[Sample, list[Part]]]:
        """Yield the samples, each with its response in parts that have weights; note what there is to know of them."""
        assert self.weights is not None  # what asks for it is only called with weights
        token_cuts, num_without = self._token_cuts(), 0
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

    def _token_cuts(self) -> TokenCuts | None:
        """Return where a model's tokenizer cuts responses; None if no model was given."""
        if self._model is None:
            return None
        from grace_store.model.inputs.encode_samples import (
            TokenCuts,  # needs transformers, which nothing else here does
        )

        return TokenCuts.of_model(self._model)

    def pairs(self) -> Iterator[tuple[Sample, Sample]]:
        """Yield the chosen samples, each with the one that it is preferred to; their prompts are the same."""
        rejected = self.subset.rejected_row
        assert rejected is not None  # only pairs are written by what asks for them
        both = zip(self.samples(), self._samples(rejected), strict=True)
        for (_, chosen), (_, other) in both:
            if prompt_digest(chosen) != prompt_digest(other):
                ids = f"{chosen.sample_id!r} and {other.sample_id!r}"
                raise DataError(
                    f"{ids} have different prompts or images, so they are no pair of responses to one prompt. Leave "
                    "--group-by out: then questions are what has the same prompt and images."
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
            except Unusable as why:  # the file is the planned one, so this code reads it differently
                raise DataError(f"Row {row} cannot be read as it was when it was planned: {why}.") from why
            yield raw, sample

    def _locators(self, rows: IntArray) -> Iterator[tuple[int, int, int]]:
        return locators_at(self.store, self.store.positions_of(rows))
