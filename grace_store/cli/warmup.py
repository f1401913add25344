"""grace-store warmup"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from grace_store.base.text import counted, sparkline
from grace_store.cli.config_files import config_option
from grace_store.cli.console import print_json, stoppable
from grace_store.cli.extract_options import data_options, model_option, reading_options
from grace_store.cli.options import OUT_FOLDER, as_json, device_option, images_option, pick, setting, stacked, wish
from grace_store.cli.progress import ProgressDisplay
from grace_store.model.lora.recipe import WarmupOptions, WarmupRequest, WarmupSpec, check_fraction

EPILOG = """\b
Examples:
  grace-store warmup --store traces.zarr --model ./Qwen3-1.7B --out warmup --checkpoints 0.25,0.5,0.75,1
  grace-store warmup --out warmup                               # go on after any interruption
  torchrun --nproc-per-node 8 -m grace_store warmup ...         # on 8 GPUs
  grace-store extract --store traces.zarr --model ./Qwen3-1.7B --adapter warmup
"""


class FractionsType(click.ParamType[tuple[str, ...]]):
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


recipe_options = stacked(
    wish(WarmupSpec, "--ratio", "Share of the planned samples to train on."),
    wish(WarmupSpec, "--seed", "Seed of the subset, of its order and of the adapter's first weights."),
    click.option(
        "--checkpoints",
        type=FractionsType(),
        help="Fractions of the training after which a checkpoint is kept, such as 0.25,0.5,1. [default: 1]",
    ),
    wish(
        WarmupSpec,
        "--heldout",
        "Samples outside the subset whose loss is measured at every checkpoint.",
        field="num_heldout",
    ),
    wish(WarmupSpec, "--rank", "Rank of the adapter."),
    wish(WarmupSpec, "--alpha", "LoRA's alpha: the adapter is scaled by alpha/rank."),
    wish(WarmupSpec, "--learning-rate", "Highest learning rate."),
    wish(WarmupSpec, "--warmup-ratio", "Share of the training over which the learning rate rises."),
    wish(WarmupSpec, "--schedule", "How the learning rate falls after its rise."),
    wish(WarmupSpec, "--weight-decay", "Weight decay of AdamW."),
    wish(WarmupSpec, "--beta1", "Decay of AdamW's first moment."),
    wish(WarmupSpec, "--beta2", "Decay of AdamW's second moment."),
    wish(WarmupSpec, "--epsilon", "Epsilon that AdamW adds to the denominator."),
    wish(WarmupSpec, "--max-grad-norm", "Scale longer gradients down to this norm."),
    wish(WarmupSpec, "--batch-size", "Samples in one optimiser step, over all devices."),
    wish(WarmupSpec, "--epochs", "Passes over the subset.", field="num_epochs"),
    reading_options,
    wish(WarmupSpec, "--max-length", "Leave conversations with more tokens out."),
    wish(WarmupSpec, "--train-eos", "Train on the end-of-turn token after the response, too."),
    wish(WarmupSpec, "--dtype", "Number format of the frozen model; the adapter is float32."),
)
"""What changes the numbers; frozen in the recipe."""

run_options = stacked(
    setting(WarmupOptions, "--batch-tokens", "Tokens in one forward and backward pass, padding included."),
    device_option,
    setting(WarmupOptions, "--loader-threads", "Threads that tokenise samples and open images ahead of the model."),
    wish(WarmupOptions, "--threads", "CPU threads of each process.", default="one a core, at most 8"),
    setting(
        WarmupOptions,
        "--gradient-checkpointing",
        "Compute activations twice instead of keeping them: less memory, more time.",
    ),
    click.option(
        "--save-seconds",
        type=click.FloatRange(0),
        default=300.0,
        show_default=True,
        help="Seconds of training between saves: a killed run loses no more than this.",
    ),
)
"""What changes only the speed; may differ from run to run."""


@click.command(epilog=EPILOG)
@click.option("--out", required=True, type=OUT_FOLDER, help="Folder for the checkpoints; an earlier run there goes on.")
@model_option
@click.option(
    "--store",
    type=click.Path(),
    help="Planned store to draw the subset from. [default: --data is planned, in OUT/plan.zarr]",
)
@click.option(
    "--data",
    multiple=True,
    type=click.Path(),
    help="Dataset file or folder; may be repeated. [default: the files that --store was planned from]",
)
@images_option
@data_options
@recipe_options
@run_options
@config_option
@as_json
def warmup(
    out: Path,
    model: str | None,
    store: str | None,
    data: tuple[str, ...],
    unit_samples: int | None,
    *,
    as_json: bool,
    **wishes: Any,
) -> None:
    """Train a LoRA adapter on a small random subset; resumable.

    The subset is drawn from the planned samples by the seed alone and written to OUT/subset.json. Checkpoints along
    the way are signals to extract later. After an interruption the same command goes on, and ends with the same
    adapter.
    """
    from grace_store.base.settings import DataRequest
    from grace_store.model.lora.loss_log import read_losses
    from grace_store.run.engines.choice import current_ranks
    from grace_store.run.warmup import WarmupJob, draw_losses
    from grace_store.run.warmup import warmup as run

    ranks = current_ranks()
    job = WarmupJob(
        out=out,
        model=model,
        store=store,
        data=data,
        data_request=DataRequest(**pick(wishes, DataRequest)),
        request=WarmupRequest(**pick(wishes, WarmupRequest)),
        options=WarmupOptions(**pick(wishes, WarmupOptions)),
        samples_per_unit=unit_samples,
        images=wishes["images"],
        ranks=ranks,
    )
    with ProgressDisplay(quiet=not ranks.is_first) as display, stoppable() as stop:
        done = run(job, display, stop)
    if not ranks.is_first:
        return
    picture = draw_losses(out)
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
        f"{', '.join(done.checkpoints)}; {picture}"
    )


COMMAND = warmup
