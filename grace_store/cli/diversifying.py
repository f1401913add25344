"""grace-store diversity"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from grace_store.base.errors import SettingError
from grace_store.base.text import counted
from grace_store.cli.console import ProgressDisplay, harmless, print_json
from grace_store.cli.console import out as console
from grace_store.cli.options import LocalPath, as_json, descriptor_option, given_once, stacked, store_argument
from grace_store.cli.scoring import partial_option, threads_option

if TYPE_CHECKING:
    from grace_store.curate.diversity import ClusterShare, Diversity, SubsetDiversity
    from grace_store.curate.trade_curve import TradeCurve
    from grace_store.likeness.coverage import RandomInterval

EPILOG = """\b
Examples:
  grace-store diversity traces.zarr --subset plain.jsonl --subset diverse.jsonl
  grace-store diversity traces.zarr --scores scores.parquet --ratio 0.05 --ratio 0.2 --out diversity.json
  grace-store diversity traces.zarr --scores scores.parquet --ratio 0.2 --curve curve.svg
"""
TRADED = ("clusters", "facility", "mmr")

similar_options = stacked(
    click.option("--signal", help="Whose vectors say what is similar. [default: the one scored]"),
    descriptor_option,
    click.option("--clusters", "num_clusters", type=click.IntRange(1), help="How many. [default: goes with N]"),
)


@click.command(epilog=EPILOG)
@store_argument
@click.option(
    "--subset", "subsets", multiple=True, type=click.Path(path_type=Path),
    help="What `select` wrote, or a table of scores for its best 0.2; may be repeated.",
)  # fmt: skip
@click.option(
    "--scores", multiple=True, callback=given_once, type=click.Path(dir_okay=False, path_type=Path),
    help="A table of scores: its best are measured too, and its values are the pool's.",
)  # fmt: skip
@click.option("--ratio", multiple=True, help="Share of the table's best; may be repeated. [default: 0.2]")
@similar_options
@click.option("--random", "num_random", type=click.IntRange(1), default=200, show_default=True, help="Random subsets.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of clusters and random subsets.")
@click.option(
    "--curve", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.svg",
    help="Draw what value coverage costs, at the first --ratio, and list it.",
)  # fmt: skip
@click.option("--method", "methods", multiple=True, type=click.Choice(TRADED), help="In the curve. [default: all]")
@click.option("--weight", "weights", multiple=True, type=float, help="In the curve. [default: 0 to 1 in seven steps]")
@click.option("--show", type=click.IntRange(0), default=3, show_default=True, help="Clusters to list for a subset.")
@click.option("--out", type=LocalPath(dir_okay=False, path_type=Path), help="Write everything, as JSON.")
@partial_option
@threads_option
@as_json
def diversity(
    store: str, subsets: tuple[Path, ...], scores: Path | None, ratio: tuple[str, ...], signal: str | None,
    descriptor: str | None, num_clusters: int | None, num_random: int, seed: int, curve: Path | None,
    methods: tuple[str, ...], weights: tuple[float, ...], show: int, out: Path | None, partial: bool,
    threads: int | None, *, as_json: bool,
) -> None:  # fmt: skip
    """Say how diverse subsets of STORE are, against its whole pool and random subsets of the same size.

    Coverage is counted in clusters of the samples' vectors. Subsets are files that `select` wrote; tables of scores
    stand for their best.
    """
    from grace_store.artifacts.outputs import check_results
    from grace_store.curate.diversity import measure_diversity, write_diversity
    from grace_store.curate.trade_curve import TradeSpec

    if (methods or weights) and curve is None:
        raise SettingError("--method and --weight are of the curve: give --curve, too")
    given = {"methods": methods, "weights": weights}
    spec = None if curve is None else TradeSpec.parse(seed=seed, **{k: v for k, v in given.items() if v})
    check_results(store, [out, curve], [scores, *subsets])
    with ProgressDisplay(quiet=as_json) as display:
        found = measure_diversity(
            store, subsets, scores=scores, ratio=ratio, signal=signal, descriptor=descriptor,
            num_clusters=num_clusters, seed=seed, num_random=num_random, curve=spec, partial=partial, threads=threads,
            listener=display,
        )  # fmt: skip
    write_diversity(found, out, curve)
    if as_json:
        print_json(found.to_dict())
        return
    _print(found, show)
    for path in filter(None, (out, curve)):
        console.print(f"{path} written", markup=False)


def _print(found: Diversity, show: int) -> None:
    title = f"{counted(found.pool.num_samples, 'sample')} in {counted(len(found.clusters), 'cluster')}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=0)
    table.add_column("subset", overflow="fold")
    for name in ("samples", "value", "touched", "evenness", "Vendi", "nearest"):
        table.add_column(name, justify="right")
    for each in (found.pool, *found.subsets):
        _add_row(table, each)
    by_size = {each.num_samples: each.random for each in found.subsets if each.random is not None}
    for num_samples, random in by_size.items():
        intervals = (random.share_touched, random.entropy, random.vendi, random.nearest_distance)
        table.add_row("at random", str(num_samples), "", *map(_interval, intervals), style="dim")
    console.print(table)
    console.print(
        "value: the mean. touched: share of clusters with a sample. evenness: entropy over clusters, 1 if even. Vendi: "
        "effective number of samples. nearest: mean 1 - cos to the nearest. at random: nine in ten random subsets."
    )
    most = max(each.vendi_num_samples for each in (found.pool, *found.subsets))
    if most < max(each.num_samples - each.num_without_direction for each in (found.pool, *found.subsets)):
        console.print(f"Vendi scores are over {most} samples where there are more, drawn at random.")
    for i, each in enumerate(found.subsets if show else ()):
        over, under = found.represented(i, show)
        said = f"too much of {_clusters(over, i)}; too little of {_clusters(under, i)}"
        console.print(f"{harmless(each.name)}: {said}.", markup=False)
    if found.curve is not None:
        _print_curve(found.curve)
    if found.made_by["partial"]:
        console.print("partial: the store is not finished.")


def _add_row(table: Table, each: SubsetDiversity) -> None:
    numbers = (each.mean_value, each.share_touched, each.entropy, each.vendi, each.nearest_distance)
    table.add_row(escape(harmless(each.name)), str(each.num_samples), *(_number(number) for number in numbers))


def _number(number: float) -> str:
    return "" if number != number else f"{number:.1f}" if abs(number) >= 10 else f"{number:.3f}"


def _interval(found: RandomInterval) -> str:
    return "" if found.mean != found.mean else f"{_number(found.low)}-{_number(found.high)}"


def _clusters(clusters: Sequence[ClusterShare], subset: int) -> str:
    return ", ".join(_cluster(each, each.num_chosen[subset]) for each in clusters) or "no cluster"


def _cluster(each: ClusterShare, num_chosen: int) -> str:
    value = "" if each.mean_value != each.mean_value else f", mean value {each.mean_value:.3f}"
    return f"#{each.cluster} ({num_chosen} of {each.num_samples}{value}, like {harmless(each.example)})"


def _print_curve(curve: TradeCurve) -> None:
    title = f"What diversity costs, for {counted(curve.num_samples, 'sample')}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=0)
    for name in ("method", "weight", "value", "value lost", "touched", "evenness"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for point in (curve.best, *curve.points, curve.random):
        numbers = (point.mean_value, point.value_lost, point.share_touched, point.entropy)
        weight = "" if point.weight != point.weight else f"{point.weight:g}"
        table.add_row(point.method, weight, *(_number(number) for number in numbers))
    console.print(table)
    console.print("value lost: share of what choosing by value gains over choosing at random.")
    if all(point.entropy != point.entropy for point in curve.points):
        console.print("The samples lie in one cluster: there is nothing to trade value for.")
