"""grace-store compare"""

from __future__ import annotations

from pathlib import Path

import click

import grace_store as gs
from grace_store.cli.console import show
from grace_store.cli.options import NATURAL, OUT_JSON, PATH, TEXT, command, option


@command(
    "grace-store compare uniform.jsonl ema.jsonl --out compared.json",
    "grace-store compare uniform.parquet ema.parquet --ratio 0.1",
)
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@option("--ratio", TEXT, "Share of the samples that counts as chosen in tables of scores. [default: 0.2]")
@option("--show", NATURAL, "Number of samples to list that entered, and of those that left.", "most", default=10)
@option("--out", OUT_JSON, "JSON file for the finding, as `report --finding` takes it. [default: not written]")
def compare(a: Path, b: Path, ratio: str | None, most: int, out: Path | None, *, as_json: bool) -> None:
    """Show what two subsets share, what entered, what left and why.

    A and B are subsets that `select` wrote, or tables of scores. A sample enters if it is in B alone, and leaves if it
    is in A alone. Of samples that moved in rank it is told which part of their values moved them: alignment with the
    answer, alignment with history, or length that was taken out. OUT and --json have all samples that entered or left.
    """
    from grace_store.scoring.provenance import check_results

    check_results(None, [out], [a, b])
    show(gs.compare(a, b, ratio=ratio), out, as_json=as_json, most=most)
