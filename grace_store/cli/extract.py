"""grace-store extract"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import grace_store as gs
from grace_store.base.text import counted, size
from grace_store.cli import shared
from grace_store.cli.console import print_json, stoppable
from grace_store.cli.options import COUNT, PLACE, command, config_option, flag, option, pick, stacked
from grace_store.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from grace_store.run.engines.engine import EngineOptions


class ShardType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """i/n: the units whose number leaves remainder i when divided by n."""

    name = "i/n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        i, slash, n = str(value).partition("/")
        if not (slash and i.isdigit() and n.isdigit() and 0 <= int(i) < int(n)):
            self.fail(f"{value!r} is not i/n with 0 <= i < n, such as 3/16", param, ctx)
        return int(i), int(n)


worker_options = stacked(
    shared.engine,
    option("--workers", COUNT, "Number of worker processes. [default: one for each GPU here or in the Ray cluster]"),
    option("--wait-minutes", click.FloatRange(0), "Minutes that --engine ray waits for a node. [default: no limit]"),
    option("--shard", ShardType(), "Only every n-th unit, from unit i on. [default: from torchrun or srun, else all]"),
    flag("--break-lock", "Take the store from a run that you know to be dead."),
)


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
@option("--data", PLACE, "Dataset file or folder. [default: the files that were planned]", many=True)
@shared.images
@option("--adapter", PLACE, "LoRA adapter to merge, or a folder of them, each a signal. [default: none]", many=True)
@option("--signal", "NAME", "Name of each adapter's signal. [default: the adapter's folder, or base]", many=True)
@shared.data_spec
@shared.extract_spec
@shared.gradient_spec
@shared.speed
@worker_options
@config_option
def extract(
    store: str, adapter: tuple[str, ...], signal: tuple[str, ...], break_lock: bool, *, as_json: bool, **wishes: Any
) -> None:
    """Write every sample's signals into a store; resumable.

    For each step and the answer: a vector, their inner products (the Gram), losses and token counts. After an
    interruption the same command does only what is missing. With STORE alone, it goes on with every signal that is
    not finished. A STORE that is new is planned first.

    With --kind gradient, vectors are gradients over the parameters of --adapter, randomly projected: one for each
    sample for `score --method less`, icons or cadc, or one for each step with --per segment. LESS takes
    --preconditioner adam for the traces to choose from and none for its targets, which are planned and extracted
    into a store of their own.

    With --engine ray this process hands out units to workers on the nodes of a Ray cluster, one for each GPU (with
    --device cpu, each CPU). Nodes may come and go. Every node must see store, data and model under the same paths.
    """
    from grace_store.base.settings import GradientSpec
    from grace_store.run.extract import extract_signals

    if given := pick(wishes, GradientSpec):
        wishes["gradient"] = GradientSpec(**given)
    job = gs.ExtractJob(
        store=store,
        **{name: wishes[name] for name in ("model", "data", "images")},
        data_request=gs.DataSpec(**pick(wishes, gs.DataSpec)),
        request=gs.ExtractSpec(**pick(wishes, gs.ExtractSpec)),
        options=gs.RunOptions(**pick(wishes, gs.RunOptions)),
        samples_per_unit=wishes["unit_samples"],
        break_lock=break_lock,
    )
    with ProgressDisplay() as display, stoppable() as stop:
        who = {name: wishes[name] for name in ("workers", "shard")}
        views = extract_signals(job, signal, adapter, display, stop, **who, elsewhere=_elsewhere(wishes))
    # As it is after the last signal.
    _print(store, views[-1].store, [view.name for view in views], as_json=as_json)


def _elsewhere(wishes: dict[str, Any]) -> EngineOptions | None:
    """Return the engine beyond this machine that was asked for."""
    from grace_store.run.engines.engine import EngineOptions

    engine, address, workers, minutes = (wishes[name] for name in ("engine", "address", "workers", "wait_minutes"))
    if minutes is not None and engine != "ray":
        raise click.UsageError("--wait-minutes is for --engine ray.")
    if shared.is_local(engine, address):
        return None
    wait_seconds = None if minutes is None else 60 * minutes
    return EngineOptions(engine, address=address, workers=workers, wait_seconds=wait_seconds)


def _print(store: str, opened: gs.Store, signals: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json(gs.status(opened, signals[0] if len(signals) == 1 else None).model_dump(mode="json"))
        return
    for name in signals:
        counts = gs.status(opened, name)
        done = f"{counted(counts.num_done, 'sample')} done in signal {name}"
        aside, written = counted(counts.num_set_aside, "record"), size(counts.signals[name].num_bytes)
        click.echo(f"{store}: {done}, {aside} set aside, {counts.num_planned} to do, {written}.")
        for reason, count in counts.set_aside.items():
            click.echo(f"  {count} set aside: {reason}")
