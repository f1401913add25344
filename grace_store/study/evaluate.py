"""Compare models trained on subsets with the model trained on the full data, by their benchmark results."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.finding import Cell, Column, Estimate, Finding, Table, make_columns
from grace_store.base.text import enumerated
from grace_store.study.benchmark_results import Entry, Results, read_results, with_items

PLAUSIBLE_PERCENT = (5.0, 2000.0)
"""Plausible relative scores. Outside this range, a fraction was probably compared with a percentage."""
NUM_DRAWS = 20_000


def evaluate(
    results: Sequence[str | Path],
    full: str,
    *,
    num_items: Mapping[str, int] | None = None,
    leave_out: Sequence[str] = (),
    seed: int = 0,
) -> Finding:
    """Return the relative average of every run in the results.

    full is the run on the full data: its name among the results, or another folder. num_items gives numbers of
    questions by entry, if the results lack them. leave_out names entries that do not count.
    """
    counts = num_items or {}
    runs = with_items((run for path in results for run in read_results(path)), counts)
    reference = _find_full(runs, full, counts)
    for option, names in {"--items": counts, "--leave-out": leave_out}.items():
        if unknown := [name for name in names if name not in reference.entries]:
            raise SettingError(f"unknown entry {unknown[0]} in {option}: use one of {', '.join(reference.entries)}")
    if len(set(leave_out)) == len(reference.entries):
        raise SettingError("--leave-out leaves no entry to compare: name fewer entries")
    others = [_without(run, leave_out) for run in runs if run is not reference]
    reference = _without(reference, leave_out)
    if not others:
        raise SettingError(f"{reference.name} is the only run: give another run to compare with {reference.name}")
    averages = [relative_average(run, reference, seed=seed) for run in others]
    names = _told_apart([run.name for run in others])
    told = enumerated([f"{average.text(1)} for {name}" for name, average in zip(names, averages, strict=True)])
    return Finding(
        study="evaluate",
        settings={"full": reference.name, "items": dict(counts), "leave_out": list(leave_out), "seed": seed},
        conclusion=f"The relative average is {told}. 100 is as good as {reference.name}, which was trained on the full "
        "data.",
        tables={
            "averages": _averages_table(names, averages),
            "entries": _entries_table(dict(zip(names, others, strict=True)), reference),
        },
        notes=tuple(_notes(others, reference)),
    )


def _without(run: Results, names: Sequence[str]) -> Results:
    return replace(run, entries={name: entry for name, entry in run.entries.items() if name not in names})


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return names of runs; a repeated name gets a number.

    >>> _told_apart(["grace", "random", "grace"])
    ['grace', 'random', 'grace (2)']
    """
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return found


def _averages_table(names: Sequence[str], averages: Sequence[Estimate]) -> Table:
    rows = ({"run": name, "average": average} for name, average in zip(names, averages, strict=True))
    columns = make_columns(run="run", average=Column(heading="relative average, 95 %", digits=1, chance=100.0))
    about = "Mean over benchmarks of 100 score / score of the full data."
    if any(average.is_known for average in averages):
        about += " The interval covers the finite number of questions, not the variation between trainings."
    return Table(title="Relative averages", columns=columns, rows=tuple(rows), about=about, is_drawn=True)


def _entries_table(runs: Mapping[str, Results], full: Results) -> Table:
    """Return a row for each entry, with the score of each run, also in percent of the score of the full data."""
    columns = make_columns(entry="benchmark", full=Column(heading=full.name, digits=1))
    rows: dict[str, dict[str, Cell]] = {
        name: {"entry": name, "full": entry.score, "num_items": entry.num_items} for name, entry in full.entries.items()
    }
    for run, found in runs.items():
        columns[f"score of {run}"] = Column(heading=run, digits=1)
        columns[f"relative of {run}"] = Column(heading="%", digits=1)
        relative, moves = relative_scores(found, full), one_question(found, full)
        for name, row in rows.items():
            row |= {f"score of {run}": found.entries[name].score, f"relative of {run}": relative[name]}
            if name in moves:
                row["one_question"] = moves[name]
    return Table(
        title="Benchmarks", columns=columns, rows=tuple(rows.values()), about="%: of the score of the full data."
    )


def _notes(runs: Sequence[Results], full: Results) -> Iterator[str]:
    """Yield remarks on entries left out, on implausible scores, and on the weight of one question."""
    known = set.intersection(*(set(_known(run, full)) for run in runs))
    if fixed := [name for name in full.entries if name not in known]:
        yield f"No interval: numbers of questions not known of {', '.join(fixed)}. Give them with --items ENTRY=N."
    for run in (full, *runs):
        if run.left_out:
            yield f"Left out of {run.name}, no benchmark known here: {', '.join(run.left_out)}."
        yield from (f"{run.name}: {remark}." for remark in run.remarks)
    low, high = PLAUSIBLE_PERCENT
    for run in runs:
        if odd := [name for name, each in relative_scores(run, full).items() if each > 0 and not low < each < high]:
            yield f"{run.name} is far from {full.name} in {', '.join(odd)}: are both on the same scale?"
    if moves := one_question(runs[0], full):
        most = max(moves, key=lambda name: moves[name])
        yield f"One more right answer in {most} moves the average by {moves[most]:.2f}."


def _find_full(runs: Sequence[Results], full: str, counts: Mapping[str, int]) -> Results:
    if (named := next((run for run in runs if run.name == full), None)) is not None:
        return named
    if Path(full).is_dir() or (Path(full).is_file() and Path(full).suffix.lower() == ".json"):
        first, *others = with_items(read_results(full), counts)
        if others:
            names = ", ".join(run.name for run in (first, *others))
            raise SettingError(f"--full {full} has several runs ({names}); give the folder of one of them.")
        return first
    raise SettingError(f"--full {full} is neither a folder nor among the runs: {', '.join(run.name for run in runs)}")


def relative_average(subset: Results, full: Results, *, seed: int = 0) -> Estimate:
    """Return the mean over entries of 100 m(subset) / m(full), with its interval and the number of entries.

    The interval covers the finite numbers of questions, not the variation between trainings: for every entry, the rates
    of both runs are drawn independently from the posterior of the right answers, or by the standard errors. There is no
    interval if the number of questions of an entry is not known.
    """
    _check_comparable(subset, full)
    relative, known = relative_scores(subset, full), _known(subset, full)
    draws = np.zeros(0) if len(known) < len(relative) else _draws_of_average(subset, full, known, seed)
    return Estimate.from_draws(float(np.mean(list(relative.values()))), draws, len(relative))


def relative_scores(subset: Results, full: Results) -> dict[str, float]:
    """Return 100 m(subset) / m(full) for each entry."""
    return {name: 100 * subset.entries[name].score / entry.score for name, entry in full.entries.items()}


def one_question(subset: Results, full: Results) -> dict[str, float]:
    """Return the change of the average by one more right answer, for each entry with a known number of questions."""
    return {
        name: 100 * (100 / count) / entry.score / len(full.entries)
        for name, entry in full.entries.items()
        if (count := subset.entries[name].num_items or entry.num_items) is not None
    }


def _known(subset: Results, full: Results) -> dict[str, int | None]:
    """Return entries to draw rates for, with numbers of questions; None if only standard errors are known."""
    pairs = {name: (subset.entries[name], entry) for name, entry in full.entries.items()}
    counts = {name: ours.num_items or theirs.num_items for name, (ours, theirs) in pairs.items()}
    have_errors = {name: all(each.stderr and 0 < each.score < 100 for each in pair) for name, pair in pairs.items()}
    return {name: count for name, count in counts.items() if count or have_errors[name]}


def _check_comparable(subset: Results, full: Results) -> None:
    """Raise DataError if the runs have different entries or questions, or if a score of the full data is 0."""
    missing = sorted(set(full.entries) - set(subset.entries))
    extra = sorted(set(subset.entries) - set(full.entries))
    if missing or extra:
        raise DataError(
            f"{subset.name} and {full.name} have different entries"
            + (f"; {subset.name} lacks {', '.join(missing)}" if missing else "")
            + (f"; {full.name} lacks {', '.join(extra)}" if extra else "")
            + ". Averages over different benchmarks cannot be compared."
        )
    if zero := [name for name, entry in full.entries.items() if entry.score == 0]:
        skip = " ".join(f"--leave-out {name}" for name in zero)
        raise DataError(f"{full.name} has 0 in {', '.join(zero)}, so a relative score is not possible. Give {skip}.")
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


def _draws_of_average(subset: Results, full: Results, known: dict[str, int | None], seed: int) -> FloatArray:
    generator = np.random.Generator(np.random.Philox(seed))
    total = np.zeros(NUM_DRAWS)
    for name, count in known.items():
        ours, theirs = (_draws(run.entries[name], count, name, generator) for run in (subset, full))
        total += 100 * ours / theirs
    return np.asarray(total / len(known))


def _draws(entry: Entry, count: int | None, name: str, generator: np.random.Generator) -> FloatArray:
    """Return draws of the rate of right answers from Jeffreys' posterior, which has a width at 0 and 1, too.

    A standard error is converted to a number of questions. For the score of a group, or a weighted score, that number
    differs from the number of questions asked.
    """
    if entry.score > 100:
        raise DataError(f"{name} is {entry.score:g}, not a percentage, so the number of questions gives no interval.")
    rate = entry.score / 100
    number = rate * (1 - rate) / (entry.stderr / 100) ** 2 if entry.stderr and 0 < rate < 1 else count
    assert number is not None  # only then are there draws
    return generator.beta(rate * number + 0.5, (1 - rate) * number + 0.5, NUM_DRAWS)
