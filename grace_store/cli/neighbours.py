"""grace-store neighbours"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.cli import shared
from grace_store.cli.console import harmless, print_result
from grace_store.cli.options import COUNT, FILE, NATURAL, command, flag, option, said
from grace_store.cli.progress import ProgressDisplay


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
@shared.scores("Table of scores whose step scores weight the steps, with --descriptor weighted. [default: none]")
@shared.where(" (with --scores also num_tokens, value, flags)")
@shared.moved_data
@shared.search
@option("--seed", NATURAL, "Seed of the projection, with --descriptor projected. [default: 0]")
def neighbours(
    store: str, sample: str | None, vectors: Path | None, scores: Path | None, *, as_json: bool, **settings: Any
) -> None:
    """List the samples nearest to one, or least aligned with it.

    SAMPLE is an id, or #ROW for a row of the dataset. Near means that the vectors point the same way: neighbours are
    listed by cosine.
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
    print_result(asdict(found), _print, found, vectors, settings["least"], as_json=as_json)


def _print(found: gs.Neighbours, vectors: Path | None, least: bool) -> None:
    of = vectors if found.sample_id is None else harmless(found.sample_id)
    click.echo(f"{'Least aligned with' if least else 'Nearest to'} {of}, by {found.descriptor} of {found.signal}:")
    for each in found.neighbours:
        click.echo(f"  {each.cosine:>7.4f}  {harmless(each.sample_id)}  row {each.row}")
