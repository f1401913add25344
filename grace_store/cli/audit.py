"""grace-store audit"""

from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.cli import shared
from grace_store.cli.console import show
from grace_store.cli.options import PLACE, SCORES, TEXT, command, option
from grace_store.scoring.provenance import check_results


@command(
    "grace-store audit scores.parquet --ratio 0.2",
    "grace-store audit scores.parquet --where 'is_correct and num_steps > 8'",
    "grace-store audit scores.parquet --by source                 # which sources have the highest values",
)
@click.argument("scores", type=SCORES)
@option(
    "--ratio",
    TEXT,
    "Share of the samples that counts as best. The mean length of these samples is compared with the mean length of "
    "the pool.",
    default="0.2",
)
@option(
    "--by",
    "FIELD[,...]",
    "Fields of the records, or num_steps. Samples with the same values make a group, and the groups are compared. "
    "[default: none]",
)
@shared.where(shared.KNOWN_BY_SCORES)
@option(
    "--store",
    PLACE,
    "Scored store, if the store has moved. --where and --by read the store. [default: the earlier place]",
)
@shared.moved_data
@shared.out_finding
def audit(scores: Path, data: tuple[str, ...], out: Path | None, *, as_json: bool, **settings: Any) -> None:
    """Measure how values depend on length and on groups of traces.

    Length is measured in three ways: tokens in a step, tokens in the response, and number of steps. To rank samples by
    values without the effect of length, use `select --control length`.
    """
    check_results(None, [out], [scores, settings["labels"]])
    show(gs.audit(scores, **settings, data=data or None), out, as_json=as_json)
