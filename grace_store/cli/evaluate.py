"""grace-store evaluate"""

from __future__ import annotations

from dataclasses import asdict

import click

import grace_store as gs
from grace_store.base.errors import SettingError
from grace_store.cli.console import harmless, print_result
from grace_store.cli.options import NATURAL, TEXT, command, option


@command(
    "grace-store evaluate results.csv --full Full",
    "grace-store evaluate outputs --full full-model",
    "grace-store evaluate outputs/random outputs/grace --full outputs/full --items MathVision-MINI=304",
)
@click.argument("results", nargs=-1, required=True, type=click.Path())
@option("--full", TEXT, "Run that was trained on the full data: its folder, or its name among RESULTS.", required=True)
@option("--items", "ENTRY=N", "Number of questions of a benchmark. [default: as the results say]", many=True)
@option("--seed", NATURAL, "Seed of the draws behind the intervals.", default=0)
def evaluate(results: tuple[str, ...], full: str, items: tuple[str, ...], seed: int, *, as_json: bool) -> None:
    """Compare trained models with the one trained on the full data.

    RESULTS are those of models trained on subsets: output folders of VLMEvalKit, ms-swift or lm-evaluation-harness
    (of one model or of several), or .csv tables with one row for each run and, in a row named "items", the numbers of
    questions. The relative average is the mean over benchmarks of 100 score / score of the full data.
    """
    found = gs.evaluate(results, full, num_items=_counts(items), seed=seed)
    result = {"full": asdict(found.full), "runs": [asdict(each) for each in found.averages]}
    print_result(result, _print, found, as_json=as_json)


def _counts(items: tuple[str, ...]) -> dict[str, int]:
    counts = {}
    for text in items:
        name, _, number = text.rpartition("=")
        if not name or not number.isdigit() or int(number) < 1:
            raise SettingError(f"--items {text} is not ENTRY=N, such as MathVision-MINI=304")
        counts[name] = int(number)
    return counts


def _print(found: gs.Evaluation) -> None:
    """Print a row for each entry and a column for each run: its score, and that relative to the full data's."""
    full, averages = found.full, found.averages
    columns = [harmless(run.name) for run in (full, *found.runs)]
    widths = [max(len(name), 16) + 2 for name in columns]
    first = max(len("Rel. Avg."), *(len(name) for name in full.entries)) + 2

    def line(name: str, cells: list[str]) -> None:
        click.echo(f"{name:<{first}}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))

    line("", columns)
    for name, entry in full.entries.items():
        cells = [f"{entry.score:.1f}"]
        cells += [
            f"{run.entries[name].score:.1f} ({each.relative[name]:.1f} %)"
            for run, each in zip(found.runs, averages, strict=True)
        ]
        line(harmless(name), cells)
    line("Rel. Avg.", ["100.0", *(f"{each.value:.1f}" for each in averages)])
    if any(each.interval for each in averages):
        spans = ["", *(f"{i.low:.1f} to {i.high:.1f}" if (i := each.interval) else "-" for each in averages)]
        line("95 %", spans)
        click.echo("The interval is what the number of questions leaves open, not what another training would give.")
    _print_remarks(found)


def _print_remarks(found: gs.Evaluation) -> None:
    from grace_store.curate.evaluate import implausible_entries

    if fixed := found.averages[0].fixed:
        click.echo(f"Numbers of questions not known, scores taken as they are: {', '.join(fixed)}.")
    for run in (found.full, *found.runs):
        if run.left_out:
            files = harmless(", ".join(run.left_out))
            click.echo(f"Left out of {harmless(run.name)}, no benchmark known here: {files}.")
        for remark in run.remarks:
            click.echo(f"{harmless(run.name)}: {harmless(remark)}.")
    for each in found.averages:
        if odd := implausible_entries(each):
            click.echo(
                f"{harmless(each.name)} is far from {harmless(found.full.name)} in {harmless(', '.join(odd))}: "
                "are both on the same scale?"
            )
    if moves := found.averages[0].one_question:
        most = max(moves, key=lambda name: moves[name])
        click.echo(f"One more right answer in {most} moves the average by {moves[most]:.2f}.")
