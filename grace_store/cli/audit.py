"""grace-store audit"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.cli import shared
from grace_store.cli.console import show
from grace_store.cli.options import FILE, PLACE, TEXT, command, option


@command(
    "grace-store audit scores.parquet --ratio 0.2",
    "grace-store audit scores.parquet --where 'is_correct and num_steps > 8'",
    "grace-store audit scores.parquet --by source                 # which sources have the highest values",
)
@click.argument("scores", type=FILE)
@option("--ratio", TEXT, "Share of the best samples whose mean length is compared with that of all.", default="0.2")
@option(
    "--by",
    "FIELD[,...]",
    "Field of the records, num_steps, or several (source,level), whose groups are compared. [default: none]",
)
@shared.where(shared.KNOWN_BY_SCORES)
@option("--store", PLACE, "Store that was scored, if it has moved; for --where and --by. [default: where it was]")
@shared.moved_data
@shared.out_finding
def audit(scores: Path, data: tuple[str, ...], out: Path | None, *, as_json: bool, **settings: Any) -> None:
    """Measure how far the values of a table follow length and groups.

    Lengths are those of steps and of the response in tokens, and the number of steps. `select --control length` ranks
    by what is left of the values when length is taken out.
    """
    from grace_store.scoring.provenance import check_results

    check_results(None, [out], [scores])
    show(gs.audit(scores, **settings, data=data or None), out, as_json=as_json)
