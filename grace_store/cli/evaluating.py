"""grace-store evaluate"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grace_store.base.errors import SettingError
from grace_store.cli.console import harmless, print_json
from grace_store.cli.options import as_json

if TYPE_CHECKING:
    from grace_store.curate.benchmark_results import Results
    from grace_store.curate.relative_average import RelativeAverage

EPILOG = """\b
Examples:
  grace-store evaluate results.csv --full Full
  grace-store evaluate outputs/random outputs/grace --full outputs/full --items MathVision-MINI=304
"""


ODD = (5.0, 2000.0)
"""Relative results, in percent, outside of which a fraction was probably held against a percentage."""


@click.command(epilog=EPILOG)
@click.argument("results", nargs=-1, required=True, type=click.Path())
@click.option("--full", required=True, help="The run on the full data: a folder, or a row's name.")
@click.option("--items", multiple=True, metavar="ENTRY=N", help="Number of questions of an entry; may be repeated.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the interval's draws.")
@as_json
def evaluate(results: tuple[str, ...], full: str, items: tuple[str, ...], seed: int, *, as_json: bool) -> None:
    """Compare trained models with the one trained on the full data: entries, and their relative average.

    RESULTS are folders of VLMEvalKit's (or ms-swift's) files, or .csv tables with a run a row and, in a row named
    "items", the numbers of questions.
    """
    from grace_store.curate.benchmark_results import read_results, with_items
    from grace_store.curate.relative_average import relative_average

    counts = _counts(items)
    runs = with_items((run for path in results for run in read_results(path)), counts)
    reference = next((run for run in runs if run.name == full), None)
    if reference is None and Path(full).is_dir():
        (reference,) = with_items(read_results(full), counts)
    if reference is None:
        raise SettingError(f"--full {full} is neither a folder nor among the runs: {', '.join(r.name for r in runs)}")
    if unknown := [name for name in counts if name not in reference.entries]:
        raise SettingError(f"--items {unknown[0]} is none of the entries: {', '.join(reference.entries)}")
    found = [relative_average(run, reference, seed=seed) for run in runs if run is not reference]
    if not found:
        raise SettingError(f"there is no run besides {reference.name} to compare with it")
    if as_json:
        print_json({"full": asdict(reference), "runs": [asdict(each) for each in found]})
        return
    _show(reference, [run for run in runs if run is not reference], found)


def _counts(items: tuple[str, ...]) -> dict[str, int]:
    counts = {}
    for text in items:
        name, _, number = text.rpartition("=")
        if not name or not number.isdigit() or int(number) < 1:
            raise SettingError(f"--items {text} is not ENTRY=N, such as MathVision-MINI=304")
        counts[name] = int(number)
    return counts


def _show(full: Results, runs: list[Results], found: list[RelativeAverage]) -> None:
    """Print a row an entry, a column a run: a score and what it is of the full data's."""
    columns = [harmless(run.name) for run in (full, *runs)]
    widths = [max(len(name), 16) + 2 for name in columns]
    first = max(len("Rel. Avg."), *(len(name) for name in full.entries)) + 2

    def line(name: str, cells: list[str]) -> None:
        click.echo(f"{name:<{first}}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))

    line("", columns)
    for name, entry in full.entries.items():
        cells = [f"{entry.score:.1f}"]
        cells += [
            f"{run.entries[name].score:.1f} ({each.relative[name]:.1f} %)"
            for run, each in zip(runs, found, strict=True)
        ]
        line(harmless(name), cells)
    line("Rel. Avg.", ["100.0", *(f"{each.value:.1f}" for each in found)])
    if any(each.interval for each in found):
        spans = ["", *(f"{i.low:.1f} to {i.high:.1f}" if (i := each.interval) else "-" for each in found)]
        line("95 %", spans)
        click.echo("The interval is what the number of questions leaves open, not what another training would give.")
    if found[0].fixed:
        click.echo(f"Numbers of questions not known, scores taken as they are: {', '.join(found[0].fixed)}.")
    for run in (full, *runs):
        if run.left_out:
            click.echo(
                f"Left out of {harmless(run.name)}, no benchmark known here: {harmless(', '.join(run.left_out))}."
            )
    for each in found:
        if odd := [name for name, value in each.relative.items() if not ODD[0] < value < ODD[1] and value > 0]:
            click.echo(
                f"{harmless(each.name)} is far from {harmless(full.name)} in {harmless(', '.join(odd))}: are both on "
                "the same scale?"
            )
    moves = found[0].one_question
    if moves:
        most = max(moves, key=lambda name: moves[name])
        click.echo(f"One more right answer in {most} moves the average by {moves[most]:.2f}.")
