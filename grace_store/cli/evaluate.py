"""grace-store evaluate"""

from pathlib import Path

import click

import grace_store as gs
from grace_store.base.errors import SettingError
from grace_store.cli import shared
from grace_store.cli.console import show
from grace_store.cli.options import NATURAL, TEXT, command, option
from grace_store.scoring.provenance import check_results


@command(
    "grace-store evaluate results.csv --full Full",
    "grace-store evaluate outputs --full full-model",
    "grace-store evaluate outputs/random outputs/grace --full outputs/full --items MathVision-MINI=304",
)
@click.argument("results", nargs=-1, required=True, type=click.Path())
@option("--full", TEXT, "Model trained on the full data: its folder, or its name in RESULTS.", required=True)
@option("--items", "ENTRY=N", "Number of questions of a benchmark. [default: the number in the results]", many=True)
@option("--leave-out", "ENTRY", "Benchmark that does not count. [default: all benchmarks count]", many=True)
@option("--seed", NATURAL, "Seed of the random draws for the intervals.", default=0)
@shared.out_finding
def evaluate(
    results: tuple[str, ...],
    full: str,
    items: tuple[str, ...],
    leave_out: tuple[str, ...],
    seed: int,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Compare models with the one that was trained on the full data.

    RESULTS belong to models that were trained on subsets: output folders of VLMEvalKit, ms-swift or
    lm-evaluation-harness, for one model or several, or .csv tables. A table has one row for each model, and a row named
    "items" with the numbers of questions. The relative average is the mean over benchmarks of 100 score / score of the
    full data.
    """
    check_results(None, [out], [Path(place) for place in (*results, full)])
    counts = {}
    for text in items:
        name, _, number = text.rpartition("=")
        if not name or not number.isdigit() or int(number) < 1:
            raise SettingError(f"--items {text}: write ENTRY=N, such as MathVision-MINI=304")
        counts[name] = int(number)
    show(gs.evaluate(results, full, num_items=counts, leave_out=leave_out, seed=seed), out, as_json=as_json)
