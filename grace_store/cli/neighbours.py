"""grace-store neighbours"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import grace_store as gs
from grace_store.base.text import one_line
from grace_store.cli import shared
from grace_store.cli.console import harmless, print_result
from grace_store.cli.options import COUNT, FILE, NATURAL, command, flag, option, said
from grace_store.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from grace_store.curate.neighbours import ShownSample


@command(
    "grace-store neighbours traces.zarr trace-17 --count 5",
    "grace-store neighbours traces.zarr '#3' --least",
    "grace-store neighbours traces.zarr --vectors new.npy",
)
@shared.store
@click.argument("sample", required=False)
@option("--vectors", FILE, "A new trace's vectors: a .npy file of shape (K+1, d), the answer last. [default: SAMPLE's]")
@option("--count", COUNT, "Number of neighbours to list.", default=10)
@flag("--least", "List the least aligned samples instead of the nearest.")
@shared.scores(
    "Table of scores whose values are shown, and whose step scores weigh the steps with --descriptor weighted. "
    "[default: GRACE's values by its defaults]"
)
@shared.where(" (with --scores also num_tokens, value, flags)")
@shared.moved_data
@shared.search
@option("--seed", NATURAL, "Seed of the projection, with --descriptor projected. [default: 0]")
def neighbours(
    store: str, sample: str | None, vectors: Path | None, scores: Path | None, *, as_json: bool, **settings: Any
) -> None:
    """List the samples nearest to one, or least aligned with it.

    SAMPLE is an id, or #ROW for a row of the dataset. Near means that the vectors point the same way: neighbours are
    listed by cosine, each with its value, the beginning of its prompt and its answer.
    """
    from grace_store.curate.neighbours import read_vectors

    if (sample is None) == (vectors is None):
        raise click.UsageError("Give a SAMPLE or --vectors, and not both.")
    query = sample if sample is not None else read_vectors(str(vectors))
    weights = None if scores is None else gs.read_scores(scores)
    with ProgressDisplay(quiet=as_json) as display:
        threads = settings.pop("threads")
        request = gs.NeighboursRequest(scores=weights, **said(settings))
        found = gs.neighbours(store, query, request, threads=threads, listener=display)
    result = {"conclusion": found.conclusion, **asdict(found)}
    print_result(result, _print, found, vectors, settings["least"], as_json=as_json)


def _print(found: gs.Neighbours, vectors: Path | None, least: bool) -> None:
    click.echo(harmless(found.conclusion))
    of = vectors if found.sample_id is None else harmless(found.sample_id)
    click.echo(f"{'Least aligned with' if least else 'Nearest to'} {of}, by {found.descriptor} of {found.signal}:")
    click.echo(f"  {'cosine':>7}  {'value':>7}  sample")
    if found.asked is not None:
        _print_sample("", found.asked)
    for each in found.neighbours:
        _print_sample(f"{each.cosine:.4f}", each)
    if found.missing_text:
        click.echo(f"  (texts not shown: {harmless(found.missing_text)})")


def _print_sample(cosine: str, shown: ShownSample) -> None:
    value = "" if shown.value is None else f"{shown.value:.4f}"
    click.echo(f"  {cosine:>7}  {value:>7}  {harmless(shown.sample_id)}  row {shown.row}")
    if shown.prompt is not None:
        click.echo(f"  {'':>16}  {harmless(one_line(shown.prompt))} -> {harmless(one_line(shown.answer))}")
