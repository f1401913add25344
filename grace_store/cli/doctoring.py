"""grace-store doctor"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from grace_store.cli.console import ProgressDisplay, harmless, out, print_json
from grace_store.cli.options import (
    as_json,
    config_option,
    data_options,
    images_option,
    pick,
    spec_options,
    speed_options,
)

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(epilog="\b\nExample:\n  grace-store doctor --model ./model --data traces.jsonl --store traces.zarr")
@click.option("--model", required=True, type=click.Path(), help="Model folder (safetensors) or .gguf file.")
@click.option(
    "--data", required=True, multiple=True, type=click.Path(), help="Dataset file or folder; may be repeated."
)
@click.option("--adapter", type=click.Path(), help="LoRA adapter to merge.")
@click.option("--store", type=click.Path(), help="Where the store is, or will be.")
@images_option
@data_options
@spec_options
@speed_options
@click.option("--workers", type=click.IntRange(1), help="Worker processes that the run will have.")
@config_option
@as_json
def doctor(
    model: str, data: tuple[str, ...], adapter: str | None, store: str | None, workers: int | None, *,
    as_json: bool, **wishes: Any,
) -> None:  # fmt: skip
    """Check model, data and machine before a long run, on a few of the data's own samples; exit 1 unless it may go.

    Vectors are held against autograd, alone against batched, as stored against exact; images are opened, the store's
    place is tried, time and room are estimated. Takes the options of extract. Writes no plan and no store.
    """
    from grace_store.base.settings import DataRequest, ExtractRequest, RunOptions
    from grace_store.run.doctor import doctor as examine
    from grace_store.run.doctor.findings import DoctorJob, finding_lines
    from grace_store.run.engines.choice import choose_engine

    chosen = choose_engine(RunOptions(**pick(wishes, RunOptions.model_fields)), workers, None)
    job = DoctorJob(
        model=model,
        data=data,
        adapter=adapter,
        store=store,
        images=wishes["images"],
        data_request=DataRequest(**pick(wishes, DataRequest.model_fields)),
        request=ExtractRequest(**pick(wishes, ExtractRequest.model_fields)),
        options=chosen.options,
        num_workers=max(len(chosen.engine.devices), chosen.shard[1], 1),
    )
    with ProgressDisplay(quiet=as_json) as display:
        found = examine(job, display)
    if as_json:
        print_json({"go": found.is_go, "findings": [asdict(finding) for finding in found.findings]})
    else:
        for line in finding_lines(found):
            out.print(harmless(line), markup=False, style=STYLES.get(line.split(" ", 1)[0]), soft_wrap=True)
        click.echo(found.conclusion)
    if not found.is_go:
        raise click.exceptions.Exit(1)
