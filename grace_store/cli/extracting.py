"""grace-store extract"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from grace_store.base.text import counted
from grace_store.cli.console import ProgressDisplay, print_json, size, stoppable
from grace_store.cli.options import (
    as_json,
    config_option,
    data_options,
    engine_options,
    gradient_options,
    images_option,
    is_local,
    pick,
    spec_options,
    speed_options,
)

EPILOG = """\b
Examples:
  grace-store extract --store traces.zarr --data traces.jsonl --model ./SmolLM2-135M-Instruct
  grace-store extract --store traces.zarr                       # go on after any interruption
  grace-store extract --store traces.zarr --shard 3/16 ...      # one of 16 independent jobs
  grace-store extract --store traces.zarr --model M --engine ray --address auto    # the GPUs of a Ray cluster
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
@engine_options
@click.option("--workers", type=click.IntRange(1), help="Worker processes. [default: one per GPU, visible or of Ray]")
@click.option(
    "--wait-minutes",
    type=click.FloatRange(min=0),
    metavar="M",
    help="With --engine ray: how long to wait for a node if there is none. [default: until stopped]",
)
@click.option("--shard", type=ShardType(), help="Do only every n-th unit. [default: from torchrun or Slurm]")
@click.option("--break-lock", is_flag=True, help="Take the store from a run that you know is dead.")
@config_option
@as_json
def extract(
    store: str, model: str | None, data: tuple[str, ...], adapter: tuple[str, ...], signal: tuple[str, ...],
    unit_samples: int | None, workers: int | None, shard: tuple[int, int] | None, break_lock: bool, *,
    engine: str, address: str | None, wait_minutes: float | None, as_json: bool, **wishes: Any,
) -> None:  # fmt: skip
    """Write every sample's step and answer vectors, Grams and statistics into a store.

    Run the same command again after any interruption: it does only what is missing. With --store alone, it goes on
    with every signal that is not finished.

    With --kind gradient, vectors are gradients over the --adapter's parameters, randomly projected: one a sample for
    `score --method less`, icons or cadc, or one a step with --per segment. LESS takes --preconditioner adam for the
    traces to choose from and none for its targets, which are planned and extracted into a store of their own.

    With --engine ray this process hands out units to workers on the nodes of a Ray cluster, one for each GPU (with
    --device cpu, each CPU). Nodes may come and go. Every node must see store, data and model under the same paths.
    """
    from grace_store.base.settings import DataRequest, ExtractRequest, GradientRequest, RunOptions, said
    from grace_store.run.engines.choice import EngineChoice, choose_engine
    from grace_store.run.engines.engine import EngineOptions
    from grace_store.run.extract import ExtractJob, is_finished
    from grace_store.run.extract import extract as run
    from grace_store.run.open_signal import choose_signals
    from grace_store.run.status import status

    if wait_minutes is not None and engine != "ray":
        raise click.UsageError("--wait-minutes is for --engine ray.")
    elsewhere = None
    if not is_local(engine, address):
        wait_seconds = None if wait_minutes is None else 60 * wait_minutes
        elsewhere = EngineOptions(engine, address=address, workers=workers, wait_seconds=wait_seconds)
    options = RunOptions(**pick(wishes, RunOptions.model_fields))
    gradient = GradientRequest(**pick(wishes, GradientRequest.model_fields))
    request = ExtractRequest(**pick(wishes, ExtractRequest.model_fields), gradient=gradient if said(gradient) else None)
    targets = choose_signals(store, signal, adapter, model, request)
    job = ExtractJob(
        store=store,
        model=model,
        data=data,
        images=wishes["images"],
        data_request=DataRequest(**pick(wishes, DataRequest.model_fields)),
        request=request,
        samples_per_unit=unit_samples,
        break_lock=break_lock,
    )
    if all(is_finished(replace(job, signal=name, adapter=path)) for name, path in targets):
        chosen = EngineChoice(options, shard or (0, 1))
    else:
        chosen = choose_engine(options, workers, shard, elsewhere=elsewhere)
    job = replace(job, options=chosen.options, shard=chosen.shard, engine=chosen.engine)
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
