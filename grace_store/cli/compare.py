"""grace-store compare"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

import grace_store as gs
from grace_store.base.text import counted
from grace_store.cli import console
from grace_store.cli.console import fields_of, harmless, print_result
from grace_store.cli.options import NATURAL, OUT_RECORDS, TEXT, command, option


@command(
    "grace-store compare uniform.jsonl ema.jsonl --out changes.jsonl",
    "grace-store compare uniform.parquet ema.parquet --ratio 0.1",
)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@option("--ratio", TEXT, "Share of the samples that counts as chosen in tables of scores. [default: 0.2]")
@option("--show", NATURAL, "Number of samples to list that entered, and of those that left.", default=10)
@option("--out", OUT_RECORDS, "File for all changes: JSON lines, or an array if it ends in .json. [default: none]")
def compare(a: Path, b: Path, ratio: str | None, show: int, out: Path | None, *, as_json: bool) -> None:
    """Show what two subsets share, what entered, what left and why.

    A and B are subsets that `select` wrote, or tables of scores. A sample enters if it is in B alone, and leaves if it
    is in A alone. Of samples that moved in rank it is told which part of their values moved them: alignment with the
    answer, alignment with history, or length that was taken out.
    """
    from grace_store.artifacts.outputs import check_results
    from grace_store.curate.compare import write_changes

    check_results(None, [out], [a, b])
    found = gs.compare(a, b, ratio=ratio)
    if out is not None:
        write_changes(found, out)
    counts = {"num_entered": len(found.entered), "num_left": len(found.left)}
    counts |= fields_of(found, "conclusion", "num_a", "num_b", "num_both", "both_by_chance", "jaccard", "notes")
    listed = {word: [asdict(change) for change in getattr(found, word)[:show]] for word in ("entered", "left")}
    print_result({"a": str(a), "b": str(b), **counts, **listed}, _print, a, b, found, show, as_json=as_json)


def _print(a: Path, b: Path, found: gs.Comparison, show: int) -> None:
    from grace_store.curate.compare import mean_tokens

    of_a, both = counted(found.num_a, "sample"), f"both: {found.num_both} ({found.both_by_chance:.1f} by chance)"
    click.echo(harmless(found.conclusion))
    click.echo(f"{a}: {of_a}, {b}: {found.num_b}, {both}, Jaccard {found.jaccard:.3f}")
    for note in found.notes:
        click.echo(f"  {harmless(note)}")
    for word, changes in (("entered", found.entered), ("left", found.left)):
        if changes:
            title = f"{len(changes)} {word}, with {mean_tokens(changes):.0f} tokens in the mean"
            console.out.print(_changes(title, changes[:show]))
    if any(change.moved for change in [*found.entered, *found.left]):
        click.echo(
            "  In brackets: how far each part of its value (alignment with the answer, alignment with history, length "
            "taken out) moved a sample against the others, in spreads (robust standard deviations) of the values."
        )


def _changes(title: str, changes: Sequence[gs.Change]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for name in ("sample", "K", "value, rank in A", "value, rank in B", "why"):
        table.add_column(name, justify="left" if name in ("sample", "why") else "right", overflow="fold")
    for change in changes:
        sides = ((change.value_a, change.rank_a), (change.value_b, change.rank_b))
        shown = ("" if value is None else f"{value:.4f} {place:>5}" for value, place in sides)
        table.add_row(escape(harmless(change.sample_id)), str(change.num_steps), *shown, escape(harmless(change.why)))
    return table
