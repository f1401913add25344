"""grace-store plan"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from grace_store.base.text import counted
from grace_store.cli.console import ProgressDisplay, log, print_json
from grace_store.cli.options import as_json, config_option, data_options, pick


def _formats_epilog() -> str:
    from grace_store.data.formats import FORMATS

    lines = [f"  {name}: {known.description}" for name, known in FORMATS.items()]
    return "\b\nFormats:\n" + "\n".join(lines) + "\n\n\b\nExample:\n  grace-store plan traces.jsonl --store traces.zarr"


@click.command(epilog=_formats_epilog())
@click.argument("data", nargs=-1, required=True, type=click.Path())
@click.option("--store", required=True, type=click.Path(), help="Where the store is to be.")
@click.option("--images", type=click.Path(), help="Look whether the images that records name are in this folder.")
@click.option(
    "--workers", type=click.IntRange(1), help="Processes that understand records. [default: by cores and size of DATA]"
)
@partial(data_options, formats="listed below")
@config_option
@as_json
def plan(
    data: tuple[str, ...], store: str, unit_samples: int | None, workers: int | None, *, as_json: bool, **wishes: Any
) -> None:
    """Read DATA (files or folders) and freeze samples and units in a new store.

    Optional: extract plans by itself. What cannot be used is set aside with a reason; `status` counts it.
    """
    from grace_store.base.settings import DataRequest
    from grace_store.run.plan import plan as make_plan
    from grace_store.run.status import status

    with ProgressDisplay() as display:
        planned = make_plan(
            data,
            store,
            DataRequest(**pick(wishes, DataRequest.model_fields)),
            samples_per_unit=unit_samples,
            images=wishes["images"],
            workers=workers,
            listener=display,
        )
    frozen = planned.plan
    if as_json:
        print_json(status(planned).model_dump(mode="json"))
        return
    log.print(f"Read as {frozen.spec.format}.", markup=False)
    units = counted(frozen.num_units, "unit")
    click.echo(f"{store}: {frozen.num_samples} of {counted(frozen.num_records, 'record')} planned in {units}.")
    for reason, count in frozen.set_aside.items():
        click.echo(f"  {count} set aside: {reason}")
