"""grace-store doctor"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

import grace_store as gs
from grace_store.cli import shared
from grace_store.cli.console import console, escape_controls, print_json
from grace_store.cli.options import COUNT, PLACE, command, config_option, option, pick
from grace_store.cli.progress import ProgressDisplay

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@command(
    "grace-store doctor traces.zarr --model ./model --data traces.jsonl",
    "grace-store doctor traces.zarr --model ./model --data traces.jsonl --dtype bfloat16 --attention flash_attention_2",
)
@shared.optional_store
@option("--model", PLACE, "Model: a folder with safetensors, or a .gguf file.", required=True)
@option("--data", PLACE, "Dataset file or folder.", many=True, required=True)
@option("--adapter", PLACE, "LoRA adapter to merge into the model. [default: the model as it is]")
@shared.images
@shared.data_spec
@shared.extract_spec
@shared.speed
@option("--workers", COUNT, "Worker processes that the run will have. [default: one a GPU]")
@config_option
def doctor(*, as_json: bool, **wishes: Any) -> None:
    """Check model, data and machine before a long run.

    STORE is where the store is or will be; without it, its place is not looked at.

    Runs on a few of the data's own samples and ends with exit code 1 unless everything needed works. Vectors are
    compared with autograd, batched with single ones, stored with exact ones; images are opened and compared with
    what trainers would make of them, the file system of the store is tried, a vector of every storage is written and
    read again, time and disk space are estimated. Takes the options of extract. Leaves no plan and no store.
    """
    from grace_store.run.doctor.data_checks import conclusion, finding_lines, is_go
    from grace_store.run.engines.engine import choose_engine

    options, shard, engine = choose_engine(gs.RunOptions(**pick(wishes, gs.RunOptions)), wishes["workers"], None)
    job = gs.ExtractJob(
        store=wishes["store"] or "",
        **{name: wishes[name] for name in ("model", "data", "adapter", "images")},
        data_request=gs.DataSpec(**pick(wishes, gs.DataSpec)),
        request=gs.ExtractSpec(**pick(wishes, gs.ExtractSpec)),
        options=options,
        shard=shard,
        engine=engine,
    )
    with ProgressDisplay(quiet=as_json) as display:
        found = gs.doctor(job, display)
    if as_json:
        print_json({"go": is_go(found), "findings": [asdict(finding) for finding in found]})
    else:
        for line in finding_lines(found):
            console.print(escape_controls(line), markup=False, style=STYLES.get(line.split(" ", 1)[0]), soft_wrap=True)
        click.echo(conclusion(found))
    if not is_go(found):
        raise click.exceptions.Exit(1)
