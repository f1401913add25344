"""grace-store stability"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from grace_store.cli.console import print_json
from grace_store.cli.options import as_json, store_argument
from grace_store.cli.scoring import grace_options, partial_option, threads_option

if TYPE_CHECKING:
    from grace_store.job.stability import Stability
    from grace_store.select.stability import Survival

EPILOG = """\b
Examples:
  grace-store stability traces.zarr --ratio 0.2
  grace-store stability traces.zarr --signal checkpoint-100 --against seed-2 --against checkpoint-25
"""


@click.command(epilog=EPILOG)
@store_argument
@click.option("--signal", help="The signal to choose by. [default: the only one]")
@click.option("--against", multiple=True, help="Another signal; may be repeated. [default: all others]")
@click.option("--ratio", default="0.2", show_default=True, help="Share that is chosen.")
@grace_options
@click.option("--draws", type=click.IntRange(1), default=200, show_default=True, help="For the intervals.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the draws.")
@partial_option
@threads_option
@as_json
def stability(
    store: str, signal: str | None, against: tuple[str, ...], ratio: str, draws: int, seed: int, partial: bool,
    threads: int | None, *, as_json: bool, **settings: Any,
) -> None:  # fmt: skip
    """Say how much of a subset survives what might have come out otherwise.

    The same choice by other signals in STORE (another checkpoint, warm-up seed or warm-up size), from vectors stored
    with less precision, and with each trace's steps drawn anew. 1 is the same subset.
    """
    from dataclasses import asdict

    from grace_store.job.stability import measure_stability
    from grace_store.score import ScoreSpec

    found = measure_stability(
        store,
        ScoreSpec.parse(**{name: value for name, value in settings.items() if value is not None}),
        signal=signal,
        against=against or None,
        ratio=ratio,
        draws=draws,
        seed=seed,
        partial=partial,
        threads=threads,
    )
    if as_json:
        print_json({"store": store, **asdict(found)})
        return
    _show(store, found)


def _show(store: str, found: Stability) -> None:
    click.echo(f"{store}: the best {found.num_chosen} of {found.num_samples} samples by signal {found.signal}")
    rows: list[tuple[str, Survival]] = [(f"signal {name}", each) for name, each in found.signals.items()]
    rows += [(f"from vectors as {name}", each) for name, each in found.storages.items()]
    rows += [("steps drawn anew", found.steps)] if found.steps is not None else []
    width = max([len("two random subsets"), *(len(name) for name, _ in rows)]) + 2
    click.echo(f"  {'shared with':<{width}}{'Jaccard':>8}{'95 %':>18}{'samples':>10}")
    for name, each in rows:
        span = f"{each.low:.3f} to {each.high:.3f}"
        click.echo(f"  {name:<{width}}{each.jaccard:>8.3f}{span:>18}{each.num_samples:>10}")
    click.echo(f"  {'two random subsets':<{width}}{found.by_chance:>8.3f}")
    if not found.signals:
        click.echo(
            "  There is no other signal: `warmup --seed 1 --out other`, then `extract --adapter other`, adds one."
        )
