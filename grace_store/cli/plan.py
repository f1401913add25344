"""grace-store plan"""

from __future__ import annotations

from typing import Any

import click

import grace_store as gs
from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import log, print_result
from grace_store.cli.options import COUNT, PLACE, command, config_option, option, pick
from grace_store.cli.progress import ProgressDisplay
from grace_store.data.formats import FORMATS

FORMAT_LIST = "\n".join(["\b\nFormats:", *(f"  {name}: {known.description}" for name, known in FORMATS.items())])


@command(
    "grace-store plan traces.jsonl --store traces.zarr",
    "grace-store plan traces/ --store traces.zarr --splitter lines --answer 'marker:^Final answer:'",
    about=FORMAT_LIST + "\n\n",
)
@click.argument("data", nargs=-1, required=True, type=click.Path())
@option("--store", PLACE, "Path or bucket URL of the new store.", required=True)
@option("--images", PLACE, "Folder in which images are looked for, to report missing ones. [default: they are not]")
@option("--workers", COUNT, "Processes that read records. [default: by the number of cores and the size of DATA]")
@shared.data_spec
@config_option
def plan(data: tuple[str, ...], store: str, *, as_json: bool, **wishes: Any) -> None:
    """Read a dataset and freeze what is to be done in a new store.

    DATA are files or folders. This command is optional: extract plans by itself. Records that cannot be used are set
    aside with a reason; `status` counts them.
    """
    with ProgressDisplay() as display:
        request = gs.DataRequest(**pick(wishes, gs.DataRequest))
        sizes = {"workers": wishes["workers"], "samples_per_unit": wishes["unit_samples"]}
        planned = gs.plan(data, store, request, images=wishes["images"], **sizes, listener=display)
    print_result(gs.status(planned).model_dump(mode="json"), _print, store, planned, as_json=as_json)


def _print(store: str, planned: gs.Store) -> None:
    frozen = planned.plan
    log.print(f"Read as {frozen.spec.format}.", markup=False)
    units = counted(frozen.num_units, "unit")
    click.echo(f"{store}: {frozen.num_samples} of {counted(frozen.num_records, 'record')} planned in {units}.")
    for reason, count in frozen.set_aside.items():
        click.echo(f"  {count} set aside: {reason}")
