"""grace-store extract"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from grace_store.base.text import counted, size
from grace_store.cli.config_files import config_option
from grace_store.cli.console import print_json, stoppable
from grace_store.cli.extract_options import data_options, gradient_options, model_option, spec_options, speed_options
from grace_store.cli.options import as_json, engine_options, images_option, is_local, pick, stacked
from grace_store.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from grace_store.run.extract_signals import EngineRequest
    from grace_store.store.opened import SignalView

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


worker_options = stacked(
    engine_options,
    click.option(
        "--workers",
        type=click.IntRange(1),
        help="Number of worker processes. [default: one for each GPU that is visible, or that the Ray cluster has]",
    ),
    click.option(
        "--wait-minutes",
        type=click.FloatRange(min=0),
        metavar="M",
        help="With --engine ray, minutes to wait for a node when there is none. [default: until stopped]",
    ),
    click.option(
        "--shard",
        type=ShardType(),
        help="Do only every n-th unit, starting with unit i. [default: from torchrun or srun, else all]",
    ),
    click.option("--break-lock", is_flag=True, help="Take the store from a run that you know to be dead."),
)


@click.command(epilog=EPILOG)
@click.option(
    "--store", required=True, type=click.Path(), help="Path or bucket URL of the store; planned first if it is new."
)
@model_option
@click.option(
    "--data",
    multiple=True,
    type=click.Path(),
    help="Dataset file or folder; may be repeated. [default: the files that were planned]",
)
@images_option
@click.option(
    "--adapter",
    multiple=True,
    type=click.Path(),
    help="LoRA adapter to merge into the model, or a training's folder of checkpoints, each one a signal; may be "
    "repeated. [default: the model as it is]",
)
@click.option(
    "--signal",
    multiple=True,
    metavar="NAME",
    help="Name of the signal to write; may be repeated, one for each adapter. [default: the adapter's folder, or base]",
)
@data_options
@spec_options
@gradient_options
@speed_options
@worker_options
@config_option
@as_json
def extract(
    store: str, adapter: tuple[str, ...], signal: tuple[str, ...], break_lock: bool, *, as_json: bool, **wishes: Any
) -> None:
    """Write every sample's signals into a store; resumable.

    For each step and the answer: a vector, their inner products (the Gram), losses and token counts. After an
    interruption the same command does only what is missing. With --store alone, it goes on with every signal that is
    not finished.

    With --kind gradient, vectors are gradients over the parameters of --adapter, randomly projected: one for each
    sample for `score --method less`, icons or cadc, or one for each step with --per segment. LESS takes
    --preconditioner adam for the traces to choose from and none for its targets, which are planned and extracted
    into a store of their own.

    With --engine ray this process hands out units to workers on the nodes of a Ray cluster, one for each GPU (with
    --device cpu, each CPU). Nodes may come and go. Every node must see store, data and model under the same paths.
    """
    from grace_store.base.settings import DataRequest, ExtractRequest, GradientRequest, RunOptions, wishes_in
    from grace_store.run.extract import ExtractJob
    from grace_store.run.extract_signals import extract_signals

    gradient = GradientRequest(**pick(wishes, GradientRequest))
    job = ExtractJob(
        store=store,
        model=wishes["model"],
        data=wishes["data"],
        images=wishes["images"],
        data_request=DataRequest(**pick(wishes, DataRequest)),
        request=ExtractRequest(**pick(wishes, ExtractRequest), gradient=gradient if wishes_in(gradient) else None),
        options=RunOptions(**pick(wishes, RunOptions)),
        samples_per_unit=wishes["unit_samples"],
        break_lock=break_lock,
    )
    with ProgressDisplay() as display, stoppable() as stop:
        views = extract_signals(job, signal, adapter, _engine(**wishes), display, stop)
    _print(store, views, as_json=as_json)


def _engine(
    engine: str,
    address: str | None,
    workers: int | None,
    wait_minutes: float | None,
    shard: tuple[int, int] | None,
    **_: Any,
) -> EngineRequest:
    from grace_store.run.engines.engine import EngineOptions
    from grace_store.run.extract_signals import EngineRequest

    if wait_minutes is not None and engine != "ray":
        raise click.UsageError("--wait-minutes is for --engine ray.")
    wait_seconds = None if wait_minutes is None else 60 * wait_minutes
    if is_local(engine, address):
        return EngineRequest(workers, shard)
    elsewhere = EngineOptions(engine, address=address, workers=workers, wait_seconds=wait_seconds)
    return EngineRequest(workers, shard, elsewhere)


def _print(store: str, views: list[SignalView], *, as_json: bool) -> None:
    from grace_store.run.status import status

    opened = views[-1].store  # as it is after the last signal
    if as_json:
        print_json(status(opened, views[0].name if len(views) == 1 else None).model_dump(mode="json"))
        return
    for view in views:
        counts = status(opened, view.name)
        click.echo(
            f"{store}: {counted(counts.num_done, 'sample')} done in signal {view.name}, "
            f"{counted(counts.num_set_aside, 'record')} set aside, "
            f"{counts.num_planned} to do, {size(counts.signals[view.name].num_bytes)}."
        )
        for reason, count in counts.set_aside.items():
            click.echo(f"  {count} set aside: {reason}")


COMMAND = extract
