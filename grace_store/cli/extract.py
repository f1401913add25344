"""grace-store extract"""

from typing import Any

import click

import grace_store as gs
from grace_store.base.settings import GradientSpec
from grace_store.base.text import counted, size
from grace_store.cli import shared
from grace_store.cli.console import print_json, stoppable
from grace_store.cli.options import COUNT, PLACE, command, config_option, flag, option, pick
from grace_store.cli.progress import ProgressDisplay
from grace_store.run.engines.engine import EngineOptions
from grace_store.run.extract import extract_signals


class ShardType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A shard i/n: the units with a number that leaves remainder i when divided by n."""

    name = "i/n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        i, slash, n = str(value).partition("/")
        if not (slash and i.isdigit() and n.isdigit() and 0 <= int(i) < int(n)):
            self.fail(f"{value!r} is not i/n with 0 <= i < n, such as 3/16", param, ctx)
        return int(i), int(n)


@command(
    "grace-store extract traces.zarr --data traces.jsonl --model ./SmolLM2-135M-Instruct",
    "grace-store extract traces.zarr                       # go on after any interruption",
    "grace-store extract traces.zarr --shard 3/16 ...      # one of 16 independent jobs",
    "grace-store extract traces.zarr --model M --engine ray --address auto    # the GPUs of a Ray cluster",
    "grace-store extract traces.zarr --model M --adapter warmup/checkpoint-100 --signal warmup-100",
    "grace-store extract traces.zarr --model M --adapter warmup    # a signal for each checkpoint in it",
    "grace-store extract traces.zarr --model M --adapter warmup --kind gradient --preconditioner adam",
    "grace-store extract traces.zarr --model M --adapter warmup --kind gradient --per segment",
)
@shared.store
@shared.model
@option("--data", PLACE, "Dataset file or folder. [default: the planned files]", many=True)
@shared.images
@option(
    "--adapter",
    PLACE,
    "LoRA adapter to merge into the model, or a folder of adapters. Each adapter makes one signal. [default: none]",
    many=True,
)
@option(
    "--signal",
    "NAME",
    "Name of each adapter's signal. [default: the name of the adapter's folder; base without an adapter]",
    many=True,
)
@shared.data_spec
@shared.extract_spec
@shared.gradient_spec
@shared.speed
@shared.engine
@option("--workers", COUNT, "Number of worker processes. [default: one per GPU, here or in the Ray cluster]")
@option("--wait-minutes", click.FloatRange(0), "Minutes that --engine ray waits for a node. [default: no limit]")
@option(
    "--shard",
    ShardType(),
    "Extract only every n-th unit, starting with unit i. [default: the share set by torchrun or srun, else all units]",
)
@flag("--break-lock", "Remove the lock of a run that no longer exists.")
@config_option
def extract(
    store: str, adapter: tuple[str, ...], signal: tuple[str, ...], break_lock: bool, *, as_json: bool, **wishes: Any
) -> None:
    """Write every sample's signals into a store; resumable.

    The store gets, for each step and for the answer, a vector, a loss and a number of tokens, and the inner products of
    a sample's vectors (the Gram). After an interruption, the same command does only the missing units. With STORE
    alone, the command goes on with every unfinished signal. A new STORE is planned first.

    With --kind gradient, vectors are randomly projected gradients over the parameters of --adapter: one for each sample
    for `score --method less`, icons or cadc, or one for each step with --per segment. For LESS, extract the pool with
    --preconditioner adam. Plan and extract the targets into another store, with --preconditioner none.

    With --engine ray, this process gives units to workers on the nodes of a Ray cluster, one worker per GPU (with
    --device cpu, one per CPU). Nodes can join and leave. Every node must see store, data and model at the same paths.
    """
    if given := pick(wishes, GradientSpec):
        wishes["gradient"] = GradientSpec(**given)
    job = shared.extract_job(store, wishes, samples_per_unit=wishes["unit_samples"], break_lock=break_lock)
    engine, address, workers, minutes = (wishes[name] for name in ("engine", "address", "workers", "wait_minutes"))
    if minutes is not None and engine != "ray":
        raise click.UsageError("--wait-minutes needs --engine ray.")
    elsewhere = None
    if not shared.is_local(engine, address):
        wait_seconds = None if minutes is None else 60 * minutes
        elsewhere = EngineOptions(engine, address=address, workers=workers, wait_seconds=wait_seconds)
    with ProgressDisplay() as display, stoppable() as stop:
        who = {"workers": workers, "shard": wishes["shard"]}
        views = extract_signals(job, signal, adapter, display, stop, **who, elsewhere=elsewhere)
    # The view of the last signal has the newest state of the store.
    opened, names = views[-1].store, [view.name for view in views]
    if as_json:
        print_json(gs.status(opened, names[0] if len(names) == 1 else None).model_dump(mode="json"))
        return
    for name in names:
        counts = gs.status(opened, name)
        done = f"{counted(counts.num_done, 'sample')} done in signal {name}"
        aside, written = counted(counts.num_set_aside, "record"), size(counts.signals[name].num_bytes)
        click.echo(f"{store}: {done}, {aside} set aside, {counts.num_planned} to do, {written}.")
        for reason, count in counts.set_aside.items():
            click.echo(f"  {count} set aside: {reason}")
