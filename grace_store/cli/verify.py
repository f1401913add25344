"""grace-store verify"""

from typing import Any

import click

from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import print_result, stoppable
from grace_store.cli.options import COUNT, PLACE, TEXT, command, flag, given, option
from grace_store.cli.progress import ProgressDisplay
from grace_store.run.verify import describe_problems, repair, verify_store
from grace_store.store.check import Problem
from grace_store.store.opened import Store


@command(
    "grace-store verify traces.zarr --deep",
    "grace-store verify traces.zarr --deep --model ./model --units 3      # extract three units again and compare",
    "grace-store verify traces.zarr --repair                       # redo only broken units",
)
@shared.store
@flag("--deep", "Read every byte, and check checksums, digests and counts.")
@flag("--repair", "Check like --deep, and redo only the damaged parts.", "is_repair")
@option("--signal", TEXT, "Signal to check. [default: all]")
@option(
    "--model",
    PLACE,
    "Model that extracts a few random units again, to compare them with the stored units. With --repair, the new "
    "place of the model if the model has moved. [default: no unit is extracted; with --repair, the earlier place]",
)
@option("--units", COUNT, "With --model, number of units of each signal to extract again.", default=2)
@shared.moved_data
@shared.images
@shared.speed
def verify(
    store: str, deep: bool, is_repair: bool, signal: str | None, units: int, *, as_json: bool, **settings: Any
) -> None:
    """Check a store for damage, and repair it; exit 1 if damaged.

    By default, only commits, sizes and counts are checked, which is quick. Units that an unfinished signal still
    lacks are counted separately. They are no problem and do not change the exit code.

    With --repair, broken units are extracted again, damaged metadata is written again, and files that killed runs left
    are deleted. A file that a link leads to is kept and reported, and the exit code is 1.
    """
    job = shared.extract_job(store, settings)
    if is_repair:
        if ignored := [name for name in given() if name in ("--signal", "--units")]:
            raise click.UsageError(f"--repair checks the whole store and cannot be used with {', '.join(ignored)}.")
        with ProgressDisplay() as display, stoppable() as stop:
            found = repair(job, display, stop)
        left = [problem for problem in found if problem.remedy == "by hand"]
        mended = [problem for problem in found if problem.remedy != "by hand"]
        result = {"mended": [each.to_json() for each in mended], "not_repaired": [each.to_json() for each in left]}
        both = (mended, "repaired"), (left, "not repaired")
        counts = ", ".join(f"{counted(len(some), 'problem')} {how}" for some, how in both if some)
        lines = [*describe_problems(left), f"{store}: {counts or 'nothing to repair'}."]
        print_result({"store": store, **result}, click.echo, "\n".join(lines), as_json=as_json)
        raise click.exceptions.Exit(1 if left else 0)
    again = None if job.model is None else job
    with ProgressDisplay() as display:
        opened = Store.open(store)
        problems, to_do = verify_store(opened, deep=deep, signal=signal, again=again, num_units=units, listener=display)
    listed = {"problems": [each.to_json() for each in problems], "units_to_do": [each.to_json() for each in to_do]}
    print_result({"store": store, "deep": deep, **listed}, _print, store, problems, to_do, deep, as_json=as_json)
    if problems:
        raise click.exceptions.Exit(1)


def _print(store: str, problems: list[Problem], to_do: list[Problem], deep: bool) -> None:
    for line in describe_problems([*problems, *to_do]):
        click.echo(line)
    depth = "every byte read" if deep else "commits, sizes and counts; --deep reads every byte"
    click.echo(f"{store}: {counted(len(problems), 'problem')} ({depth}).")
    if problems:
        click.echo("`grace-store verify --repair` redoes broken units, `grace-store extract` missing units.")
    elif to_do:
        click.echo(f"{counted(len(to_do), 'unit')} still to do: `grace-store extract` goes on.")
