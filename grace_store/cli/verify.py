"""grace-store verify"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import print_result, stoppable
from grace_store.cli.options import COUNT, PLACE, TEXT, command, flag, given, option, pick
from grace_store.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from grace_store.run.engines.engine import ExtractJob
    from grace_store.store.check import Problem

ONLY_CHECKS = ("--signal", "--units")
"""Options that say what is checked; a repair is of all that a store holds."""


@command(
    "grace-store verify traces.zarr --deep",
    "grace-store verify traces.zarr --deep --model ./model --units 3      # three units extracted again and compared",
    "grace-store verify traces.zarr --repair                       # redo exactly what is broken",
)
@shared.store
@flag("--deep", "Read every byte and check it against checksums, digests and counts.")
@flag("--repair", "Redo exactly what a deep check finds broken.", "is_repair")
@option("--signal", TEXT, "Signal to check. [default: all]")
@option(
    "--model",
    PLACE,
    "Model with which a few random units are extracted again and compared. With --repair, the model, if it has moved. "
    "[default: none are; with --repair, where it was]",
)
@option("--units", COUNT, "Units of each signal to extract again, with --model.", default=2)
@shared.moved_data
@shared.images
@shared.speed
def verify(
    store: str, deep: bool, is_repair: bool, signal: str | None, units: int, *, as_json: bool, **settings: Any
) -> None:
    """Check that a store is what was written; exit 1 if it is not.

    Quick by default: commits, sizes and counts. Units that an unfinished signal still lacks are counted apart: they are
    no problem, and if nothing else is found the exit code is 0.

    With --repair, broken units are extracted again, damaged metadata is written again, and files that killed runs left
    are deleted.
    """
    from grace_store.base.settings import RunOptions
    from grace_store.run.engines.engine import ExtractJob
    from grace_store.run.verify import verify_store
    from grace_store.store.opened import Store

    places = {name: settings[name] for name in ("model", "data", "images")}
    job = ExtractJob(store, options=RunOptions(**pick(settings, RunOptions)), **places)
    if is_repair:
        _repair(job, as_json=as_json)
        return
    again = None if job.model is None else job
    with ProgressDisplay() as display:
        opened = Store.open(store)
        problems, to_do = verify_store(opened, deep=deep, signal=signal, again=again, num_units=units, listener=display)
    listed = {"problems": [each.to_json() for each in problems], "units_to_do": [each.to_json() for each in to_do]}
    print_result({"store": store, "deep": deep, **listed}, _print, store, problems, to_do, deep, as_json=as_json)
    if problems:
        raise click.exceptions.Exit(1)


def _repair(job: ExtractJob, *, as_json: bool) -> None:
    from grace_store.run.verify import repair

    if ignored := [name for name in given() if name in ONLY_CHECKS]:
        raise click.UsageError(f"--repair mends all of a store and has no use for {', '.join(ignored)}.")
    with ProgressDisplay() as display, stoppable() as stop:
        mended = repair(job, display, stop)
    result = {"store": job.store, "mended": [problem.to_json() for problem in mended]}
    told = f"{counted(len(mended), 'problem')} mended." if mended else "nothing to mend."
    print_result(result, click.echo, f"{job.store}: {told}", as_json=as_json)


def _print(store: str, problems: list[Problem], to_do: list[Problem], deep: bool) -> None:
    from grace_store.run.verify import describe_problems

    for line in describe_problems([*problems, *to_do]):
        click.echo(line)
    depth = "every byte read" if deep else "commits, sizes and counts; --deep reads every byte"
    click.echo(f"{store}: {counted(len(problems), 'problem')} ({depth}).")
    if problems:
        click.echo("`grace-store verify --repair` redoes what is broken, `grace-store extract` what is missing.")
    elif to_do:
        click.echo(f"{counted(len(to_do), 'unit')} still to do: `grace-store extract` goes on.")
