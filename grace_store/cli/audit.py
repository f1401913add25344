"""grace-store audit"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.text import counted, one_line
from grace_store.cli import shared
from grace_store.cli.console import harmless, number, print_result
from grace_store.cli.options import FILE, PLACE, TEXT, command, option, said

GROUPS_SHOWN = 20
GROUPS_WRITTEN = 1000
"""Groups in the result for machines; a field may have a value of its own for each sample."""


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
def audit(scores: Path, ratio: str, where: str | None, *, as_json: bool, **settings: Any) -> None:
    """Measure how far the values of a table follow length and groups.

    Lengths are those of steps and of the response in tokens, and the number of steps. `select --control length` ranks
    by what is left of the values when length is taken out.
    """
    by, store, data = settings["by"], settings["store"], settings["data"] or None
    found = gs.audit(scores, ratio=ratio, by=by, where=where, store=store, data=data)
    result = {
        "scores": str(scores),
        **said({"where": where, "by": by}),
        "enough_samples": found.has_enough_samples,
        **asdict(found),
        "groups": [asdict(each) for each in found.groups[:GROUPS_WRITTEN]],
    }
    print_result(result, _print, scores, found, ratio, where, by, as_json=as_json)


def _print(scores: Path, found: gs.Audit, ratio: str, where: str | None, by: str | None) -> None:
    click.echo(harmless(found.conclusion))
    kept = "" if where is None else f", where {harmless(one_line(where))}"
    click.echo(f"{scores}: {counted(found.num_samples, 'sample')} with a value{kept}")
    if found.has_enough_samples:
        _print_lengths(found, ratio)
    if by is not None:
        _print_groups(found, ratio, by)


def _print_lengths(found: gs.Audit, ratio: str) -> None:
    click.echo(f"  length explains {number(100 * found.variance_explained, 1)} % of the values' variance")
    click.echo(
        f"  {'value and':<18}{'Pearson':>9}{'Spearman':>10}{'partial':>9}{'controlled':>12}{f'kept {ratio}/all':>16}"
    )
    for name, bias in found.lengths.items():
        kept = f"{number(bias.kept_over_all, 2)} -> {number(bias.kept_over_all_after_control, 2)}"
        click.echo(
            f"  {name:<18}{number(bias.pearson):>9}{number(bias.spearman):>10}{number(bias.partial):>9}"
            f"{number(bias.spearman_after_control):>12}{kept:>16}"
        )
    click.echo(
        "  partial: with the other lengths held fixed. controlled: Spearman after `select --control length`. "
        f"kept: mean length of the best {ratio} over that of all, before and after."
    )
    if found.steps is not None:
        steps = found.steps
        click.echo(
            f"  step score and step length over {counted(steps.num_steps, 'step')}: Pearson {number(steps.pooled)}, "
            f"Spearman {number(steps.spearman)}, within one trace {number(steps.within_sample)}"
        )


def _print_groups(found: gs.Audit, ratio: str, by: str) -> None:
    """Show how many of the best are of each group, by value and by what is left of it after control."""
    shown = found.groups[:GROUPS_SHOWN]
    names = [harmless(each.group) for each in shown]
    width = max(len(by), *map(len, names), 0)
    click.echo(f"  {by:<{width}}{'samples':>9}{f'best {ratio}':>10}{'share':>9}{'controlled':>12}")
    for name, each in zip(names, shown, strict=True):
        share = f"{100 * each.best / each.num_samples:.1f} %"
        click.echo(f"  {name:<{width}}{each.num_samples:>9}{each.best:>10}{share:>9}{each.best_after_control:>12}")
    if more := len(found.groups) - len(shown):
        click.echo(f"  and {counted(more, 'smaller group')}")
