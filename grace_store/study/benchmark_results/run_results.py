"""What one trained model reached in benchmarks, and numbers as tables write them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grace_store.base.errors import DataError

UNDERSTOOD = (
    "a folder of VLMEvalKit's or lm-evaluation-harness's results, a results_*.json of the latter, or a .csv table with "
    "one row for each run (its name first) and one column for each benchmark"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One benchmark's score, and of how many questions it is the percentage, if that is known."""

    score: float
    num_items: int | None = None
    stderr: float | None = None
    """The standard error of the score, in its own units, where the results say it."""
    asked: str | None = None
    """What was asked, as far as the results say it: scores of different questions are not compared."""


@dataclass(frozen=True, slots=True)
class Results:
    """What one trained model reached, by entry."""

    name: str
    entries: dict[str, Entry]
    left_out: tuple[str, ...] = ()
    """Files of results that are of no benchmark known here."""
    remarks: tuple[str, ...] = ()
    """What else of the files was not used, and why."""


def parse_score(cells: Mapping[str, str], column: str, path: Path) -> float:
    """Return the score in a cell; a percent sign may follow it."""
    text = cells.get(column)
    try:
        number = float((text or "").removesuffix("%"))
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise DataError(f"{path}: {column} is {text!r}; a score is a number of at least 0. Understood is {UNDERSTOOD}.")
    return number


def parse_count(cells: Mapping[str, str], column: str, path: Path) -> int:
    """Return the number of questions in a cell."""
    number = parse_score(cells, column, path)
    if number < 1 or number != int(number):
        raise DataError(f"{path}: {column} is {cells[column]!r}; a number of questions is a whole number above 0.")
    return int(number)


def listed(names: list[str], at_most: int = 4) -> str:
    """Return names one after the other, the last of many as a number."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more
