"""grace-store warmup"""

from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.text import counted, sparkline
from grace_store.base.training_settings import TrainingSpec, WarmupOptions, WarmupSpec, check_fraction
from grace_store.cli import shared
from grace_store.cli.console import print_json, stoppable
from grace_store.cli.options import OUT_FOLDER, PLACE, As, command, config_option, option, options_of, pick, stacked
from grace_store.cli.progress import ProgressDisplay
from grace_store.run.engines.engine import current_ranks
from grace_store.train.loss_log import read_losses


class FractionsType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Numbers above 0 and at most 1, separated by commas."""

    name = "F,F,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        given = [str(each).strip() for each in value] if isinstance(value, list) else str(value).split(",")
        try:
            return tuple(check_fraction(each.strip()) for each in given)
        except ValueError as error:
            self.fail(str(error), param, ctx)


fractions = As(default="1", kind=FractionsType())
named = {"checkpoints": fractions, "num_heldout": As("--heldout"), "num_epochs": As("--epochs")}
recipe = stacked(
    options_of(WarmupSpec, but=TrainingSpec.model_fields, differing=named),
    options_of(TrainingSpec, ExtractSpec, differing=shared.input_defaults),
)
"""Options that change the numbers; frozen in the recipe."""

speed = options_of(
    WarmupOptions,
    RunOptions,
    has_defaults=True,
    differing={"threads": shared.cores, "save_seconds": As(kind=click.FloatRange(0))},
)
"""Options that change only the speed; they may differ from run to run."""


@command(
    "grace-store warmup traces.zarr --model ./Qwen3-1.7B --out warmup --checkpoints 0.25,0.5,0.75,1",
    "grace-store warmup --out warmup                               # go on after any interruption",
    "torchrun --nproc-per-node 8 -m grace_store warmup ...         # on 8 GPUs",
    "grace-store extract traces.zarr --model ./Qwen3-1.7B --adapter warmup",
)
@shared.optional_store
@option("--out", OUT_FOLDER, "Folder for the checkpoints. An earlier run in this folder is continued.", required=True)
@shared.model
@option("--data", PLACE, "Dataset file or folder. [default: the planned files of STORE]", many=True)
@shared.images
@shared.data_spec
@recipe
@speed
@config_option
def warmup(out: Path, *, as_json: bool, **wishes: Any) -> None:
    """Train a LoRA adapter on a small random subset; resumable.

    The seed alone determines the random subset of the planned samples of STORE. Without STORE, --data is planned in
    OUT/plan.zarr. The subset is written to OUT/subset.json. `extract` makes a signal from each checkpoint. After an
    interruption, the same command goes on and ends with the same adapter.
    """
    ranks = current_ranks()
    job = gs.WarmupJob(
        out=out,
        **{name: wishes[name] for name in ("model", "store", "data", "images")},
        data_request=gs.DataSpec(**pick(wishes, gs.DataSpec)),
        request=WarmupSpec(**pick(wishes, WarmupSpec)),
        options=WarmupOptions(**pick(wishes, WarmupOptions)),
        samples_per_unit=wishes["unit_samples"],
        ranks=ranks,
    )
    with ProgressDisplay(quiet=not ranks.is_first) as display, stoppable("the step under way") as stop:
        done = gs.warmup(job, display, stop)
    if not ranks.is_first:
        return
    trained, heldout = read_losses(out)
    if as_json:
        losses = [{"step": step, "heldout_loss": loss} for step, loss in heldout]
        print_json({"out": str(out), **done.model_dump(mode="json"), "heldout": losses})
        return
    click.echo(f"Loss      {sparkline([loss for _, loss in trained])}  {trained[0][1]:.4f} to {trained[-1][1]:.4f}")
    if heldout:
        click.echo(f"Held out  {'  '.join(f'step {step}: {loss:.4f}' for step, loss in heldout)}")
    left_out = f", {done.num_left_out} left out" if done.num_left_out else ""
    click.echo(
        f"{out}: {counted(done.num_steps, 'step')} on {done.num_samples} of {done.num_planned} samples{left_out}; "
        f"{', '.join(done.checkpoints)}"
    )
