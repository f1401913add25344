"""grace-store duplicates, neighbours"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grace_store.base.errors import SettingError
from grace_store.base.text import counted
from grace_store.cli.console import ProgressDisplay, harmless, print_json
from grace_store.cli.options import (
    LocalPath,
    as_json,
    descriptor_option,
    engine_options,
    given_once,
    spread,
    stacked,
    store_argument,
)
from grace_store.cli.scoring import partial_option, threads_option

if TYPE_CHECKING:
    from grace_store.artifacts.duplicate_table import DuplicateTable

EPILOG = """\b
Examples:
  grace-store duplicates traces.zarr --out duplicates.parquet
  grace-store duplicates traces.zarr --out duplicates.parquet --scores scores.parquet --threshold 0.97
  grace-store duplicates traces.zarr --out duplicates.parquet --subset subset.jsonl --keep shortest
  grace-store duplicates --from duplicates.parquet --threshold 0.98 --out stricter.parquet   # no new search
  grace-store duplicates s3://bucket/traces.zarr --out duplicates.parquet --engine ray --address auto
"""
KEEPS = ("value", "shortest", "earliest")
SEARCH_OPTIONS = (
    "signal", "descriptor", "dimension", "floor", "subset", "data", "partial", "seed", "threads", "engine", "address",
)  # fmt: skip

descriptor_options = stacked(
    click.option("--signal", help="Whose vectors are compared. [default: the one scored, or the only one]"),
    descriptor_option,
    click.option("--dimension", type=click.IntRange(1), help="Numbers of a projected descriptor. [default: 512]"),
    click.option("--seed", type=click.IntRange(0), help="Of random choices. [default: 0]"),
    partial_option,
    threads_option,
)


@click.command(epilog=EPILOG)
@click.argument("store", type=click.Path(), required=False)
@click.option("--out", required=True, type=LocalPath(dir_okay=False, path_type=Path), help="The Parquet table.")
@click.option("--threshold", type=float, help="Cosine from which samples are alike. [default: 0.95]")
@click.option("--floor", type=float, help="Look for pairs down to here, to lower the threshold later. [default: 0.9]")
@click.option(
    "--keep", type=click.Choice(KEEPS), help="Which of a group. [default: value with --scores, else earliest]"
)
@click.option(
    "--scores",
    multiple=True,
    callback=given_once,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Values to keep the best by, and for --descriptor weighted.",
)
@click.option("--subset", type=click.Path(path_type=Path), help="Only these: a subset, a table of scores, or ids.")
@descriptor_options
@engine_options
@click.option("--data", multiple=True, type=click.Path(), help="Where the dataset is now: texts are compared too.")
@click.option(
    "--from", "source", type=click.Path(dir_okay=False, path_type=Path), help="Group this table anew instead."
)
@as_json
def duplicates(
    store: str | None, out: Path, threshold: float | None, keep: Any, scores: Path | None, source: Path | None,
    engine: str, address: str | None, threads: int | None, *, as_json: bool, **settings: Any,
) -> None:  # fmt: skip
    """Find samples of STORE that are alike: the same text, or vectors that point the same way.

    One row a sample: its group, the nearest sample and how similar it is, and whether it is kept: one of each group.
    The table holds all it takes to group it anew by any threshold from the floor up, with --from.

    With --engine ray the cluster reads and decodes the vectors; they are searched where the command runs.
    """
    from grace_store.artifacts.outputs import check_results
    from grace_store.curate.duplicates import find_duplicates, regroup_duplicates

    said = _said({**settings, "threads": threads, "engine": engine if engine != "local" else None, "address": address})
    check_results(store, [out], [scores, source, settings["subset"]])
    if source is not None:
        if ignored := [f"--{name}" for name in SEARCH_OPTIONS if name in said] + ["STORE"] * (store is not None):
            raise SettingError(f"--from does not search again and has no use for {', '.join(ignored)}")
        found = regroup_duplicates(source, threshold=threshold, keep=keep, scores=scores)
    elif store is None:
        raise click.UsageError("Missing argument 'STORE' (only --from does without).")
    else:
        said = _said({**settings, "threshold": threshold})
        with ProgressDisplay(quiet=as_json) as display, spread(engine, address, threads, display) as pool:
            found = find_duplicates(store, scores=scores, keep=keep, threads=pool, listener=display, **said)
    found.write(out)
    if as_json:
        print_json(_result(found, out))
        return
    _show(found, out)


def _said(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in settings.items() if value is not None and value is not False and value != ()}


def _result(found: DuplicateTable, out: Path) -> dict[str, Any]:
    return {
        "out": str(out),
        "num_samples": len(found),
        "num_exact": int(found.exact.sum()),
        "num_groups": found.num_groups,
        "num_in_groups": int((found.group >= 0).sum()),
        "num_kept": int(found.keep.sum()),
        "num_dropped": int((~found.keep).sum()),
        "thresholds": [asdict(count) for count in found.counts()],
        **found.made_by,
    }


def _show(found: DuplicateTable, out: Path) -> None:
    spec, search = found.made_by["spec"], found.made_by["search"]
    dropped = int((~found.keep).sum())
    click.echo(
        f"{out}: {counted(len(found), 'sample')}, {int((found.group >= 0).sum())} of them in "
        f"{counted(found.num_groups, 'group')} from "
        f"{found.threshold:g} up; {dropped} dropped, the {KEPT[spec['keep']]} of each group kept."
    )
    same = "text" if found.made_by["exact_by"] == "text" else "record"
    click.echo(f"  {int(found.exact.sum())} have the same {same} as another")
    if found.made_by["num_zero"]:
        click.echo(f"  {found.made_by['num_zero']} have a vector of zeros, like no other")
    recall = search["recall"]
    if recall is None:
        click.echo("  every sample was compared with every other")
    elif recall["share"] is None:
        click.echo(f"  searched by cells; none of {recall['num_queries']} samples at random is like another")
    else:
        click.echo(
            f"  searched by cells: recall {recall['share']:.4f} ({recall['num_found']} of {recall['num_true']} pairs "
            f"of {recall['num_queries']} samples at random)"
        )
    if found.made_by["partial"]:
        signal = found.made_by["signal"]
        click.echo(f"  partial: {signal['num_units']} of {found.made_by['num_units']} units of {signal['name']}")
    click.echo(f"  {'threshold':>9}{'groups':>9}{'in groups':>11}{'dropped':>9}")
    for count in found.counts():
        mark = "  <" if count.threshold == found.threshold else ""
        click.echo(f"  {count.threshold:>9g}{count.num_groups:>9}{count.num_in_groups:>11}{count.num_dropped:>9}{mark}")


KEPT = {"value": "highest value", "shortest": "shortest", "earliest": "earliest"}


@click.command(
    epilog="\b\nExamples:\n  grace-store neighbours traces.zarr trace-17 --count 5\n"
    "  grace-store neighbours traces.zarr '#3' --least\n  grace-store neighbours traces.zarr --vectors new.npy"
)
@store_argument
@click.argument("sample", required=False)
@click.option("--vectors", type=click.Path(dir_okay=False), help="A new trace instead: (K+1, d), answer last, as .npy.")
@click.option("--count", type=click.IntRange(1), default=10, show_default=True, help="How many.")
@click.option("--least", is_flag=True, help="The least aligned ones instead.")
@click.option(
    "--scores", multiple=True, callback=given_once, type=click.Path(dir_okay=False, path_type=Path),
    help="Step scores, for --descriptor weighted.",
)  # fmt: skip
@descriptor_options
@as_json
def neighbours(
    store: str, sample: str | None, vectors: str | None, count: int, least: bool, scores: Path | None, *,
    as_json: bool, **settings: Any,
) -> None:  # fmt: skip
    """Show the samples of STORE whose vectors point most nearly the way those of SAMPLE (an id, or #ROW) do."""
    from grace_store.artifacts.score_table import read_scores
    from grace_store.curate.neighbours import nearest_samples, read_vectors

    if (sample is None) == (vectors is None):
        raise click.UsageError("Give a SAMPLE or --vectors, one of them.")
    said = _said(settings)
    query = sample if sample is not None else read_vectors(str(vectors))
    with ProgressDisplay(quiet=as_json) as display:
        found = nearest_samples(
            store, query, count=count, least=least, listener=display,
            scores=None if scores is None else read_scores(scores), **said,
        )  # fmt: skip
    if as_json:
        print_json(asdict(found))
        return
    of = vectors if found.sample_id is None else harmless(found.sample_id)
    click.echo(f"{'Least aligned with' if least else 'Nearest to'} {of}, by {found.descriptor} of {found.signal}:")
    for each in found.neighbours:
        click.echo(f"  {each.cosine:>7.4f}  {harmless(each.sample_id)}  row {each.row}")
