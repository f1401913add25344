"""Read results of benchmarks by other programs: a module for each format, and runs with entries as the result."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from grace_store.base.errors import DataError
from grace_store.study.benchmark_results.lm_eval import read_lm_eval, read_lm_eval_file
from grace_store.study.benchmark_results.plain_table import read_plain_table
from grace_store.study.benchmark_results.run_results import UNDERSTOOD, Entry, Results
from grace_store.study.benchmark_results.vlmevalkit import KNOWN, is_known_table, read_vlmevalkit, run_name

__all__ = ["Entry", "Results", "read_results", "with_items"]


def read_results(path: str | Path) -> list[Results]:
    """Return the runs at a path: one for each model in a folder, or one for each row of a table."""
    place = Path(path)
    if place.is_dir():
        return _read_folder(place)
    if not place.is_file():
        raise DataError(f"{path} does not exist. Give {UNDERSTOOD}.")
    if is_known_table(place):
        raise DataError(f"{path} is VLMEvalKit's table of one benchmark: give the folder of this file.")
    return [read_lm_eval_file(place)] if place.suffix.lower() == ".json" else list(read_plain_table(place))


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


def with_items(results: Iterable[Results], items: Mapping[str, int]) -> list[Results]:
    """Return the results with numbers of questions replaced, by the names of entries."""

    def known(entries: Mapping[str, Entry]) -> dict[str, Entry]:
        return {name: replace(each, num_items=items.get(name, each.num_items)) for name, each in entries.items()}

    return [replace(each, entries=known(each.entries)) for each in results]
