"""grace-store diversity"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

import grace_store as gs
from grace_store.base.errors import SettingError
from grace_store.base.text import counted, percent
from grace_store.cli import shared
from grace_store.cli.console import harmless, print_result, where_line
from grace_store.cli.console import out as console
from grace_store.cli.options import COUNT, NATURAL, OUT_JSON, OUT_SVG, PATH, TEXT, choice, command, option, said
from grace_store.cli.progress import ProgressDisplay
from grace_store.values.diversity_spec import Traded


@command(
    "grace-store diversity traces.zarr --subset plain.jsonl --subset diverse.jsonl",
    "grace-store diversity traces.zarr --scores scores.parquet --ratio 0.05 --ratio 0.2 --out diversity.json",
    "grace-store diversity traces.zarr --scores scores.parquet --ratio 0.2 --curve curve.svg",
)
@shared.store
@option("--subset", PATH, "Subset by `select`, or scores for their best 0.2. [default: none]", "subsets", many=True)
@shared.scores("Table of scores: its best samples are measured, too, and its values are the pool's. [default: none]")
@option("--ratio", TEXT, "Share of the samples that are the best of --scores. [default: 0.2]", many=True)
@shared.clusters
@option("--random", COUNT, "Number of random subsets to compare with.", "num_random", default=200)
@option("--seed", NATURAL, "Seed of the clusters and of the random subsets.", default=0)
@option("--curve", OUT_SVG, "SVG file: draw and list what coverage costs, at the first --ratio. [default: not drawn]")
@option("--method", choice(Traded), "Method of diverse selection in --curve. [default: all]", "methods", many=True)
@option("--weight", float, "Weight of diversity in --curve, 0 to 1. [default: seven from 0 to 1]", "weights", many=True)
@option("--show", NATURAL, "Number of clusters to list that a subset has too much of, and too little of.", default=3)
@option("--out", OUT_JSON, "JSON file for all numbers, as `report --diversity` takes it. [default: none]")
@shared.where(" (with --scores also num_tokens, value, flags)")
@shared.moved_data
@shared.partial
@shared.threads
def diversity(
    store: str, scores: Path | None, curve: Path | None, show: int, out: Path | None, *, as_json: bool, **settings: Any
) -> None:
    """Measure how diverse subsets are, and what diversity costs.

    Subsets are compared with the whole pool of samples and with random subsets of the same size. Coverage is counted in
    clusters of the samples' vectors.
    """
    from grace_store.artifacts.outputs import check_results
    from grace_store.curate.diversity import write_diversity

    asked = said({name: settings.pop(name) for name in ("methods", "weights")})
    if asked and curve is None:
        raise SettingError("--method and --weight are for the curve: give --curve, too")
    spec = None if curve is None else gs.TradeSpec.parse(seed=settings["seed"], **asked)
    check_results(store, [out, curve], [scores, *settings["subsets"]])
    with ProgressDisplay(quiet=as_json) as display:
        threads = settings.pop("threads")
        request = gs.DiversityRequest(scores=scores, curve=spec, **settings | {"data": settings["data"] or None})
        found = gs.diversity(store, request, threads=threads, listener=display)
    write_diversity(found, out, curve)
    written = [path for path in (out, curve) if path is not None]
    print_result(found.to_json(), _print, found, show, written, as_json=as_json)


def _print(found: gs.Diversity, show: int, written: list[Path]) -> None:
    from grace_store.curate.variety import shown_measure

    console.print(harmless(found.conclusion), markup=False, soft_wrap=True)
    title = f"{counted(found.pool.num_samples, 'sample')} in {counted(len(found.clusters), 'cluster')}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=0)
    table.add_column("subset", overflow="fold")
    for name in ("samples", "value", "touched", "evenness", "Vendi", "nearest", "alike"):
        table.add_column(name, justify="right")
    for each in (found.pool, *found.subsets):
        numbers = (each.mean_value, each.share_touched, each.entropy, each.vendi, each.nearest_distance)
        table.add_row(
            escape(harmless(each.name)),
            str(each.num_samples),
            *map(shown_measure, numbers),
            "" if each.share_alike is None else percent(each.share_alike),
        )
    by_size = {each.num_samples: each.random for each in found.subsets if each.random is not None}
    for num_samples, random in by_size.items():
        intervals = (random.share_touched, random.entropy, random.vendi, random.nearest_distance)
        cells = ("" if x.mean != x.mean else f"{shown_measure(x.low)}-{shown_measure(x.high)}" for x in intervals)
        table.add_row("at random", str(num_samples), "", *cells, style="dim")
    console.print(table)
    console.print(
        "value: the mean. touched: share of clusters with a sample. evenness: entropy over clusters, 1 if even. "
        "Vendi: effective number of samples. nearest: mean 1 - cos to the nearest. alike: samples with a "
        "near-duplicate in it. at random: where nine in ten random subsets lie."
    )
    most = max(each.vendi_num_samples for each in (found.pool, *found.subsets))
    if most < max(each.num_samples - each.num_without_direction for each in (found.pool, *found.subsets)):
        console.print(f"Vendi scores of more than {most} samples are over {most} of them, drawn at random.")
    for i, each in enumerate(found.subsets if show else ()):
        console.print(f"{harmless(each.name)}: {_represented(found, i, show)}.", markup=False)
    _print_curve(found)
    console.print(where_line(found.where), end="", markup=False)
    if found.partial:
        console.print("partial: the store is not finished.")
    for path in written:
        console.print(f"{path} written", markup=False)


def _represented(found: gs.Diversity, subset: int, show: int) -> str:
    """Say of which clusters a subset has the most samples beyond its share, and of which it lacks the most."""
    said = []
    for clusters in found.represented(subset, show):
        shown = []
        for each in clusters:
            value = "" if each.mean_value != each.mean_value else f", mean value {each.mean_value:.3f}"
            amount = f"{each.num_chosen[subset]} of {each.num_samples}"
            shown.append(f"#{each.cluster} ({amount}{value}, like {harmless(each.example)})")
        said.append(", ".join(shown) or "no cluster")
    return f"too much of {said[0]}; too little of {said[1]}"


def _print_curve(found: gs.Diversity) -> None:
    from grace_store.curate.variety import shown_measure

    curve = found.curve
    if curve is None:
        return
    title = f"What diversity costs, for {counted(curve.num_samples, 'sample')}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=0)
    for name in ("method", "weight", "value", "value lost", "touched", "evenness"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for point in (curve.best, *curve.points, curve.random):
        numbers = (point.mean_value, point.value_lost, point.share_touched, point.entropy)
        weight = "" if point.weight != point.weight else f"{point.weight:g}"
        table.add_row(point.method, weight, *map(shown_measure, numbers))
    console.print(table)
    console.print("value lost: share of what choosing by value gains over choosing at random.")
    if all(point.entropy != point.entropy for point in curve.points):
        console.print("The samples lie in one cluster: there is nothing to trade value for.")
