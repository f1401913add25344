"""Findings: what a study found. One type is its result, its file, its JSON, its terminal table and its page section.

A finding holds conclusions in words, a few numbers, and tables whose cells are numbers, texts or estimates. Whoever
shows one needs to know nothing of the study that made it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from grace_store.base.arrays import FloatArray
from grace_store.base.documents import Count, Document, Number
from grace_store.base.settings import Frozen
from grace_store.base.text import percent

COVERED = (0.025, 0.975)
"""The share of draws that lie below an interval, and below its end."""
WIDE, NARROW = 0.1, 0.05
"""Half-widths: a wider interval than the first says too little, and the second says enough."""
UNKNOWN = "-"
"""What a table shows in place of a number that could not be had."""


class Estimate(Frozen):
    """A number, its interval (95 %, unless the study says another share), and how many items it rests on.

    NaN stands for what is not known.
    """

    value: Number
    low: Number = math.nan
    high: Number = math.nan
    num: Count = 0
    """Items behind it: samples, pairs or draws, as the study says."""
    p_value: Number | None = None
    """Probability of a value at least this far from chance, if chance alone decided."""

    @classmethod
    def from_draws(cls, value: float, draws: Sequence[float] | FloatArray, num: int, **more: Any) -> "Estimate":
        """Return an estimate whose interval holds 95 % of some draws."""
        low, high = interval_95(draws)
        return cls(value=value, low=low, high=high, num=num, **more)

    @property
    def is_known(self) -> bool:
        """Whether it has an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def half_width(self) -> float:
        """Half of the interval's width; infinite without an interval."""
        return (self.high - self.low) / 2 if self.is_known else math.inf

    def num_wanted(self, num: int | None = None, half_width: float = NARROW) -> int:
        """Return about how many items like these would narrow the interval to a half-width, rounded up to tens.

        >>> Estimate(value=0.5, low=0.4, high=0.6, num=64).num_wanted()
        260
        """
        grow = max(self.half_width / half_width, 1.0) ** 2
        return math.ceil((self.num if num is None else num) * grow / 10) * 10

    def text(self, digits: int = 3, *, is_share: bool = False) -> str:
        """Return the number with its interval, as tables and sentences show it.

        >>> Estimate(value=0.652, low=0.55, high=0.741, num=10).text(2)
        '0.65 (0.55 to 0.74)'
        """
        shown = number_text(self.value, digits, is_share=is_share)
        if not self.is_known:
            return shown
        ends = (number_text(each, digits, is_share=is_share) for each in (self.low, self.high))
        return f"{shown} ({' to '.join(ends)})"


Cell = Estimate | bool | int | float | str | None
"""What a table holds: None for what is not known."""


def interval_95(draws: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Return the ends of the interval that holds the middle 95 % of some draws; NaN for both without any.

    >>> interval_95(range(41))
    (1.0, 39.0)
    """
    if not len(draws):
        return math.nan, math.nan
    low, high = np.quantile(np.asarray(draws, dtype=np.float64), COVERED).tolist()
    return low, high


def number_text(value: float | None, digits: int = 3, *, is_share: bool = False) -> str:
    """Return a number for a table; a dash for one that is not known.

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
    """Whether its numbers are shares, shown in percent."""
    chance: Number | None = None
    """The value that chance alone would give: a line in the picture of the column's estimates."""
    fewest: Count = 0
    """Items that an estimate must rest on to be shown."""


def make_columns(**columns: str | Column) -> dict[str, Column]:
    """Return columns by name; a text stands for a column with that heading.

    >>> make_columns(num_samples="samples", mean=Column(heading="mean value", digits=2))["num_samples"].heading
    'samples'
    """
    return {name: Column(heading=each) if isinstance(each, str) else each for name, each in columns.items()}


class Table(Frozen):
    """Rows of a finding, by the names of their columns."""

    title: str = ""
    columns: dict[str, Column] = Field(min_length=1)
    rows: tuple[dict[str, Cell], ...] = ()
    about: str = ""
    """What the numbers mean."""
    is_drawn: bool = False
    """Whether a page draws the first column of estimates, too."""
    is_shown: bool = True
    """Whether people are shown it; the others are for programs."""
    num_shown: Count | None = None
    """Rows that people are shown, from the first on; None for all."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, Cell]]:  # type: ignore[override]  # rows, not fields
        return iter(self.rows)

    def column(self, name: str) -> list[Cell]:
        """Return the cells of one column; None where a row has none."""
        return [row.get(name) for row in self.rows]

    def row(self, **key: Cell) -> Mapping[str, Cell]:
        """Return the only row with these cells; raise KeyError if there is none.

        >>> Table(columns={"name": Column(heading="name")}, rows=({"name": "a", "num": 1},)).row(name="a")["num"]
        1
        """
        for row in self.rows:
            if all(row.get(name) == cell for name, cell in key.items()):
                return row
        raise KeyError(f"no row with {key}")

    def texts(self) -> list[list[str]]:
        """Return the headings, then each row, as texts to be shown."""
        headings = [column.heading for column in self.columns.values()]
        return [
            headings,
            *([self.cell_text(row, name) for name in self.columns] for row in self.rows[: self.num_shown]),
        ]

    def cell_text(self, row: Mapping[str, Cell], name: str) -> str:
        """Return one cell as a text to be shown."""
        cell, column = row.get(name), self.columns[name]
        if isinstance(cell, Estimate):
            is_enough = cell.num >= column.fewest
            return cell.text(column.digits, is_share=column.is_share) if is_enough else UNKNOWN
        if isinstance(cell, float) or cell is None:
            return number_text(cell, column.digits, is_share=column.is_share)
        return ("no", "yes")[cell] if isinstance(cell, bool) else f"{cell:,}" if isinstance(cell, int) else cell


# ---------------------------------------------------------------- where a finding comes from


class SignalNote(Frozen):
    """A signal as it was read: its identity, and how many of its units were there."""

    sha256: str
    num_units: Count


class WhereNote(Frozen):
    """The filter that samples had to pass: shares are shares of those that did."""

    sql: str
    """The condition, over fields of the records and what is known of samples."""
    num_samples: Count
    """Samples that it was asked of."""
    num_kept: Count


class PoolNote(Frozen):
    """Which samples of which store something was made from."""

    store: str = Field(pattern="^[^\0]*$")
    plan_sha256: str
    num_units: Count
    """Units of the plan."""
    signals: dict[str, SignalNote] = Field(default_factory=dict)
    partial: bool = False
    """Whether signals were unfinished."""
    where: WhereNote | None = None
    """The filter, if there was one."""


class Finding(Document):
    """What a study found."""

    words: ClassVar[str] = "a finding"
    maker: ClassVar[str] = "judge --out"
    remedy: ClassVar[str] = "Make it again with the command that wrote it."
    mistaken: ClassVar[Mapping[str, str]] = {
        "trial_plan": "Give trial.json in the same folder, which is there when the trial is over.",
        "trial_run": "Give trial.json in the folder above runs, which is there when the trial is over.",
    }

    kind: Literal["finding"] = "finding"
    study: str
    """The study's name, which is its command's."""
    pool: PoolNote | None = None
    """Which samples were studied; None for a study of no store."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """What the study was asked."""
    conclusion: str
    """What it means, in a sentence or two."""
    numbers: dict[str, Cell] = Field(default_factory=dict)
    tables: dict[str, Table] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What else a reader should know."""
