"""The benchmark results of one trained model, and readers of small .csv and .json files with results."""

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace_store.base.errors import DataError

UNDERSTOOD = (
    "a folder of VLMEvalKit's or lm-evaluation-harness's results, a results_*.json of lm-evaluation-harness, or a "
    ".csv table with one row for each run (its name first) and one column for each benchmark"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The score of one benchmark."""

    score: float
    num_items: int | None = None
    """Number of questions, if it is known."""
    stderr: float | None = None
    """Standard error of the score, in the same units, if the results have it."""
    asked: str | None = None
    """Name of the questions, if the results have it. Scores of different questions are not compared."""


@dataclass(frozen=True, slots=True)
class Results:
    """The results of one trained model, by entry."""

    name: str
    entries: dict[str, Entry]
    left_out: tuple[str, ...] = ()
    """Files with results of unknown benchmarks."""
    remarks: tuple[str, ...] = ()
    """Other results that were not used, with reasons."""


def parse_score(cells: Mapping[str, str], column: str, path: Path) -> float:
    """Return the score in a cell; a percent sign may follow it."""
    text = cells.get(column)
    try:
        number = float((text or "").removesuffix("%"))
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise DataError(f"{path}: {column} is {text!r}; a score is a number of at least 0. Give {UNDERSTOOD}.")
    return number


def parse_count(cells: Mapping[str, str], column: str, path: Path) -> int:
    """Return the number of questions in a cell."""
    number = parse_score(cells, column, path)
    if number < 1 or number != int(number):
        raise DataError(f"{path}: {column} is {cells[column]!r}; a number of questions is a whole number above 0.")
    return int(number)


def listed(names: list[str]) -> str:
    """Return at most four names joined by commas, and the number of the others."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


Row = Mapping[str, str]

MAX_TABLE_BYTES = 16 * 2**20


def read_rows(path: Path) -> tuple[list[str], list[Row]]:
    """Return the header and the rows of a table, with stripped cells; a JSON object alone is a table of one row."""
    if path.suffix.lower() != ".json":
        return _csv_rows(path, read_small(path))
    found = read_json(path)
    objects = found if isinstance(found, list) else [found]
    if not objects or not all(isinstance(each, dict) for each in objects):
        raise DataError(f"{path} is not a table: the file must hold a list of objects, or one object.")
    return list(objects[0]), [{key: str(cell).strip() for key, cell in each.items()} for each in objects]


def read_small(path: Path) -> str:
    if path.stat().st_size > MAX_TABLE_BYTES:
        raise DataError(f"{path} has {path.stat().st_size} bytes; a table of results has at most {MAX_TABLE_BYTES}.")
    content = path.read_bytes()
    if path.suffix.lower() in (".xlsx", ".xls") or content.startswith(b"PK\x03\x04"):
        raise DataError(f"{path} is a spreadsheet. Save the table as .csv. Give {UNDERSTOOD}.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read as CSV or JSON ({error}). Give {UNDERSTOOD}.") from error


def read_json(path: Path) -> Any:
    content = read_small(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}).") from error


def _csv_rows(path: Path, content: str) -> tuple[list[str], list[Row]]:
    try:
        lines = list(csv.reader(content.splitlines(keepends=True)))
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as CSV ({error}). Give {UNDERSTOOD}.") from error
    cells = [[cell.strip() for cell in line] for line in lines if any(line)]
    if not cells:
        raise DataError(f"{path} is empty.")
    header = cells[0]
    if repeated := sorted({column for column in header if header.count(column) > 1}):
        raise DataError(f"{path} has several columns named {', '.join(map(repr, repeated))}.")
    if longer := [number for number, line in enumerate(cells[1:], 1) if len(line) > len(header)]:
        raise DataError(f"{path}: row {longer[0]} below the header has more cells than the header.")
    return header, [dict(zip(header, line, strict=False)) for line in cells[1:]]
