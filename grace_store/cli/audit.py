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


@command(
    "grace-store audit scores.parquet --ratio 0.2",
    "grace-store audit scores.parquet --where 'is_correct and num_steps > 8'",
)
@click.argument("scores", type=FILE)
@option("--ratio", TEXT, "Share of the best samples whose mean length is compared with that of all.", default="0.2")
@shared.where(shared.KNOWN_BY_SCORES)
@option("--store", PLACE, "Store that was scored, if it has moved; for --where. [default: where it was]")
@shared.moved_data
def audit(scores: Path, ratio: str, where: str | None, *, as_json: bool, **places: Any) -> None:
    """Measure how far the values of a table follow length.

    Lengths are those of steps and of the response in tokens, and the number of steps. `select --control length` ranks
    by what is left of the values when length is taken out.
    """
    found = gs.audit(scores, ratio=ratio, where=where, store=places["store"], data=places["data"] or None)
    result = {
        "scores": str(scores),
        **said({"where": where}),
        "enough_samples": found.has_enough_samples,
        **asdict(found),
    }
    print_result(result, _print, scores, found, ratio, where, as_json=as_json)


def _print(scores: Path, found: gs.LengthAudit, ratio: str, where: str | None) -> None:
    from grace_store.values.length_bias import MIN_AUDITED

    kept = "" if where is None else f", where {harmless(one_line(where))}"
    click.echo(f"{scores}: {counted(found.num_samples, 'sample')} with a value{kept}")
    if not found.has_enough_samples:
        click.echo(f"  With fewer than {MIN_AUDITED} samples, nothing can be said about how values follow length.")
        return
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
