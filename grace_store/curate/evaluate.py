"""Compare models trained on subsets with the one trained on the full data, by their benchmark results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grace_store.base.errors import SettingError
from grace_store.curate.benchmark_results import Results, read_results, with_items
from grace_store.curate.relative_average import RelativeAverage, relative_average

PLAUSIBLE_PERCENT = (5.0, 2000.0)
"""A result relative to the full data's outside of this was probably a fraction compared with a percentage."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Runs compared with the one on the full data."""

    full: Results
    runs: list[Results]
    averages: list[RelativeAverage]
    """In the order of the runs."""


def evaluate(
    results: Sequence[str | Path], full: str, *, num_items: Mapping[str, int] | None = None, seed: int = 0
) -> Evaluation:
    """Return the relative average of every run in the results.

    full is the run on the full data: its name among the results, or a folder of its own. num_items gives numbers of
    questions by entry, where the results do not.
    """
    counts = num_items or {}
    runs = with_items((run for path in results for run in read_results(path)), counts)
    reference = _find_full(runs, full, counts)
    if unknown := [name for name in counts if name not in reference.entries]:
        raise SettingError(f"--items {unknown[0]} is none of the entries: {', '.join(reference.entries)}")
    others = [run for run in runs if run is not reference]
    if not others:
        raise SettingError(f"there is no run besides {reference.name} to compare with it")
    return Evaluation(reference, others, [relative_average(run, reference, seed=seed) for run in others])


def _find_full(runs: Sequence[Results], full: str, counts: Mapping[str, int]) -> Results:
    named = next((run for run in runs if run.name == full), None)
    if named is not None:
        return named
    if Path(full).is_dir():
        (reference,) = with_items(read_results(full), counts)
        return reference
    raise SettingError(f"--full {full} is neither a folder nor among the runs: {', '.join(run.name for run in runs)}")


def implausible_entries(average: RelativeAverage) -> list[str]:
    """Return the entries of a run whose scores are probably on another scale than the full data's."""
    low, high = PLAUSIBLE_PERCENT
    return [name for name, percent in average.relative.items() if percent > 0 and not low < percent < high]
