"""grace-store audit"""

from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.cli import shared
from grace_store.cli.console import show
from grace_store.cli.options import FILE, PLACE, TEXT, command, option
from grace_store.scoring.provenance import check_results


@command(
    "grace-store audit scores.parquet --ratio 0.2",
    "grace-store audit scores.parquet --where 'is_correct and num_steps > 8'",
    "grace-store audit scores.parquet --by source                 # which sources have the highest values",
)
@click.argument("scores", type=FILE)
@option(
    "--ratio",
    TEXT,
    "Share of the best samples; their mean length is compared with the pool's.",
    default="0.2",
)
@option(
    "--by",
    "FIELD[,...]",
    "Fields of the records, or num_steps, that make groups of samples to compare. [default: none]",
)
@shared.where(shared.KNOWN_BY_SCORES)
@option("--store", PLACE, "Scored store, if it has moved; for --where and --by. [default: its earlier place]")
@shared.moved_data
@shared.out_finding
def audit(scores: Path, data: tuple[str, ...], out: Path | None, *, as_json: bool, **settings: Any) -> None:
    """Measure how values depend on length and on groups of traces.

    Length is measured in three ways: tokens in a step, tokens in the response, and number of steps. To rank samples by
    values without the effect of length, use `select --control length`.
    """
    check_results(None, [out], [scores])
    show(gs.audit(scores, **settings, data=data or None), out, as_json=as_json)
