"""Read benchmark results: a folder of VLMEvalKit's (or ms-swift's) files, or a plain table.

folder   every *_score.csv and *_acc.csv in it, read by row label; the folder is one run
.csv     a run a row, its name first; a column for each entry; a row named "items" gives the numbers of questions
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from grace_store.base.errors import DataError

Row = Mapping[str, str]

ITEMS = "items"
MAX_TABLE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """One benchmark's score, and of how many questions it is the percentage, if that is known."""

    score: float
    num_items: int | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """What one trained model reached, by entry."""

    name: str
    entries: dict[str, Entry]
    left_out: tuple[str, ...] = ()
    """Files of results that are of no benchmark known here."""


@dataclass(frozen=True, slots=True)
class _Benchmark:
    """How one benchmark's file is recognised and which cells of it count."""

    name: str
    file: re.Pattern[str]
    label: str | None
    """The column that names rows; None where there is only one row."""
    row: str | None
    """The label of the row that counts; None where the only row does."""
    columns: tuple[str, ...]
    """The cells whose mean is the score."""
    scale: float = 1.0
    items: str | None = None
    """The cell that holds the number of questions."""


def _file(pattern: str, suffix: str) -> re.Pattern[str]:
    # A judge's name may stand between the benchmark's and the suffix.
    return re.compile(rf"(?:^|_){pattern}(?:_.*)?_{suffix}\.csv$", re.IGNORECASE)


BENCHMARKS = (
    _Benchmark("HallusionBench", _file("HallusionBench", "score"), "split", "Overall", ("aAcc", "fAcc", "qAcc")),
    _Benchmark("ScienceQA", _file("ScienceQA", "acc"), "split", None, ("Overall",), 100.0),
    _Benchmark("MMBench", _file("MMBench", "acc"), "split", None, ("Overall",), 100.0),
    _Benchmark("MME-P", _file("MME", "score"), None, None, ("perception",)),
    _Benchmark("MME-C", _file("MME", "score"), None, None, ("reasoning",)),
    _Benchmark("MMT-MI", _file(r"MMT-Bench(?:_[A-Z]+)*_MI", "acc"), "split", "ALL", ("Overall",), 100.0),
    _Benchmark("MMT-SI", _file(r"MMT-Bench(?!.*_MI_)", "acc"), "split", "ALL", ("Overall",), 100.0),
    _Benchmark("MathVista", _file("MathVista", "score"), "Task&Skill", "Overall", ("acc",), items="tot"),
    _Benchmark("MathVision-MINI", _file("MathVision_MINI", "score"), "Subject", "Overall", ("acc",), items="tot"),
    _Benchmark("MathVision", _file("MathVision(?!_MINI)", "score"), "Subject", "Overall", ("acc",), items="tot"),
)


def read_results(path: str | Path) -> list[Results]:
    """Return the runs at a path: a folder is one, a table has one a row."""
    place = Path(path)
    if place.is_dir():
        return [_folder(place)]
    if not place.is_file():
        raise DataError(f"There is nothing at {path}: give a folder of VLMEvalKit's results or a .csv table.")
    return list(_table(place))


def _folder(folder: Path) -> Results:
    files = sorted(path for path in folder.rglob("*.csv") if path.is_file())
    left = {path for path in files if path.stem.endswith(("_score", "_acc"))}
    found: dict[str, Entry] = {}
    for benchmark in BENCHMARKS:
        mine = [path for path in files if benchmark.file.search(path.name)]
        if len(mine) > 1:
            names = ", ".join(str(path.relative_to(folder)) for path in mine)
            raise DataError(
                f"{folder} has several results of {benchmark.name}: {names}. Keep only the one that counts."
            )
        if mine:
            found[benchmark.name] = _entry(benchmark, mine[0])
            left.discard(mine[0])
    if not found:
        known = ", ".join(benchmark.name for benchmark in BENCHMARKS)
        raise DataError(f"{folder} has no *_score.csv or *_acc.csv of a benchmark known here ({known}).")
    return Results(folder.resolve().name, found, tuple(sorted(path.name for path in left)))


def _entry(benchmark: _Benchmark, path: Path) -> Entry:
    _, rows = _read_csv(path)
    if benchmark.row is not None:
        rows = [row for row in rows if row.get(benchmark.label or "") == benchmark.row]
    if len(rows) != 1:
        which = f"with {benchmark.label} {benchmark.row}" if benchmark.row else "of results"
        raise DataError(f"{path} has {len(rows)} rows {which}; {benchmark.name} is read from exactly one.")
    cells = [_number(rows[0].get(column), path, column) for column in benchmark.columns]
    items = rows[0].get(benchmark.items) if benchmark.items else None
    count = None if not items else _count(items, path, str(benchmark.items))
    return Entry(benchmark.scale * sum(cells) / len(cells), count)


def _table(path: Path) -> Iterator[Results]:
    header, rows = _read_csv(path)
    if len(header) < 2:
        raise DataError(f"{path} has no entries: the first column names the run, each further one is an entry.")
    name, entries = header[0], header[1:]
    names = [row[name] for row in rows]
    if repeated := sorted({each for each in names if names.count(each) > 1}):
        raise DataError(f"{path} has several rows named {', '.join(map(repr, repeated))}.")
    counts = next((row for row in rows if row[name].lower() == ITEMS), {})
    items = {entry: _count(text, path, entry) for entry in entries if (text := (counts.get(entry) or "").strip())}
    for row in rows:
        if row[name].lower() != ITEMS:
            scores = {entry: _number(row.get(entry), path, entry) for entry in entries}
            yield Results(row[name], {entry: Entry(score, items.get(entry)) for entry, score in scores.items()})


def _read_csv(path: Path) -> tuple[list[str], list[Row]]:
    """Return the header and the rows of a table, cells stripped."""
    if path.stat().st_size > MAX_TABLE_BYTES:
        raise DataError(f"{path} has {path.stat().st_size} bytes; a table of results has at most {MAX_TABLE_BYTES}.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = list(csv.reader(stream))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}).") from error
    cells = [[cell.strip() for cell in line] for line in lines if any(line)]
    if not cells:
        raise DataError(f"{path} is empty.")
    header = cells[0]
    if repeated := sorted({column for column in header if header.count(column) > 1}):
        raise DataError(f"{path} has several columns named {', '.join(map(repr, repeated))}.")
    if longer := [number for number, line in enumerate(cells[1:], 1) if len(line) > len(header)]:
        raise DataError(f"{path}: row {longer[0]} below the header has more cells than the header.")
    return header, [dict(zip(header, line, strict=False)) for line in cells[1:]]


def _number(text: str | None, path: Path, column: str) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise DataError(f"{path}: {column} is {text!r}; a score is a number of at least 0.")
    return number


def _count(text: str, path: Path, column: str) -> int:
    number = _number(text, path, column)
    if number < 1 or number != int(number):
        raise DataError(f"{path}: {column} is {text!r}; a number of questions is a whole number above 0.")
    return int(number)


def with_items(results: Iterable[Results], items: Mapping[str, int]) -> list[Results]:
    """Return the results with numbers of questions put in for entries by name."""

    def known(entries: Mapping[str, Entry]) -> dict[str, Entry]:
        return {name: replace(each, num_items=items.get(name, each.num_items)) for name, each in entries.items()}

    return [replace(each, entries=known(each.entries)) for each in results]
