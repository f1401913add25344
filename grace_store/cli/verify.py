"""grace-store verify"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import print_result
from grace_store.cli.options import COUNT, PLACE, TEXT, command, flag, option, pick
from grace_store.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from grace_store.run.verify import Verified


@command(
    "grace-store verify traces.zarr --deep",
    "grace-store verify traces.zarr --deep --model ./model --units 3      # three units extracted again and compared",
)
@shared.store
@flag("--deep", "Read every byte and check it against checksums, digests and counts.")
@option("--signal", TEXT, "Signal to check. [default: all]")
@option("--model", PLACE, "Model with which a few random units are extracted again and compared. [default: none are]")
@option("--units", COUNT, "Units of each signal to extract again, with --model.", default=2)
@shared.moved_data
@shared.images
@shared.speed
def verify(
    store: str, deep: bool, signal: str | None, model: str | None, units: int, *, as_json: bool, **settings: Any
) -> None:
    """Check that a store is what was written; exit 1 if it is not.

    Quick by default: commits, sizes and counts. Units that an unfinished signal still lacks are counted apart: they are
    no problem, and if nothing else is found the exit code is 0.
    """
    from grace_store.base.settings import RunOptions
    from grace_store.run.verify import ExtractAgainJob, verify_store
    from grace_store.store.opened import Store

    places = {"data": settings["data"], "images": settings["images"]}
    options = RunOptions(**pick(settings, RunOptions))
    again = None if model is None else ExtractAgainJob(model, units, options=options, **places)
    with ProgressDisplay() as display:
        found = verify_store(Store.open(store), deep=deep, signal=signal, again=again, listener=display)
    listed = {key: [each.to_json() for each in getattr(found, key)] for key in ("problems", "units_to_do")}
    print_result({"store": store, "deep": deep, **listed}, _print, store, found, deep, as_json=as_json)
    if found.problems:
        raise click.exceptions.Exit(1)


def _print(store: str, found: Verified, deep: bool) -> None:
    from grace_store.run.verify import describe_problems

    for line in describe_problems([*found.problems, *found.units_to_do]):
        click.echo(line)
    depth = "every byte read" if deep else "commits, sizes and counts; --deep reads every byte"
    click.echo(f"{store}: {counted(len(found.problems), 'problem')} ({depth}).")
    if found.problems:
        click.echo("`grace-store repair` redoes what is broken, `grace-store extract` what is missing.")
    elif found.units_to_do:
        click.echo(f"{counted(len(found.units_to_do), 'unit')} still to do: `grace-store extract` goes on.")
