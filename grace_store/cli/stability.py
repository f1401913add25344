"""grace-store stability"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.text import counted, percent
from grace_store.cli import shared
from grace_store.cli.console import print_result, where_line
from grace_store.cli.options import COUNT, NATURAL, OUT_JSON, TEXT, command, option


@command(
    "grace-store stability traces.zarr --ratio 0.2",
    "grace-store stability traces.zarr --out stability.json",
    "grace-store stability traces.zarr --signal checkpoint-100 --against seed-2 --against checkpoint-25",
)
@shared.store
@option("--signal", TEXT, "Signal to choose the subset by. [default: the only one]")
@option("--against", TEXT, "Signal to compare with. [default: all others]", many=True)
@shared.ratio
@shared.grace
@option("--draws", COUNT, "Random draws behind each interval.", default=200)
@option("--seed", NATURAL, "Seed of the random draws.", default=0)
@shared.where()
@shared.moved_data
@shared.partial
@shared.threads
@option("--out", OUT_JSON, "JSON file for the result, as `report --stability` takes it. [default: not written]")
def stability(store: str, against: tuple[str, ...], out: Path | None, *, as_json: bool, **settings: Any) -> None:
    """Measure how much of a subset survives small changes.

    The subset is chosen again by other signals in STORE (another checkpoint, warm-up seed or warm-up size), from
    vectors stored with less precision, and with each trace's steps drawn at random with replacement. Beside the share
    that stays stands the Jaccard index, samples in both subsets over samples in either: 1 is the same subset.
    """
    from grace_store.artifacts.outputs import check_results
    from grace_store.base.documents import write_document

    check_results(store, [out])
    spec, threads = shared.take_score_spec(settings), settings.pop("threads")
    settings["data"] = settings["data"] or None
    request = gs.StabilityRequest(spec=spec, against=against or None, **settings)
    found = gs.stability(store, request, threads=threads)
    if out is not None:
        write_document(out, found.to_document(store))
    told = {"store": store, "conclusion": found.conclusion}
    result = {**told, **asdict(found), "where": None if found.where is None else found.where.model_dump()}
    print_result(result, _print, store, found, out, as_json=as_json)


def _print(store: str, found: gs.Stability, out: Path | None) -> None:
    click.echo(found.conclusion)
    of = counted(found.num_samples, "sample")
    click.echo(f"{store}: the best {found.num_chosen} of {of} by signal {found.signal}")
    click.echo(where_line(found.where), nl=False)
    rows = [(f"signal {name}", each) for name, each in found.signals.items()]
    rows += [(f"from vectors as {name}", each) for name, each in found.storages.items()]
    rows += [("steps drawn anew", found.steps)] if found.steps is not None else []
    width = max([len("two random subsets"), *(len(name) for name, _ in rows)]) + 2
    click.echo(f"  {'chosen again':<{width}}{'still':>8}{'Jaccard':>9}{'95 %':>18}{'samples':>10}")
    for name, each in rows:
        span = f"{each.low:.3f} to {each.high:.3f}"
        stay = percent(each.share_kept)
        click.echo(f"  {name:<{width}}{stay:>8}{each.jaccard:>9.3f}{span:>18}{each.num_samples:>10}")
    by_chance = percent(found.num_chosen / found.num_samples)
    click.echo(f"  {'two random subsets':<{width}}{by_chance:>8}{found.by_chance:>9.3f}")
    if found.skipped:
        click.echo(f"  Left out, with one vector a sample and no steps: {', '.join(found.skipped)}.")
    if not found.signals:
        click.echo(
            "  There is no other signal with steps to compare with. To add one: `warmup --seed 1 --out other`, then "
            "`extract --adapter other`."
        )
    if out is not None:
        click.echo(f"  written: {out}")
