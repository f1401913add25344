"""grace-store extract"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from grace_store.amounts import counted
from grace_store.cli.console import ProgressDisplay, print_json, size, stoppable
from grace_store.cli.options import (
    as_json,
    config_option,
    data_options,
    gradient_options,
    images_option,
    pick,
    spec_options,
    speed_options,
)

EPILOG = """\b
Examples:
  grace-store extract --store traces.zarr --data traces.jsonl --model ./SmolLM2-135M-Instruct
  grace-store extract --store traces.zarr                       # go on after any interruption
  grace-store extract --store traces.zarr --shard 3/16 ...      # one of 16 independent jobs
  grace-store extract --store traces.zarr --model M --adapter warmup/checkpoint-100 --signal warmup-100
  grace-store extract --store traces.zarr --model M --adapter warmup    # a signal for each checkpoint in it
  grace-store extract --store traces.zarr --model M --adapter warmup --kind gradient --preconditioner adam
  grace-store extract --store traces.zarr --model M --adapter warmup --kind gradient --per segment
"""


class ShardType(click.ParamType[tuple[int, int]]):
    """i/n: the units whose number leaves remainder i when divided by n."""

    name = "i/n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        i, slash, n = str(value).partition("/")
        if not (slash and i.isdigit() and n.isdigit() and 0 <= int(i) < int(n)):
            self.fail(f"{value!r} is not i/n with 0 <= i < n, such as 3/16", param, ctx)
        return int(i), int(n)


@click.command(epilog=EPILOG)
@click.option("--store", required=True, type=click.Path(), help="The store; planned now if --data is given.")
@click.option("--model", type=click.Path(), help="Model folder (safetensors) or .gguf file.")
@click.option("--data", multiple=True, type=click.Path(), help="Dataset file or folder; may be repeated.")
@images_option
@click.option(
    "--adapter", multiple=True, type=click.Path(), help="LoRA adapter, or a training's folder of checkpoints."
)
@click.option("--signal", multiple=True, help="Name of the signal to write. [default: the adapter's folder, or base]")
@data_options
@spec_options
@gradient_options
@speed_options
@click.option("--workers", type=click.IntRange(1), help="Worker processes. [default: one per visible GPU]")
@click.option("--shard", type=ShardType(), help="Do only every n-th unit. [default: from torchrun or Slurm]")
@click.option("--break-lock", is_flag=True, help="Take the store from a run that you know is dead.")
@config_option
@as_json
def extract(
    store: str, model: str | None, data: tuple[str, ...], adapter: tuple[str, ...], signal: tuple[str, ...],
    unit_samples: int | None, workers: int | None, shard: tuple[int, int] | None, break_lock: bool, *,
    as_json: bool, **wishes: Any,
) -> None:  # fmt: skip
    """Write every sample's step and answer vectors, Grams and statistics into a store.

    Run the same command again after any interruption: it does only what is missing. With --store alone, it goes on
    with every signal that is not finished.

    With --kind gradient, vectors are gradients over the --adapter's parameters, randomly projected: one a sample for
    `score --method less`, icons or cadc, or one a step with --per segment. LESS takes --preconditioner adam for the
    traces to choose from and none for its targets, which are planned and extracted into a store of their own.
    """
    from grace_store.config import DataRequest, ExtractRequest, GradientRequest, RunOptions, said
    from grace_store.job.engines import choose_engine
    from grace_store.job.extract import ExtractJob
    from grace_store.job.extract import extract as run
    from grace_store.job.signals import choose_signals
    from grace_store.job.status import status

    engine = choose_engine(RunOptions(**pick(wishes, RunOptions.model_fields)), workers, shard)
    gradient = GradientRequest(**pick(wishes, GradientRequest.model_fields))
    request = ExtractRequest(**pick(wishes, ExtractRequest.model_fields), gradient=gradient if said(gradient) else None)
    targets = choose_signals(store, signal, adapter, model, request)
    job = ExtractJob(
        location=store,
        model=model,
        data=data,
        images=wishes["images"],
        data_request=DataRequest(**pick(wishes, DataRequest.model_fields)),
        request=request,
        options=engine.options,
        samples_per_unit=unit_samples,
        shard=engine.shard,
        devices=engine.devices,
        break_lock=break_lock,
    )
    with ProgressDisplay() as display, stoppable() as stop:
        for name, path in targets:
            view = run(replace(job, signal=name, adapter=path), display, stop)
    if as_json:
        print_json(status(view.store, targets[0][0] if len(targets) == 1 else None).model_dump(mode="json"))
        return
    for name, _ in targets:
        counts = status(view.store, name)
        click.echo(
            f"{store}: {counted(counts.num_done, 'sample')} done in signal {name}, "
            f"{counted(counts.num_set_aside, 'record')} set aside, "
            f"{counts.num_planned} to do, {size(counts.signals[name].num_bytes)}."
        )
        for reason, count in counts.set_aside.items():
            click.echo(f"  {count} set aside: {reason}")
