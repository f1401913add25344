"""grace-store evaluate"""

from __future__ import annotations

from pathlib import Path

import click

import grace_store as gs
from grace_store.base.errors import SettingError
from grace_store.cli import shared
from grace_store.cli.console import show
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
@shared.out_finding
def evaluate(
    results: tuple[str, ...], full: str, items: tuple[str, ...], seed: int, out: Path | None, *, as_json: bool
) -> None:
    """Compare trained models with the one trained on the full data.

    RESULTS are those of models trained on subsets: output folders of VLMEvalKit, ms-swift or lm-evaluation-harness
    (of one model or of several), or .csv tables with one row for each run and, in a row named "items", the numbers of
    questions. The relative average is the mean over benchmarks of 100 score / score of the full data.
    """
    from grace_store.scoring.provenance import check_results

    check_results(None, [out], [Path(place) for place in (*results, full)])
    show(gs.evaluate(results, full, num_items=_counts(items), seed=seed), out, as_json=as_json)


def _counts(items: tuple[str, ...]) -> dict[str, int]:
    counts = {}
    for text in items:
        name, _, number = text.rpartition("=")
        if not name or not number.isdigit() or int(number) < 1:
            raise SettingError(f"--items {text} is not ENTRY=N, such as MathVision-MINI=304")
        counts[name] = int(number)
    return counts
