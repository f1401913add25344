"""grace-store compare"""

from pathlib import Path

import click

import grace_store as gs
from grace_store.cli import shared
from grace_store.cli.console import show
from grace_store.cli.options import NATURAL, PATH, TEXT, command, option
from grace_store.scoring.provenance import check_results


@command(
    "grace-store compare uniform.jsonl ema.jsonl --out compared.json",
    "grace-store compare uniform.parquet ema.parquet --ratio 0.1",
)
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@option("--ratio", TEXT, "Share of the samples that counts as the subset of a table of scores. [default: 0.2]")
@option(
    "--show",
    NATURAL,
    "List at most this many samples that entered the subset, and as many that left the subset.",
    "most",
    default=10,
)
@shared.out_finding
def compare(a: Path, b: Path, ratio: str | None, most: int, out: Path | None, *, as_json: bool) -> None:
    """Show which samples two subsets share, which differ, and why.

    A and B are subsets that `select` wrote, or tables of scores. A sample enters if it is only in B, and leaves if it
    is only in A. For samples with another rank, the result names the part of the value that changed the rank: alignment
    with the answer, alignment with the history, or the control of length. OUT and --json list all samples that entered
    or left.
    """
    check_results(None, [out], [a, b])
    show(gs.compare(a, b, ratio=ratio), out, as_json=as_json, most=most)
