"""Findings: the results of studies. One type serves as result, file, JSON, terminal table and page section.

A finding has a conclusion in words, a few numbers, and tables of numbers, texts and estimates. Code that shows a
finding needs to know nothing about the study.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from grace_store.base.arrays import FloatArray
from grace_store.base.documents import Count, Document, Number
from grace_store.base.settings import Frozen
from grace_store.base.text import counted, one_line, percent

WIDE, NARROW = 0.1, 0.05
"""Half-widths of intervals: an interval wider than the first says too little; the second is narrow enough."""
UNKNOWN = "-"
"""Text in a table for an unknown number."""


class Estimate(Frozen):
    """A number with its interval (95 %, unless the study says another share) and its number of items.

    Unknown numbers are NaN.
    """

    value: Number
    low: Number = math.nan
    high: Number = math.nan
    num: Count = 0
    """Number of items that the estimate is based on: samples, pairs or draws, as the study says."""
    p_value: Number | None = None
    """Probability of a value at least this far from chance under the null hypothesis."""

    @classmethod
    def from_draws(cls, value: float, draws: Sequence[float] | FloatArray, num: int, **more: Any) -> "Estimate":
        """Return an estimate with the interval of the middle 95 % of some draws; without draws, it is unknown.

        >>> Estimate.from_draws(20.0, range(41), num=41).text(0)
        '20 (1 to 39)'
        """
        ends = np.quantile(np.asarray(draws, dtype=np.float64), (0.025, 0.975)).tolist() if len(draws) else ()
        low, high = ends or (math.nan, math.nan)
        return cls(value=value, low=low, high=high, num=num, **more)

    @property
    def is_known(self) -> bool:
        """Whether the interval is known."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def half_width(self) -> float:
        """Half of the interval's width; infinite without an interval."""
        return (self.high - self.low) / 2 if self.is_known else math.inf

    def num_wanted(self, num: int | None = None, half_width: float = NARROW) -> int:
        """Estimate how many items of this kind would narrow the interval to a half-width, rounded up to tens.

        >>> Estimate(value=0.5, low=0.4, high=0.6, num=64).num_wanted()
        260
        """
        grow = max(self.half_width / half_width, 1.0) ** 2
        return math.ceil((self.num if num is None else num) * grow / 10) * 10

    def text(self, digits: int = 3, *, is_share: bool = False) -> str:
        """Return the number with its interval, for tables and sentences.

        >>> Estimate(value=0.652, low=0.55, high=0.741, num=10).text(2)
        '0.65 (0.55 to 0.74)'
        """
        shown = number_text(self.value, digits, is_share=is_share)
        if not self.is_known:
            return shown
        ends = (number_text(each, digits, is_share=is_share) for each in (self.low, self.high))
        return f"{shown} ({' to '.join(ends)})"


Cell = Estimate | bool | int | float | str | None
"""A cell of a table; None if unknown."""


def number_text(value: float | None, digits: int = 3, *, is_share: bool = False) -> str:
    """Return a number for a table; a dash for an unknown number.

    >>> number_text(0.12345), number_text(float("nan")), number_text(0.964, is_share=True)
    ('0.123', '-', '96 %')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return percent(value) if is_share else f"{value:.{digits}f}"


class Column(Frozen):
    """How one column of a table is shown."""

    heading: str
    digits: int = 3
    is_share: bool = False
    """Whether the numbers are shares, to be shown in percent."""
    chance: Number | None = None
    """The value expected by chance, drawn as a line in the column's figure."""
    fewest: Count = 0
    """Smallest number of items for which an estimate is shown."""


def make_columns(**columns: str | Column) -> dict[str, Column]:
    """Return columns by name; a text stands for a column with that heading.

    >>> make_columns(num_samples="samples", mean=Column(heading="mean value", digits=2))["num_samples"].heading
    'samples'
    """
    return {name: Column(heading=each) if isinstance(each, str) else each for name, each in columns.items()}


class Table(Frozen):
    """A table of a finding; rows map names of columns to cells."""

    title: str = ""
    columns: dict[str, Column] = Field(min_length=1)
    rows: tuple[dict[str, Cell], ...] = ()
    about: str = ""
    """Explanation of the numbers."""
    is_drawn: bool = False
    """Whether a page also draws the first column of estimates as a figure."""
    is_shown: bool = True
    """Whether the terminal and pages show the table; other tables are for programs."""
    num_shown: Count | None = None
    """Number of first rows that the terminal and pages show; None for all."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, Cell]]:  # type: ignore[override]  # rows, not fields
        return iter(self.rows)

    def column(self, name: str) -> list[Cell]:
        """Return the cells of one column; None for a row without such a cell."""
        return [row.get(name) for row in self.rows]

    def row(self, **key: Cell) -> Mapping[str, Cell]:
        """Return the first row with these cells; raise KeyError if there is none.

        >>> Table(columns={"name": Column(heading="name")}, rows=({"name": "a", "num": 1},)).row(name="a")["num"]
        1
        """
        for row in self.rows:
            if all(row.get(name) == cell for name, cell in key.items()):
                return row
        raise KeyError(f"no row with {key}")

    def texts(self) -> list[list[str]]:
        """Return the headings and the rows to show, as texts."""
        return [
            [column.heading for column in self.columns.values()],
            *([self.cell_text(row, name) for name in self.columns] for row in self.rows[: self.num_shown]),
        ]

    def cell_text(self, row: Mapping[str, Cell], name: str) -> str:
        cell, column = row.get(name), self.columns[name]
        if isinstance(cell, Estimate):
            return cell.text(column.digits, is_share=column.is_share) if cell.num >= column.fewest else UNKNOWN
        if isinstance(cell, float) or cell is None:
            return number_text(cell, column.digits, is_share=column.is_share)
        return ("no", "yes")[cell] if isinstance(cell, bool) else f"{cell:,}" if isinstance(cell, int) else cell


class SignalNote(Frozen):
    """The identity of a signal, and the number of its units that were read."""

    sha256: str
    num_units: Count


class WhereNote(Frozen):
    """A filter of samples. Shares in a finding are shares of the samples that passed."""

    sql: str
    """The condition on fields of records and columns of samples."""
    num_samples: Count
    """Number of samples before the filter."""
    num_kept: Count


LabelsOf = Literal["traces", "first_wrong", "wrong_steps"]


class LabelsNote(Frozen):
    """The field of the labels, and their meaning."""

    field: str
    """A field with labels of steps; for labels of traces, the condition that right traces meet."""
    says: LabelsOf
    """Whether a trace is right, which step is the first wrong one, or which steps are wrong."""
    kind: str | None = None
    """The field that names kinds of error."""
    question: str | None = None
    """The field that names the question; without it, traces with the same prompt have the same question."""

    def __str__(self) -> str:
        return f"{'--right' if self.says == 'traces' else 'field'} {one_line(self.field)!r}"


class LabelsFile(Frozen):
    """A file of labels whose columns were joined to samples by their ids."""

    path: str
    sha256: str
    num_rows: Count
    num_samples: Count
    """Number of samples that labels were looked up for."""
    num_matched: Count
    """Number of rows of the file that have the id of a sample."""
    unknown_id: str | None = None
    """The first id in the file that no sample has."""
    unlabelled_id: str | None = None
    """Id of the first sample that has no row in the file."""

    def __str__(self) -> str:
        told = f"{self.path}: {self.num_matched} of {counted(self.num_rows, 'row')} matched to a sample"
        if self.num_matched < self.num_rows:
            told += f" (no sample has the id {one_line(self.unknown_id)!r}, for example)"
        if num_without := self.num_samples - self.num_matched:
            of = f"{num_without} of {counted(self.num_samples, 'sample')} without a row"
            told += f"; {of} ({one_line(self.unlabelled_id)!r}, for example)"
        return told


class PoolNote(Frozen):
    """The store, signals, filter and labels that define the samples behind an output."""

    store: str = Field(pattern="^[^\0]*$")
    plan_sha256: str
    num_units: Count
    """Number of units of the plan."""
    signals: dict[str, SignalNote] = Field(default_factory=dict)
    partial: bool = False
    """Whether some of the signals were unfinished."""
    where: WhereNote | None = None
    """The filter, if there was one."""
    labels: LabelsFile | None = None
    """The file of labels, if there was one."""


_MISTAKEN = {
    **dict.fromkeys(("a file of JSON lines", "a Parquet table"), "Give a file that a study wrote with --out."),
    "trial_plan": "Give trial.json in the same folder. The trial writes this file when it ends.",
    "trial_run": "Give trial.json in the folder above runs. The trial writes this file when it ends.",
}
"""What to do when another file is given instead of a finding."""


class Finding(
    Document,
    words="a finding",
    maker="judge --out",
    remedy="Make the file again with the command that wrote it.",
    mistaken=_MISTAKEN,
):
    """The result of a study."""

    kind: Literal["finding"] = "finding"
    study: str
    """Name of the study and of its command."""
    pool: PoolNote | None = None
    """The samples that were studied; None for a study without a store."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the study."""
    conclusion: str
    """The conclusion in one or two sentences."""
    numbers: dict[str, Cell] = Field(default_factory=dict)
    tables: dict[str, Table] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Further remarks for the reader."""
