"""grace-store doctor"""

from dataclasses import asdict, replace
from typing import Any

import click

import grace_store as gs
from grace_store.cli import shared
from grace_store.cli.console import console, escape_controls, print_json
from grace_store.cli.options import COUNT, PLACE, command, config_option, option
from grace_store.cli.progress import ProgressDisplay
from grace_store.run.doctor.data_checks import conclusion, finding_lines, is_go
from grace_store.run.engines.engine import choose_engine


@command(
    "grace-store doctor traces.zarr --model ./model --data traces.jsonl",
    "grace-store doctor traces.zarr --model ./model --data traces.jsonl --dtype bfloat16 --attention flash_attention_2",
)
@shared.optional_store
@option("--model", PLACE, "Model: a folder with safetensors, or a .gguf file.", required=True)
@option("--data", PLACE, "Dataset file or folder.", many=True, required=True)
@option("--adapter", PLACE, "LoRA adapter to merge into the model. [default: none]")
@shared.images
@shared.data_spec
@shared.extract_spec
@shared.speed
@option("--workers", COUNT, "Number of worker processes of the planned run. [default: one per GPU]")
@config_option
def doctor(*, as_json: bool, **wishes: Any) -> None:
    """Check model, data and machine before a long run.

    STORE is the place of the store, which need not exist yet. Without STORE, no place is checked.

    The checks run on a few samples of the data. The exit code is 1 if a check fails. The checks compare vectors with
    autograd, batched vectors with single ones, and stored vectors with exact ones. They open images and compare them
    with the images that trainers prepare. They write to the file system of the store, and read back a vector of every
    storage. Then they estimate time and disk space. The options are those of extract. No plan and no store is left.
    """
    job = shared.extract_job(wishes["store"] or "", wishes, adapter=wishes["adapter"])
    options, shard, engine = choose_engine(job.options, wishes["workers"], None)
    job = replace(job, options=options, shard=shard, engine=engine)
    with ProgressDisplay(quiet=as_json) as display:
        found = gs.doctor(job, display)
    if as_json:
        print_json({"go": is_go(found), "findings": [asdict(finding) for finding in found]})
    else:
        styles = {"ok": "green", "warn": "yellow", "fail": "red"}
        for line in finding_lines(found):
            console.print(escape_controls(line), markup=False, style=styles.get(line.split(" ", 1)[0]), soft_wrap=True)
        click.echo(conclusion(found))
    if not is_go(found):
        raise click.exceptions.Exit(1)
