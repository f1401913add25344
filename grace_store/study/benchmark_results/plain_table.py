"""A plain .csv table of results: a row for each run, its name first; the row "items" gives the numbers of questions."""

from collections.abc import Iterator
from pathlib import Path

from grace_store.base.errors import DataError
from grace_store.study.benchmark_results.run_results import (
    UNDERSTOOD,
    Entry,
    Results,
    parse_count,
    parse_score,
    read_rows,
)

ITEMS = "items"


def read_plain_table(path: Path) -> Iterator[Results]:
    """Yield the runs of a table."""
    header, rows = read_rows(path)
    if len(header) < 2:
        raise DataError(f"{path} has no entries. Give {UNDERSTOOD}.")
    name, entries = header[0], header[1:]
    names = [row[name] for row in rows]
    if repeated := sorted({each for each in names if names.count(each) > 1}):
        raise DataError(f"{path} has several rows named {', '.join(map(repr, repeated))}.")
    counts = next((row for row in rows if row[name].lower() == ITEMS), {})
    items = {entry: parse_count(counts, entry, path) for entry in entries if counts.get(entry)}
    for row in rows:
        if row[name].lower() != ITEMS:
            scores = {entry: parse_score(row, entry, path) for entry in entries}
            yield Results(row[name], {entry: Entry(score, items.get(entry)) for entry, score in scores.items()})
