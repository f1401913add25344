"""Results of lm-evaluation-harness: OUT/MODEL__NAME/results_TIMESTAMP.json, one file for each evaluation.

A task, or its group, is one entry: the first metric for which higher is better.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grace_store.base.errors import DataError
from grace_store.study.benchmark_results.run_results import UNDERSTOOD, Entry, Results, listed, read_json

FILE = re.compile(r".+_(?P<time>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)\.json")
ALREADY_PERCENT = ("bleu", "chrf", "ter", "rouge")
"""Prefixes of the metrics that lm-evaluation-harness gives in percent; other metrics are shares."""


def read_lm_eval(folder: Path) -> list[Results]:
    """Return a run for each model with results below a folder."""
    named = ((FILE.fullmatch(path.name), path) for path in folder.rglob("*.json"))
    runs: dict[tuple[Path, str], list[tuple[Path, Results]]] = defaultdict(list)
    for _, path in sorted((name["time"], path) for name, path in named if name and path.is_file()):
        found = _read(path)
        runs[path.parent, found.name].append((path, found))
    return [_merged(place.name if place != folder else model, mine) for (place, model), mine in runs.items()]


def read_lm_eval_file(path: Path) -> Results:
    """Return the run of one file, with the name of its folder."""
    return _merged(path.resolve().parent.name, [(path, _read(path))])


def _merged(name: str, evaluations: list[tuple[Path, Results]]) -> Results:
    """Merge the evaluations of a model, given oldest first, into one run with the newest result of each task."""
    entries: dict[str, Entry] = {}
    older: list[str] = []
    for path, found in reversed(evaluations):
        again = [task for task in found.entries if task in entries]
        older += [f"{task} in {path.name}" for task in again]
        entries |= {task: entry for task, entry in found.entries.items() if task not in again}
    remarks = [f"older results are not used: {listed(older)}"] if older else []
    without = sorted({task for _, found in evaluations for task in found.left_out})
    remarks += [f"tasks without a metric of which higher is better are left out: {listed(without)}"] if without else []
    return Results(name, entries, remarks=tuple(remarks))


def _read(path: Path) -> Results:
    """Read one file as a run with the model's name; tasks without a metric are left out."""
    found = read_json(path)
    results = found.get("results") if isinstance(found, dict) else None
    if not isinstance(results, dict) or not all(isinstance(each, dict) for each in results.values()):
        raise DataError(f"{path} is not a results file of lm-evaluation-harness. Give {UNDERSTOOD}.")
    names = list(_counted(found, results))
    made = {name: _entry(path, found, name) for name in names}
    entries = dict(each for each in made.values() if each)
    if not entries:
        raise DataError(f"{path} has no task with a metric where higher is better.")
    return Results(str(found.get("model_name")), entries, tuple(name for name in names if not made[name]))


def _counted(found: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[str]:
    """Yield groups that have a score, and tasks outside them; a task inside a group would count twice."""
    subtasks = _object(found, "group_subtasks")
    parts = {part for mine in subtasks.values() for part in mine}

    def expand(names: Iterable[str], seen: frozenset[str]) -> Iterator[str]:
        for name in names:
            if name in seen:
                continue
            if (name in results and any(_metrics(results[name]))) or not subtasks.get(name):
                yield name
            else:
                yield from expand(subtasks[name], seen | {name})

    yield from dict.fromkeys(expand([name for name in results if name not in parts], frozenset()))


def _metrics(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys that hold a metric: its name, a comma, and the filter of the answers."""
    for key, value in result.items():
        metric, comma, _ = key.partition(",")
        if comma and not metric.endswith("_stderr") and isinstance(value, int | float):
            yield key


def _entry(path: Path, found: Mapping[str, Any], task: str) -> tuple[str, Entry] | None:
    result = _object(_object(found, "results"), task)
    higher = _object(_object(found, "higher_is_better"), task)
    key = next((key for key in _metrics(result) if higher.get(key.partition(",")[0]) is not False), None)
    if key is None:
        return None
    metric, _, answers = key.partition(",")
    score, stderr = float(result[key]), result.get(f"{metric}_stderr,{answers}")
    if not 0 <= score < float("inf"):
        raise DataError(f"{path}: {key} of {task} is {score}; a score is a number of at least 0.")
    is_share = score <= 1 and not metric.startswith(ALREADY_PERCENT)
    scale = 100.0 if is_share else 1.0
    error = stderr if isinstance(stderr, int | float) and stderr > 0 and scale * score < 100 else None
    number = _object(_object(found, "n-samples"), task).get("effective", result.get("sample_len"))
    version, shots = (_object(found, key).get(task) for key in ("versions", "n-shot"))
    return f"{task} {metric}" + (f",{answers}" if answers != "none" else ""), Entry(
        scale * score,
        number if is_share and isinstance(number, int) and number > 0 else None,
        None if error is None else scale * error,
        f"version {version}, {shots} shots",
    )


def _object(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = found.get(key)
    return inner if isinstance(inner, dict) else {}
