"""Read results of benchmarks by other programs as runs with entries. Plain tables here, other formats in modules."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from grace_store.base.errors import DataError
from grace_store.study.benchmark_results.lm_eval import read_lm_eval, read_lm_eval_file
from grace_store.study.benchmark_results.run_results import (
    UNDERSTOOD,
    Entry,
    Results,
    parse_count,
    parse_score,
    read_rows,
)
from grace_store.study.benchmark_results.vlmevalkit import KNOWN, is_known_table, read_vlmevalkit, run_name

__all__ = ["Entry", "Results", "read_results", "with_items"]

ITEMS = "items"
"""The name of the row of a plain table that has the numbers of questions."""


def read_results(path: str | Path) -> list[Results]:
    """Return the runs at a path: one for each model in a folder, or one for each row of a table."""
    place = Path(path)
    if place.is_dir():
        return _read_folder(place)
    if not place.is_file():
        raise DataError(f"{path} does not exist. Give {UNDERSTOOD}.")
    if is_known_table(place):
        raise DataError(f"{path} is VLMEvalKit's table of one benchmark: give the folder of this file.")
    return [read_lm_eval_file(place)] if place.suffix.lower() == ".json" else list(_read_plain_table(place))


def _read_folder(folder: Path) -> list[Results]:
    kinds = [runs for runs in (read_vlmevalkit(folder), read_lm_eval(folder)) if runs]
    if not kinds:
        raise DataError(
            f"{folder} has no *_score.csv or *_acc.csv of a known benchmark ({KNOWN}), and no results_*.json of "
            "lm-evaluation-harness."
        )
    if any(len(runs) > 1 for runs in kinds):
        return [run for runs in kinds for run in runs]
    runs = [run for (run,) in kinds]  # of one model, which is named by the given folder
    entries = {name: entry for run in runs for name, entry in run.entries.items()}
    left_out = tuple(file for run in runs for file in run.left_out)
    return [Results(run_name(folder), entries, left_out, tuple(remark for run in runs for remark in run.remarks))]


def _read_plain_table(path: Path) -> Iterator[Results]:
    """Yield the runs of a .csv table: a row for each, its name first; the row ITEMS has the numbers of questions."""
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


def with_items(results: Iterable[Results], items: Mapping[str, int]) -> list[Results]:
    """Return the results with numbers of questions replaced, by the names of entries."""

    def known(entries: Mapping[str, Entry]) -> dict[str, Entry]:
        return {name: replace(each, num_items=items.get(name, each.num_items)) for name, each in entries.items()}

    return [replace(each, entries=known(each.entries)) for each in results]
