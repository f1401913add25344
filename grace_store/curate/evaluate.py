"""Compare models trained on subsets with the one trained on the full data, by their benchmark results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.errors import DataError, SettingError
from grace_store.curate.benchmark_results import Entry, Results, read_results, with_items
from grace_store.values.agreement import middle_of

PLAUSIBLE_PERCENT = (5.0, 2000.0)
"""A result relative to the full data's outside of this was probably a fraction compared with a percentage."""
NUM_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Interval:
    """Where 95 % of the draws lie."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RelativeAverage:
    """One run against the full data: the mean over entries of 100 m(subset) / m(full)."""

    name: str
    value: float
    relative: dict[str, float]
    """For each entry, 100 m(subset) / m(full)."""
    interval: Interval | None
    """From the questions' chance alone, over the entries whose numbers of questions are known; None if none is."""
    fixed: tuple[str, ...]
    """Entries whose numbers of questions are unknown: the interval takes their scores as they are."""
    one_question: dict[str, float]
    """By how much one more right answer to an entry moves the average."""


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
    if Path(full).is_dir() or (Path(full).is_file() and Path(full).suffix.lower() == ".json"):
        first, *others = with_items(read_results(full), counts)
        if others:
            names = ", ".join(run.name for run in (first, *others))
            raise SettingError(f"--full {full} has several runs ({names}); give the folder of one of them.")
        return first
    raise SettingError(f"--full {full} is neither a folder nor among the runs: {', '.join(run.name for run in runs)}")


def implausible_entries(average: RelativeAverage) -> list[str]:
    """Return the entries of a run whose scores are probably on another scale than the full data's."""
    low, high = PLAUSIBLE_PERCENT
    return [name for name, percent in average.relative.items() if percent > 0 and not low < percent < high]


def relative_average(subset: Results, full: Results, *, seed: int = 0) -> RelativeAverage:
    """Compare a run with the full data's, entry by entry.

    The interval is what the numbers of questions leave open, not what another training would give: both runs' rates
    are drawn independently for every entry, as far as the right answers seen, or the standard errors, allow.
    """
    _check_comparable(subset, full)
    relative = {name: 100 * subset.entries[name].score / entry.score for name, entry in full.entries.items()}
    counts = {name: subset.entries[name].num_items or entry.num_items for name, entry in full.entries.items()}
    one = {
        name: 100 * (100 / count) / full.entries[name].score / len(relative)
        for name, count in counts.items()
        if count is not None
    }
    known = {name: count for name, count in counts.items() if count or _have_errors(name, subset, full)}
    interval = _interval(subset, full, relative, known, seed) if known else None
    fixed = tuple(name for name in relative if name not in known)
    mean = float(np.mean(list(relative.values())))
    return RelativeAverage(subset.name, mean, relative, interval, fixed, one)


def _check_comparable(subset: Results, full: Results) -> None:
    """Raise DataError if the runs were not asked the same, or if nothing can be relative to the full data's."""
    missing = sorted(set(full.entries) - set(subset.entries))
    extra = sorted(set(subset.entries) - set(full.entries))
    if missing or extra:
        raise DataError(
            f"{subset.name} and {full.name} have different entries"
            + (f"; {subset.name} lacks {', '.join(missing)}" if missing else "")
            + (f"; {full.name} lacks {', '.join(extra)}" if extra else "")
            + ". An average over different benchmarks compares nothing."
        )
    if zero := [name for name, entry in full.entries.items() if entry.score == 0]:
        raise DataError(f"{full.name} has 0 in {', '.join(zero)}, so nothing can be relative to it.")
    pairs = {name: (subset.entries[name], entry) for name, entry in full.entries.items()}
    if differ := [name for name, (ours, theirs) in pairs.items() if _differ(ours.num_items, theirs.num_items)]:
        raise DataError(
            f"{subset.name} and {full.name} have different numbers of questions in {', '.join(differ)}: they were not "
            "asked the same. Evaluate both on the same questions."
        )
    if others := [
        f"{name} ({ours.asked} against {theirs.asked})"
        for name, (ours, theirs) in pairs.items()
        if _differ(ours.asked, theirs.asked)
    ]:
        raise DataError(f"{subset.name} and {full.name} were not asked the same in {', '.join(others)}.")


def _differ(ours: object, theirs: object) -> bool:
    return ours is not None and theirs is not None and ours != theirs


def _have_errors(name: str, *runs: Results) -> bool:
    return all(run.entries[name].stderr and 0 < run.entries[name].score < 100 for run in runs)


def _interval(
    subset: Results, full: Results, relative: dict[str, float], known: dict[str, int | None], seed: int
) -> Interval:
    generator = np.random.Generator(np.random.Philox(seed))
    fixed = sum(value for name, value in relative.items() if name not in known)
    total = np.full(NUM_DRAWS, fixed, dtype=np.float64)
    for name, count in known.items():
        ours, theirs = (_draws(run.entries[name], count, name, generator) for run in (subset, full))
        total += 100 * ours / theirs
    return Interval(*middle_of(total / len(relative)))


def _draws(entry: Entry, count: int | None, name: str, generator: np.random.Generator) -> FloatArray:
    """Return rates that would give the score seen: draws of Jeffreys' posterior, which has a width at 0 and 1 too.

    A standard error stands for the number of questions that would give it: of a group's or a weighted score it is
    another than the number asked.
    """
    if entry.score > 100:
        raise DataError(f"{name} is {entry.score:g}, no percentage, so its number of questions gives no interval.")
    rate = entry.score / 100
    number = rate * (1 - rate) / (entry.stderr / 100) ** 2 if entry.stderr and 0 < rate < 1 else count
    assert number is not None, "else the entry is taken as it is"
    return generator.beta(rate * number + 0.5, (1 - rate) * number + 0.5, NUM_DRAWS)
